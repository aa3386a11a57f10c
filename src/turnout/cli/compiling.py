"""What `turnout compile` made of a route: as a JSON document, and as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.cli import tables
from turnout.compiling.kept import stage_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnout.bundle import Bundle
    from turnout.compiling.options import CompileOptions
    from turnout.compiling.prepare import Prepared
    from turnout.compiling.ship import Shipped
    from turnout.compiling.store import Entry
    from turnout.routing import Route

SCHEMA_VERSION = 1
# How artifacts are proven where nothing more is to be said.
_PLAIN_CHECKS = ("structure", "run")
# What came of a stage, as the document has it and as people read it.
_WORDS = {"stored": "stored already"}


@dataclass(frozen=True)
class Report:
    """A route that was prepared. `outcomes` has what came of each job, by its name."""

    bundle: Bundle
    route: Route | None
    prepared: Prepared
    outcomes: Mapping[str, str]
    options: CompileOptions
    shipped: Shipped | None = None

    def with_shipped(self, shipped: Shipped) -> Report:
        """The same, shipped."""
        return replace(self, shipped=shipped)

    @property
    def failure(self) -> str | None:
        """Why the command failed, None where it did not."""
        prepared = self.prepared
        if prepared.uncompiled:
            return "Not compiled: " + ", ".join(prepared.uncompiled) + "."
        shared = self.options.share is not None and prepared.shared.is_any
        if prepared.compiled or shared or self._compiled_before:
            return None
        reasons = dict.fromkeys(prepared.skipped.values())
        return "Nothing can be compiled: " + "; ".join(reasons) + "."

    @property
    def nbytes(self) -> int:
        """Bytes of what was prepared, each file once."""
        return sum(entry.manifest.nbytes for entry in self.prepared.entries)

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """The entry of every prepared stage."""
        by_key = {entry.key: entry for entry in self.prepared.entries}
        return {stage: by_key[key] for stage, key in self.prepared.compiled.items()}

    @property
    def _compiled_before(self) -> bool:
        """Whether the bundle came compiled."""
        return any(stage.filename and self.bundle.graph(stage).ep_contexts for stage in self._rest)

    @property
    def _rest(self) -> list[Any]:
        return [stage for stage in self.bundle.stages if stage.name in self.prepared.skipped]

    def document(self) -> dict[str, Any]:
        """What `--json` prints. Seconds and bytes, as the names say."""
        shipped = self.shipped
        return {
            "schema_version": SCHEMA_VERSION,
            "bundle": str(self.bundle.path),
            "requested": "config" if self.route is None else self.route.requested,
            "effective": "config" if self.route is None else self.route.effective,
            "stages": [self._stage(name) for name in self._names],
            "bytes": self.nbytes,
            "shared": self.prepared.shared.to_json(),
            "missed": {name: list(lines) for name, lines in self.prepared.missed.items()},
            "stores": self._stores,
            "derived": str(self.prepared.folder),
            "output": None
            if shipped is None
            else {
                "path": str(shipped.path),
                "bytes": shipped.nbytes,
                "files": list(shipped.files),
            },
            "failure": self.failure,
        }

    def lines(self, *, verbose: bool, quiet: bool) -> Iterator[str]:
        """The report for people, a line at a time."""
        rows = [self._row(self._stage(name)) for name in self._names]
        yield from tables.aligned(["stage", "ep", "outcome", "took", "on disk", "why"], rows)
        if quiet:
            return
        shared = self.prepared.shared
        if shared.is_any:
            yield f"shared   {_shared_words(shared)}"
        if verbose:
            yield from (f"  {line}" for line in shared.reasons)
        for name, differences in self.prepared.missed.items():
            if differences:
                yield f"anew     {name}: {', '.join(differences)}"
        for entry in self.prepared.entries:
            how = entry.manifest.checked
            if how not in _PLAIN_CHECKS:
                yield f"checked  {'+'.join(stage_names(entry))}: {how}"
        yield from (f"stored   {store}" for store in self._stores)
        yield f"loaded   {self.prepared.folder}"
        if self.shipped is not None:
            size = tables.size(self.shipped.nbytes)
            yield f"shipped  {self.shipped.path} ({len(self.shipped.files)} files, {size})"

    @property
    def _names(self) -> list[str]:
        """The stages of the bundle, in order, those that became a part of another included."""
        return [stage.name for stage in self.bundle.stages]

    @property
    def _stores(self) -> list[str]:
        return list(dict.fromkeys(str(entry.folder.parent) for entry in self.prepared.entries))

    def _stage(self, name: str) -> dict[str, Any]:
        entry = self.entries.get(name)
        ep = {stage.name: stage.ep for stage in self.prepared.config.stages()}.get(name)
        facts: dict[str, Any] = {
            "stage": name,
            "ep": None if ep is None else catalog.alias_of(ep),
            **self._outcome(name),
            "key": None,
            "job": [],
            "took_s": None,
            "bytes": 0,
            "bytes_saved": 0,
            "checked": None,
        }
        if entry is not None:
            manifest = entry.manifest
            facts |= {
                "key": entry.key,
                "job": list(stage_names(entry)),
                "took_s": round(manifest.took_s, 3),
                "bytes": manifest.nbytes,
                "bytes_saved": manifest.bytes_saved,
                "checked": manifest.checked,
            }
        return facts

    def _outcome(self, name: str) -> dict[str, str]:
        prepared = self.prepared
        entry = self.entries.get(name)
        if entry is not None:
            job = "+".join(stage_names(entry))
            outcome, why = self.outcomes.get(job, "stored"), ""
        elif name in prepared.shared.merged:
            outcome, why = "merged", f"one session with {prepared.shared.merged[name]}"
        elif name in prepared.uncompiled:
            outcome, why = "uncompiled", prepared.uncompiled[name]
        else:
            outcome, why = "skipped", prepared.skipped.get(name, "")
        return {"outcome": outcome, "why": why}

    def _row(self, stage: dict[str, Any]) -> list[str]:
        compiled = stage["outcome"] == "compiled"
        others = [name for name in stage["job"] if name != stage["stage"]]
        why = stage["why"] or (f"together with {', '.join(others)}" if others else "")
        return [
            stage["stage"],
            stage["ep"] or "-",
            _WORDS.get(stage["outcome"], stage["outcome"]),
            tables.seconds(stage["took_s"] if compiled else None),
            tables.size(stage["bytes"]) if stage["key"] else "-",
            why,
        ]


def _shared_words(shared: Any) -> str:
    from turnout.cli.stats import shared_words

    return str(shared_words(shared))
