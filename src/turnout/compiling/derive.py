"""Derived bundles: a small folder that carries an effective config and finds the weights in
the source bundle.

A derived bundle holds the config, the graphs and the other small files, and no weights: each
stage with external data gets a session option that names the source's folder, relative to the
derived one, because onnxruntime-genai joins the two. Measured on the CPU EP and on OpenVINO by
tests/test_derive.py. A hub's cache is different: its data files are links, which some EPs
refuse, so there the weights are hard links to the hub's blobs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from turnout.bundle import CONFIG_NAME, DERIVED_MARK, Bundle, GenaiConfig, require_regular
from turnout.compiling import leftovers
from turnout.compiling.contents import Artifact, Contents
from turnout.compiling.places import in_first, opened, places
from turnout.compiling.unwritten import without_compiling
from turnout.errors import CompileError, NotABundleError, WriteError
from turnout.files import explain_os_error, link_or_copy, publish_folder, read_plain

_LOCK_SECONDS = 600
_ATTEMPTS = 3
_MAX_MARK = 16 << 20
_log = logging.getLogger(__name__)

Say = Callable[[str], None]


def loadable(bundle: Bundle, effective: GenaiConfig, *, say: Say = _log.info) -> Path:
    """The folder that onnxruntime-genai loads for `effective`.

    It is the source folder itself where the config is the source's own, else a derived bundle.
    A hub cache with external data is always derived, and so is a bundle whose config has an EP
    write its compiled model. `say` gets one line where weights had to be linked or copied, and
    where that is kept from happening. Raises what `derive` does, and `GraphError` for a file that
    is none.
    """
    require_regular(bundle)
    effective = _loading_only(effective, say)
    if effective.text == bundle.config.text and not _needs_links(bundle):
        return bundle.path
    return derive(bundle, effective, say=say)


def derive(
    bundle: Bundle,
    effective: GenaiConfig,
    *,
    artifacts: Mapping[str, Artifact] | None = None,
    sharing: str = "off",
    say: Say = _log.info,
) -> Path:
    """The folder of the derived bundle for `effective`, written now unless it is fresh.

    `artifacts` take the place of the graphs of stages that were prepared ahead of time.

    It is `_compiled/routes/<12 hex digits>` of the bundle or, where that cannot be written or
    the bundle is a hub's cache, in the cache folder. An absolute path without links. Another
    process that derives the same waits for this one. The source's own files are not touched.
    A place that turns out to be full is passed over for the other one.

    Raises `BundleError` for a source that names files outside itself, `GraphError` for graphs
    or data files that are missing, `WriteError`.
    """
    if (bundle.path / DERIVED_MARK).exists():
        raise NotABundleError(
            f"{bundle.path} is a derived bundle, which nothing can be derived from.",
            where=bundle.path,
            fix="give the bundle that it was derived from",
        )
    source = replace(bundle, path=bundle.path.resolve())
    key = hashlib.sha256(f"{effective.text}\0{sharing}".encode()).hexdigest()[:12]

    def derived_in(place: Path) -> Path:
        try:
            with opened(place) as folder:
                leftovers.sweep(folder)
                return _derive_in(folder / key, source, effective, artifacts or {}, say)
        except Timeout as error:
            raise WriteError(
                f"Another process has been writing {place / key} for {_LOCK_SECONDS} seconds.",
                where=place / key,
                fix="wait for it, or end it",
            ) from error

    return in_first(places(source), derived_in)


def derive_into(
    target: Path,
    bundle: Bundle,
    effective: GenaiConfig,
    *,
    artifacts: Mapping[str, Artifact] | None = None,
    say: Say = _log.info,
) -> Path:
    """The derived bundle for `effective`, written to `target`, which is absolute and without links.

    For one that is used once: its caller chooses the place, and removes it. Raises what `derive`
    does.
    """
    require_regular(bundle)
    source = replace(bundle, path=bundle.path.resolve())
    return _derive_in(target, source, effective, artifacts or {}, say)


def _loading_only(effective: GenaiConfig, say: Say) -> GenaiConfig:
    config = without_compiling(effective)
    if config is not effective:
        say("Loaded without ep.context_enable, with which it would write into the bundle.")
    return config


def _derive_in(
    target: Path,
    source: Bundle,
    effective: GenaiConfig,
    artifacts: Mapping[str, Artifact],
    say: Say,
) -> Path:
    effective = _loading_only(effective, say)
    with FileLock(leftovers.lock_path(target.parent, target.name), timeout=_LOCK_SECONDS):
        contents = Contents.of(source, effective, target, artifacts)
        for _ in range(_ATTEMPTS):
            if _is_fresh(target, contents):
                return target
            _write(target, contents, say)
        if not artifacts or _is_fresh(target, contents):
            return target
    # Files of two states of an entry, or of the source, are never loaded together.
    raise CompileError(
        f"{source.path} was changed, or what was compiled of it, while it was derived from.",
        where=target,
        fix="wait until whatever writes there is done",
    )


def _needs_links(bundle: Bundle) -> bool:
    return bundle.blobs is not None and any(
        bundle.data_files(stage) for stage in bundle.stages if stage.filename
    )


def _is_fresh(target: Path, contents: Contents) -> bool:
    """Whether all in `target` is what would be written now. It lies in a bundle, and may be
    anything: a link, or files without an end.
    """
    expected = contents.config.text.encode()
    try:
        if target.is_symlink():
            return False
        mark = json.loads(read_plain(target / DERIVED_MARK, _MAX_MARK))
        if mark != {**contents.manifest(), "written": contents.written(target)}:
            return False
        return read_plain(target / CONFIG_NAME, len(expected)) == expected
    except (OSError, ValueError, RecursionError):
        return False


def _write(target: Path, contents: Contents, say: Say) -> None:
    source = contents.bundle.path
    try:
        with leftovers.staging(target.parent, target.name) as staging:
            linked = _fill(staging, contents)
            publish_folder(staging, target)
    except OSError as error:
        raise explain_os_error(error, target) from error
    if contents.skipped:
        say(f"Left out, as links that lead out of {source}: {', '.join(contents.skipped)}.")
    if contents.weights:
        how = "hard links to" if linked else "copies of"
        say(f"The weights of {source} are loaded through {how} its files in {target}.")


def _fill(staging: Path, contents: Contents) -> bool:
    """Write everything to an empty folder; whether all that was to be linked could be."""
    manifest = contents.manifest()
    linked = True
    for name in (*contents.copies, *contents.links):
        place = staging / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name in contents.copies:
            shutil.copyfile(contents.source(name), place)
        else:
            linked = link_or_copy(contents.source(name), place) and linked
    (staging / CONFIG_NAME).write_bytes(contents.config.text.encode())
    mark = {**manifest, "written": contents.written(staging)}
    (staging / DERIVED_MARK).write_text(json.dumps(mark, indent=1) + "\n", "utf-8")
    return linked
