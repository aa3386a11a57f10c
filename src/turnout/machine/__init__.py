"""What this machine can run: its execution providers, devices and plugin libraries."""

from turnout.machine.inventory import Device, InstalledEp, Inventory, MissingEp

__all__ = ["Device", "InstalledEp", "Inventory", "MissingEp"]
