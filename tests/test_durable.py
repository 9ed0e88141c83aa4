"""Files that are replaced, published, locked and hashed."""

import fcntl
import hashlib
import os
import sys
from pathlib import Path

import pytest

from appliance.durable import exchange, locked, publish, replace_file, sha256, version_of
from tests.harness.daemons import finished


def test_a_file_is_replaced_whole_with_its_mode(tmp_path: Path) -> None:
    path, left, held = (tmp_path / name for name in ("file", ".a.0123abcd.new", ".b.0123abcd.new"))
    left.touch(), held.touch()
    with locked(held):
        replace_file(path, b"old", mode=0o640)
    assert (left.exists(), held.exists()) == (False, True)
    before = version_of(path)
    replace_file(path, b"new", mode=0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert version_of(path) != before and version_of(tmp_path / "absent") is None
    assert os.listdir(tmp_path) == ["file"]


def test_the_umask_decides_without_a_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "own", b"")
        replace_file(tmp_path / "shared", b"", mode=0o644)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("own", "shared")] == [0o640, 0o644]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    (tmp_path / "file").symlink_to(elsewhere)
    replace_file(tmp_path / "file", b"new")
    assert elsewhere.read_bytes() == b"kept"
    assert (tmp_path / "file").read_bytes() == b"new" and not (tmp_path / "file").is_symlink()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    replace_file(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_is_published_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    publish(tmp_path / "one", tmp_path / "place")
    with pytest.raises(OSError, match="not empty"):
        publish(tmp_path / "two", tmp_path / "place")
    exchange(tmp_path / "two", tmp_path / "place")
    assert (tmp_path / "place" / "file").read_text() == "two"
    assert (tmp_path / "two" / "file").read_text() == "one"


def test_a_lock_ends_with_its_block(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(BlockingIOError), locked(tmp_path, fcntl.LOCK_EX | fcntl.LOCK_NB):
        pass
    with locked(tmp_path, fcntl.LOCK_EX | fcntl.LOCK_NB):
        pass


def test_the_hash_covers_all_blocks(tmp_path: Path) -> None:
    data = os.urandom((1 << 20) + 5)
    (tmp_path / "file").write_bytes(data)
    assert sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_only_the_standard_library_is_imported() -> None:
    code = "import sys, appliance.durable; print({'numpy', 'yaml'} & set(sys.modules))"
    assert finished(sys.executable, "-c", code).stdout == "set()\n"
