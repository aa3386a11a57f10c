"""Content hashes of weights: right at any time, and read once."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnout.compiling import hashes as module
from turnout.compiling.hashes import ContentHashes
from turnout.errors import GraphError

DATA = bytes(range(256)) * 64


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.data"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as settled."""
    monkeypatch.setattr(module, "_SETTLED_S", -60.0)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_ranges_are_hashed_as_sha256_does(weights: Path, memory: Path) -> None:
    hashes = ContentHashes(memory)
    assert hashes.file(weights) == sha256(DATA)
    assert hashes.range(weights, 100, 1000) == sha256(DATA[100:1100])
    assert hashes.ranges(weights, [(0, 1), (5, 0), (0, 1)]) == [
        sha256(DATA[:1]),
        sha256(b""),
        sha256(DATA[:1]),
    ]


@pytest.mark.usefixtures("settled")
def test_what_was_hashed_once_is_not_read_again_by_any_process(weights: Path, memory: Path) -> None:
    first = ContentHashes(memory)
    assert first.file(weights) == sha256(DATA)
    assert first.bytes_read == len(DATA)
    second = ContentHashes(memory)
    assert second.file(weights) == sha256(DATA)
    assert second.bytes_read == 0


@pytest.mark.usefixtures("settled")
def test_a_rewrite_in_place_with_its_time_set_back_is_noticed(weights: Path, memory: Path) -> None:
    """W#1295, W#1224"""
    before = weights.stat()
    assert ContentHashes(memory).file(weights) == sha256(DATA)
    time.sleep(0.02)
    with weights.open("rb+") as file:
        file.write(b"other")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = weights.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    assert ContentHashes(memory).file(weights) == sha256(b"other" + DATA[5:])


@pytest.mark.usefixtures("settled")
def test_another_file_of_the_same_size_and_time_is_noticed(weights: Path, memory: Path) -> None:
    before = weights.stat()
    assert ContentHashes(memory).file(weights) == sha256(DATA)
    other = weights.with_name("other")
    other.write_bytes(DATA[::-1])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(weights)
    assert ContentHashes(memory).file(weights) == sha256(DATA[::-1])


def test_what_changed_just_now_is_not_remembered(weights: Path, memory: Path) -> None:
    assert ContentHashes(memory).file(weights) == sha256(DATA)
    again = ContentHashes(memory)
    assert again.file(weights) == sha256(DATA)
    assert again.bytes_read == len(DATA)


def test_what_the_clock_says_is_to_come_is_not_remembered(weights: Path, memory: Path) -> None:
    later = time.time_ns() + 3600 * 10**9
    os.utime(weights, ns=(later, later))
    ContentHashes(memory).file(weights)
    again = ContentHashes(memory)
    again.file(weights)
    assert again.bytes_read == len(DATA)


def test_a_file_that_is_too_short_says_how_short(weights: Path, memory: Path) -> None:
    with pytest.raises(GraphError) as caught:
        ContentHashes(memory).range(weights, len(DATA) - 10, 20)
    assert caught.value.facts["expected"] == f"{len(DATA) + 10} bytes"


def test_a_file_that_is_gone_is_an_error_that_names_it(tmp_path: Path, memory: Path) -> None:
    with pytest.raises(GraphError, match="gone"):
        ContentHashes(memory).file(tmp_path / "gone")


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("damage", [b"not a database", b"", b"SQLite format 3\0" + bytes(100)])
def test_a_damaged_memory_is_made_anew(weights: Path, memory: Path, damage: bytes) -> None:
    ContentHashes(memory).file(weights)
    (memory / "hashes.sqlite").write_bytes(damage)
    assert ContentHashes(memory).file(weights) == sha256(DATA)
    again = ContentHashes(memory)
    assert again.file(weights) == sha256(DATA)
    assert again.bytes_read == 0


@pytest.mark.usefixtures("settled")
def test_what_is_no_hash_in_the_memory_is_not_believed(weights: Path, memory: Path) -> None:
    ContentHashes(memory).file(weights)
    with sqlite3.connect(memory / "hashes.sqlite") as database:
        database.execute("UPDATE hashes SET hash = 'x'")
    assert ContentHashes(memory).file(weights) == sha256(DATA)


def test_a_memory_in_the_place_of_a_file_is_done_without(weights: Path) -> None:
    assert ContentHashes(weights / "cache").file(weights) == sha256(DATA)


@pytest.mark.usefixtures("settled")
def test_many_threads_agree(weights: Path, memory: Path) -> None:
    spans = [(start * 64, 64) for start in range(256)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ContentHashes(memory).ranges(weights, spans), range(8)))
    assert all(one == [sha256(DATA[o : o + n]) for o, n in spans] for one in found)


def test_a_digest_follows_from_places_and_contents_and_not_their_order(weights: Path) -> None:
    hashes = ContentHashes(None)
    digest = hashes.digest(weights, [(0, 8), (512, 8)])
    assert digest == hashes.digest(weights, [(512, 8), (0, 8), (0, 8)])
    # The bytes are equal there, the place is another.
    assert digest != hashes.digest(weights, [(0, 8), (256, 8)])
    assert digest != hashes.digest(weights, [(1, 8), (512, 8)])
