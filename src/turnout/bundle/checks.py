"""What must hold before anything opens the files of a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from turnout.bundle.bundle import ALLOW, Bundle
from turnout.bundle.tokenizer import FILES
from turnout.errors import GraphError
from turnout.files import is_file, is_forbidden, kind_of


def require_regular(bundle: Bundle) -> None:
    """Raise `BundleError` where a file to be loaded leads out, is none, or may not be read.

    A bundle is untrusted, and no native library shall see a path or a link that leaves it. The
    runtime would wait for ever for what comes out of a pipe. Files that are missing, and graphs
    that cannot be read, are left to whoever needs them.
    """
    for name, path in _named(bundle):
        if is_forbidden(path):
            raise GraphError(f"{name} of the bundle may not be read.", where=path, fix=ALLOW)
        if _exists(path) and not is_file(path):
            raise GraphError(
                f"{name} of the bundle is no regular file.",
                found=kind_of(path),
                expected="a regular file",
                where=path,
                fix="fetch or build the bundle again",
            )


def _named(bundle: Bundle) -> Iterator[tuple[str, Path]]:
    for stage in bundle.stages:
        if not stage.filename:
            continue
        path = bundle.file(stage.filename, what=f"file of the stage {stage.name!r},")
        yield stage.filename, path
        try:
            bundle.graph(stage)
        except GraphError:
            continue
        yield from bundle.data_files(stage).items()
        yield from bundle.context_files(stage).items()
    within = bundle.tokenizer_folder.relative_to(bundle.path)
    for name in FILES:
        yield name, bundle.file((within / name).as_posix(), what="tokenizer file")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file system takes
        return False
