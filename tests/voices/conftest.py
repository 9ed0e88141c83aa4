"""pydub, whose cuts ours must equal; and stores in a folder of the test."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance.request import Features
from appliance.voices import index, reference
from appliance.voices.records import Place
from appliance.voices.store import VoiceStore
from tests.harness.daemons import store_in
from tests.harness.sounds import wav


@pytest.fixture(scope="session")
def pydub() -> Any:
    """pydub, whose cuts ours must equal; it warns of a missing ffmpeg, which it does not need here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pydub")
        import pydub.silence
    return pydub


@dataclass
class Folders:
    root: Path
    level: float = 0.1
    prepared: int = 0
    """Number of times that audio was decoded."""

    def open(self, **options: Any) -> VoiceStore:
        return store_in(self.root, level=self.level, **options)

    @property
    def cached(self) -> list[Path]:
        return sorted((self.root / "cache").iterdir())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    made = Folders(tmp_path)

    def prepare(audio: bytes, *rest: Any) -> Features:
        made.prepared += 1
        return reference.prepare(audio, *rest)

    monkeypatch.setattr(index, "prepare", prepare)
    return made


@pytest.fixture
def store(place: Folders) -> VoiceStore:
    """A store of one voice, 'ann'."""
    store = place.open()
    store.create(Place("ann"), wav(1.1), "Hello there.", "Ann agreed.", display_name="Ann")
    return store


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
