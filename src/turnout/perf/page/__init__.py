"""A report as one HTML file that opens offline: it asks for nothing but itself."""

from turnout.perf.page.document import render, render_sections, require, table
from turnout.perf.page.parts import Chart, Section

__all__ = ["Chart", "Section", "render", "render_sections", "require", "table"]
