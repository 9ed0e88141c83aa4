"""Kept folders: made once for each key, and made again when their sources change."""

from pathlib import Path

import pytest

from tests.harness import kept


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT", tmp_path)


def test_a_folder_is_made_once_for_its_key() -> None:
    made = []

    def make(folder: Path, size: int) -> None:
        folder.mkdir()
        made.append(size)

    def get(size: int) -> Path:
        return kept.kept("name", ("tests.harness.kept",), make, size)

    assert get(1) == get(1) != get(2)
    assert made == [1, 2]


def test_a_failed_folder_is_made_again() -> None:
    def fail(folder: Path) -> None:
        folder.mkdir()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        kept.kept("name", (), fail)
    assert kept.kept("name", (), Path.mkdir).is_dir()


def test_sources_follow_imports_and_stop_at_the_repository() -> None:
    found = {path.relative_to(kept.ROOT).as_posix() for path in kept.sources("tests.cuda.base")}
    assert {"tests/cuda/base.py", "export/graphs/step.py", "appliance/contract/mel.py"} <= found
    assert not any(path.startswith(("export/demo/rebuild", "appliance/rpc")) for path in found)


def test_a_changed_source_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept.key(("tests.harness.kept",))
    (tmp_path / "lock").write_text("torch==9")
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setattr(kept, "LOCKS", (tmp_path / "lock",))
    changed = kept.key(())
    (tmp_path / "lock").write_text("torch==10")
    assert len({before, changed, kept.key(())}) == 3
