"""What is kept of compiling: as JSON documents, and as lines for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnout import catalog
from turnout.cli import tables
from turnout.compiling.kept import Derived, Item, Kept, stage_names, stale
from turnout.errors import TurnoutError

if TYPE_CHECKING:
    from turnout.bundle import Bundle
    from turnout.compiling.pruning import Doomed

SCHEMA_VERSION = 1
_DIGITS = 12


def list_document(kept: Kept, bundle: Bundle | None) -> dict[str, Any]:
    """What `cache list --json` prints. Sizes are bytes, times seconds since 1970."""
    return {
        "schema_version": SCHEMA_VERSION,
        "stores": [str(store.folder) for store in kept.stores],
        "entries": [item_document(item, bundle, files=False) for item in kept.items()],
        "derived": [_derived_document(derived) for derived in kept.derived()],
    }


def list_lines(kept: Kept, bundle: Bundle | None, *, quiet: bool) -> Iterator[str]:
    """The entries as a table, and the derived bundles."""
    items, derived = kept.items(), kept.derived()
    if items:
        head = ["key", "stages", "ep", "size", "age", "state"]
        yield from tables.aligned(head, [_row(item, bundle) for item in items])
    elif not quiet:
        yield f"nothing is stored in {kept.where}"
    if quiet:
        return
    for folder in dict.fromkeys(item.store.folder for item in items):
        sizes = [item.nbytes for item in items if item.store.folder == folder]
        number = _many(len(sizes), "entry", "entries")
        yield f"stored   {number}, {tables.size(sum(sizes))}: {folder}"
    for route in derived:
        state = route.problem or f"of {route.source}"
        yield f"derived  {route.folder} ({tables.size(route.nbytes)}, {state})"


def item_document(item: Item, bundle: Bundle | None, *, files: bool = True) -> dict[str, Any]:
    """One entry. `stale` says in what it differs from what would be compiled here."""
    facts: dict[str, Any] = {
        "key": item.name,
        "folder": str(item.folder),
        "bytes": item.nbytes,
        "created": item.created,
        "problem": item.problem or None,
    }
    if item.entry is None:
        return facts
    manifest = item.entry.manifest
    facts |= {
        "stages": list(stage_names(item.entry)),
        "ep": _alias(item),
        "kind": manifest.inputs.get("kind"),
        "shared": manifest.inputs.get("shared"),
        "target": manifest.inputs.get("target"),
        "tools": manifest.inputs.get("tools"),
        "took_s": manifest.took_s,
        "bytes_saved": manifest.bytes_saved,
        "checked": manifest.checked,
        "stale": list(stale(item.entry, bundle)),
    }
    if files:
        facts["made_of"] = manifest.inputs
        facts["graphs"] = manifest.graphs
        facts["files"] = [
            {"name": file.name, "bytes": file.size, "sha256": file.sha256}
            for file in manifest.files
        ]
    return facts


def item_lines(item: Item, bundle: Bundle | None) -> Iterator[str]:
    """One entry, a line a fact."""
    yield f"key      {item.name}"
    yield f"folder   {item.folder}"
    if item.entry is None:
        yield f"broken   {item.problem}"
        return
    manifest = item.entry.manifest
    inputs = manifest.inputs
    yield f"stages   {', '.join(stage_names(item.entry))}"
    yield f"ep       {_alias(item)}{' (weights shared)' if inputs.get('shared') else ''}"
    for title in ("target", "device", "tools", "provider_options"):
        facts = inputs.get(title)
        if isinstance(facts, dict) and facts:
            words = ", ".join(f"{name} {_short(value)}" for name, value in facts.items())
            yield f"{title.split('_', maxsplit=1)[0]:8} {words}"
    saved = f", {tables.size(manifest.bytes_saved)} saved" if manifest.bytes_saved else ""
    yield (
        f"made     {tables.age(manifest.created)} ago, in {tables.seconds(manifest.took_s)},"
        f" checked by {manifest.checked}{saved}"
    )
    for file in manifest.files:
        yield f"file     {file.name}  {tables.size(file.size)}  {file.sha256[:16]}..."
    differences = stale(item.entry, bundle)
    yield f"here     {'can be used' if not differences else 'stale: ' + ', '.join(differences)}"


@dataclass(frozen=True)
class Checked:
    """Something whose files were compared with their hashes; what is wrong, a line each."""

    name: str
    where: str
    problems: tuple[str, ...] = ()


def verified(items: Iterable[Item]) -> list[Checked]:
    """The entries, every file read."""
    found = []
    for item in items:
        problems: tuple[str, ...] = ()
        if item.entry is None:
            problems = (item.problem,)
        else:
            try:
                item.store.verify(item.entry)
            except TurnoutError as error:
                problems = (error.problem,)
        found.append(Checked(item.name, str(item.folder), problems))
    return found


def shipped(bundle: Bundle) -> list[Checked]:
    """A bundle that was made to be shipped, every file read; [] for another one."""
    from turnout.compiling.ship import SHIPPED_MARK, damage

    if not (bundle.path / SHIPPED_MARK).is_file():
        return []
    try:
        problems = damage(bundle.path)
    except TurnoutError as error:
        problems = (error.problem,)
    return [Checked(SHIPPED_MARK, str(bundle.path), problems)]


def verify_document(checked: Sequence[Checked]) -> dict[str, Any]:
    """What `cache verify --json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "checked": [
            {"key": item.name, "folder": item.where, "problems": list(item.problems)}
            for item in checked
        ],
        "broken": sum(bool(item.problems) for item in checked),
    }


def verify_lines(checked: Sequence[Checked], *, quiet: bool) -> Iterator[str]:
    """What is wrong; with nothing wrong, and not `quiet`, how much was looked at."""
    for item in checked:
        for problem in item.problems:
            yield f"{_key(item.name)}  {problem} ({item.where})"
    if not quiet:
        broken = sum(bool(item.problems) for item in checked)
        yield f"{_many(len(checked), 'entry', 'entries')} verified, {broken} broken"


@dataclass(frozen=True)
class Outcome:
    """What was removed, or would be (`dry_run`), and the bytes that this frees."""

    gone: tuple[Doomed, ...]
    busy: tuple[Doomed, ...]
    freed: int
    dry_run: bool

    def document(self) -> dict[str, Any]:
        """What `cache remove --json` and `cache prune --json` print."""
        return {
            "schema_version": SCHEMA_VERSION,
            "dry_run": self.dry_run,
            "removed": [{"folder": str(item.folder), "why": item.why} for item in self.gone],
            "in_use": [{"folder": str(item.folder), "why": item.why} for item in self.busy],
            "freed_bytes": self.freed,
        }

    def lines(self, *, quiet: bool) -> Iterator[str]:
        """A line a folder, and what it frees."""
        word = "would remove" if self.dry_run else "removed"
        if not quiet:
            yield from (f"{word} {item.folder} ({item.why})" for item in self.gone)
        yield from (f"in use, and kept: {item.folder}" for item in self.busy)
        if not quiet:
            frees = "would free" if self.dry_run else "freed"
            yield f"{frees} {tables.size(self.freed)}" if self.gone else "nothing to remove"


def removed(found: list[Doomed], *, dry_run: bool) -> Outcome:
    """Remove what was found, unless `dry_run`. Raises `WriteError`."""
    from turnout.compiling import pruning

    if dry_run:
        return Outcome(tuple(found), (), pruning.would_free(found), dry_run=True)
    done = pruning.remove(found)
    return Outcome(done.gone, done.busy, done.freed, dry_run=False)


def _derived_document(derived: Derived) -> dict[str, Any]:
    return {
        "folder": str(derived.folder),
        "source": derived.source or None,
        "entries": [path.name for path in derived.prepared],
        "bytes": derived.nbytes,
        "created": derived.created,
        "problem": derived.problem or None,
    }


def _row(item: Item, bundle: Bundle | None) -> list[str]:
    size, age = tables.size(item.nbytes), tables.age(item.created)
    if item.entry is None:
        return [_key(item.name), "-", "-", size, age, f"broken: {item.problem}"]
    differences = stale(item.entry, bundle)
    state = f"stale: {', '.join(differences)}" if differences else "ready"
    stages = "+".join(stage_names(item.entry))
    return [_key(item.name), stages, _alias(item), size, age, state]


def _alias(item: Item) -> str:
    assert item.entry is not None
    return catalog.alias_of(str(item.entry.manifest.inputs.get("ep")))


def _key(name: str) -> str:
    return name[:_DIGITS]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:16] + "..."


def _many(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"
