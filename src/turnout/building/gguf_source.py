"""Positioned reads of a file that somebody else made.

A `Source` reads ranges; a `Cursor` walks a header through a window of fixed size. Both
compare every length with what the file has left before anything is allocated for it.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from turnout.bundle import CONFIG_NAME
from turnout.errors import GgufError, UsageError

WINDOW = 1 << 20  # bytes of the header held at a time
_LENGTH = struct.Struct("<Q")


class Source:
    """A regular file opened for reading, of `size` bytes."""

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises `UsageError` if there is no such file, or a folder or device is there, and
        `GgufError` if it cannot be read.
        """
        self.path = path
        self._lock = threading.Lock()
        try:
            # Asked first, since opening a named pipe would wait for a writer.
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise UsageError(
                f"There is no file {path}.",
                expected="a .gguf file",
                where=path,
                fix="check the path",
            ) from error
        except OSError as error:
            raise _unreadable(path, error) from error
        self._require_regular(status)
        try:
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise _unreadable(path, error) from error
        self.size = os.fstat(self._handle).st_size

    def _require_regular(self, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode):
            return
        kind = "a device, pipe or socket"
        if stat.S_ISDIR(status.st_mode):
            kind = "a bundle" if (self.path / CONFIG_NAME).is_file() else "a directory"
        raise UsageError(
            f"{self.path} is {kind}, not a GGUF file.",
            found=kind,
            expected="a .gguf file",
            where=self.path,
            fix="name the .gguf file itself",
        )

    def close(self) -> None:
        """Close the file. Closing twice is safe."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def read_into(self, offset: int, target: memoryview, where: str = "") -> None:
        """Fill `target` (bytes) with what stands at `offset`. Safe from several threads."""
        done = 0
        try:
            while done < len(target):
                count = self._pread(offset + done, target[done:])
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise GgufError(
                f"Cannot read {self.path}: {error.strerror or error}.",
                where=self.place(offset, where),
            ) from error
        if done < len(target):
            raise GgufError(
                f"{self.path.name} ended while it was read.",
                found=f"{done} bytes",
                expected=f"{len(target)} bytes",
                where=self.place(offset, where),
                fix="the file changed or was cut while in use; read it again once it is complete",
            )

    def read(self, offset: int, count: int, where: str = "") -> bytes:
        """`count` bytes at `offset`; the caller has compared them with `size`."""
        data = bytearray(count)
        self.read_into(offset, memoryview(data), where)
        return bytes(data)

    def _pread(self, offset: int, target: memoryview) -> int:
        # One call returns at most 2^31 - 4096 bytes on Linux, so the caller loops.
        if hasattr(os, "preadv"):
            return os.preadv(self._handle, [target], offset)
        with self._lock:
            os.lseek(self._handle, offset, os.SEEK_SET)
            data = os.read(self._handle, min(len(target), 1 << 24))
        target[: len(data)] = data
        return len(data)

    def place(self, offset: int, what: str = "") -> str:
        """Where something is, in words, for an error."""
        return f"{self.path}, byte {offset}" + (f", {what}" if what else "")


def _unreadable(path: Path, error: OSError) -> GgufError:
    return GgufError(f"Cannot read {path}: {error.strerror or error}.", where=path)


class Cursor:
    """A position in a source's header, and the words for what is being read there."""

    def __init__(self, source: Source, position: int = 0) -> None:
        self.source = source
        self.position = position
        self.what = "header"
        self._window = b""
        self._base = 0

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end of the file."""
        return self.source.size - self.position

    def fail(
        self, problem: str, *, found: object = None, expected: object = None, fix: object = None
    ) -> NoReturn:
        """Raise a `GgufError` that says where the cursor stands."""
        raise GgufError(
            problem,
            found=found,
            expected=expected,
            where=self.source.place(self.position, self.what),
            fix=fix,
        )

    def need(self, count: int, noun: str) -> None:
        """Refuse to go on unless the file has `count` more bytes for `noun`."""
        if count > self.remaining:
            self.fail(
                f"{self.source.path.name} ends inside its {self.what}.",
                found=f"{self.remaining} bytes left",
                expected=f"{count} bytes for {noun}",
                fix="the file is cut short or corrupt; download it again",
            )

    def take(self, count: int, noun: str) -> bytes:
        """The next `count` bytes."""
        self.need(count, noun)
        if count > WINDOW:
            data = self.source.read(self.position, count, self.what)
        else:
            start = self._hold(self.position, count)
            data = self._window[start : start + count]
        self.position += count
        return data

    def number(self, layout: struct.Struct, noun: str) -> int | float:
        """The next scalar of `layout`."""
        value: int | float = layout.unpack(self.take(layout.size, noun))[0]
        return value

    def count(self, noun: str) -> int:
        """The next unsigned 64-bit length or count."""
        return int(self.number(_LENGTH, noun))

    def text(self, limit: int, noun: str) -> str:
        """The next string, of at most `limit` bytes."""
        start = self.position
        length = self.count(f"the length of {noun}")
        self.need(length, noun)
        if length > limit:
            self.position = start
            self.fail(
                f"{noun.capitalize()} of {self.source.path.name} is too long.",
                found=f"{length} bytes",
                expected=f"at most {limit} bytes",
                fix="the file is corrupt; download it again",
            )
        data = self.take(length, noun)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            self.position = start + 8 + error.start
            self.fail(
                f"{noun.capitalize()} of {self.source.path.name} is not UTF-8.",
                found=repr(data[max(0, error.start - 8) : error.start + 8]),
                fix="the file is corrupt; download it again",
            )

    def skip(self, count: int, noun: str) -> None:
        """Step over `count` bytes."""
        self.need(count, noun)
        self.position += count

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings, every length compared with the file's end."""
        self.need(8 * count, f"the lengths of {count} strings")
        unpack: Callable[[bytes, int], tuple[int]] = _LENGTH.unpack_from
        end = self.source.size - 8
        position, window, base = self.position, self._window, self._base
        last = base + len(window) - 8
        for index in range(count):
            if not base <= position <= last:
                if position > end:
                    self.position = position
                    self.fail(
                        f"{self.source.path.name} ends inside its {self.what}.",
                        found=f"{index} of {count} strings before the end of the file",
                        fix="the file is cut short or corrupt; download it again",
                    )
                self._hold(position, 8)
                window, base = self._window, self._base
                last = base + len(window) - 8
            position += 8 + unpack(window, position - base)[0]
        self.position = position
        if position > self.source.size:
            self.position = self.source.size
            self.fail(
                f"{self.source.path.name} ends inside its {self.what}.",
                found=f"the last of {count} strings ends {position - self.source.size} bytes later",
                fix="the file is cut short or corrupt; download it again",
            )

    def _hold(self, position: int, count: int) -> int:
        """Have [position, position + count) in the window; its index there."""
        start = position - self._base
        if start < 0 or start + count > len(self._window):
            length = min(max(WINDOW, count), self.source.size - position)
            self._window = self.source.read(position, length, self.what)
            self._base = position
            start = 0
        return start
