"""First contact rehearsed against a hub on loopback, and the contents of its record after a failed stage."""

import json
import re
import shutil
import socket
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.durable import sha256
from appliance.engine.cases import FEMALE, VOICES
from export import contact, hearing
from export.assemble import BundleFailed
from export.cli import main
from export.contact import ContactFailed, Visit, impersonal, lines_of
from export.sources.weights import KNOWN
from tests.export.contact import NAME, REPOSITORY, command, rehearsing
from tests.harness import small, traces
from tests.harness.daemons import BUNDLE

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PERSON = "ada-example"
TEXTS = ("hello chat", "one more line of words")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of random weights in official layout."""
    folder = tmp_path_factory.mktemp("published")
    small.write_files(folder, small.V1)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (folder := tmp_path / PERSON).mkdir()
    (folder / "lines.txt").write_text("\n".join(TEXTS), "utf-8")
    return folder


def record_in(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "found" / f"{NAME}.json").read_text("utf-8"))
    return found


def test_weights_are_fetched_exported_and_spoken(
    published: Path,
    out: Path,
    brief_gate: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOGNAME", PERSON)
    monkeypatch.setattr(hearing, "missing", lambda modules: ["moonshine-voice"])
    options = ("--lines", str(out / "lines.txt"), "--max-frames", str(small.MAX_FRAMES))
    with rehearsing(published), traces.reusing():
        assert main(command(out, *options)) == 0
    found = record_in(out)
    stages = {name: stage["status"] for name, stage in found["stages"].items()}
    assert stages == dict.fromkeys(("fetch", "export", "start", "voice", "speak", "judge"), "done")
    assert found["stages"]["export"]["cpu_s"] > 0 and found["findings"] == []
    fetched = {name: digest for files in found["fetched"].values() for name, digest in files.items()}
    for path in ("model.safetensors", "vocab.txt", "family.yaml", "vocos/pytorch_model.bin"):
        assert fetched[Path(path).name] == sha256(published / path)
    for name, file in found["bundle"]["files"].items():
        assert file["sha256"] == sha256(out / "found" / "bundle" / name)
    assert (found["licence"]["weights"], found["licence"]["vocoder"]) == ("Apache-2.0", "MIT")
    assert {("keys", "default"), ("sample", "ort-cpu")} <= {
        (row["what"], row["variant"]) for row in found["bundle"]["parity"]["rows"] if row["error"] > 0
    }
    assert found["bundle"]["evidence"]["verdict"] == "untrained"
    assert [line["text"] for line in found["lines"]] == list(TEXTS)
    for number, line in enumerate(found["lines"], 1):
        assert line["file"] == f"lines/{number:02d}.wav"
        with wave.open(str(out / "found" / line["file"])) as file:
            assert line["audio_s"] == pytest.approx(file.getnframes() / 24_000, abs=0.01)
            assert line["rtf"] == pytest.approx(line["wall_s"] / line["audio_s"], rel=0.05)
        assert 0 < line["first_sound_s"] <= line["wall_s"] and line["peak_db"] > line["rms_db"]
    assert found["words"] == {"not heard": "not installed: moonshine-voice"}
    assert found["voice"]["name"] == "heart, of the demo voice" and found["engine"]["backend"] == "ort-cpu"
    text = (out / "found" / f"{NAME}.json").read_text("utf-8")
    private = PERSON, str(out.parent), socket.gethostname(), "127.0.0.1"
    assert not [one for one in private if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text)]
    assert f"{out / 'found' / NAME}.json" in capsys.readouterr().out


def of_tiny(change: Callable[[Path, dict[str, Any]], object]) -> Callable[[Sequence[str]], None]:
    """An exporter that copies the tiny bundle and changes the copy and its manifest."""

    def make(words: Sequence[str]) -> None:
        folder = Path(words[words.index("--out") + 1])
        shutil.copytree(BUNDLE, folder)
        manifest = yaml.safe_load((folder / "manifest.yaml").read_text("utf-8"))
        change(folder, manifest)
        (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False), "utf-8")

    return make


def refusing(words: Sequence[str]) -> None:
    raise BundleFailed(f"{words[words.index('--checkpoint') + 1]}: the flow is not finite")


def unspeakable(_: Path, manifest: dict[str, Any]) -> None:
    """A bundle that was accepted beyond a bound."""
    manifest["parity"]["failed"] = ["step at 77 frames"]


FAILING: dict[str, tuple[Callable[[Sequence[str]], None], str, list[str]]] = {
    "fetch": (refusing, "charactr/vocos-mel-24khz/config.yaml: not found", []),
    "export": (refusing, "WEIGHTS/Rehearsal/model.safetensors: the flow is not", ["fetched", "licence"]),
    "start": (of_tiny(lambda folder, _: (folder / "step.onnx").unlink()), r"exit status 65; .*step\.onnx",
        ["bundle"]),
    "speak": (of_tiny(unspeakable), "2 of 3 lines, the first: .*INVALID_ARGUMENT", ["voice", "lines"]),
}  # fmt: skip
"""Stage that fails → exporter, error, and the record's entries in spite of the failure."""


@pytest.mark.parametrize("stage", FAILING)
def test_a_failed_stage_keeps_earlier_results(stage: str, published: Path, out: Path) -> None:
    make, message, left = FAILING[stage]
    texts = out / "lines.txt"
    texts.write_text(f"hello\n{'word ' * 1_000}\n。")
    own = out / "friend.wav", VOICES.joinpath(f"{FEMALE}.txt").read_text("utf-8").strip()
    own[0].write_bytes(VOICES.joinpath(f"{FEMALE}.wav").read_bytes())
    with rehearsing(published) as hub:
        if stage == "fetch":
            del hub.files["charactr/vocos-mel-24khz/config.yaml"]
        visit = Visit(NAME, out / "found", out / "weights", lines=texts, voice=own)
        with pytest.raises(ContactFailed, match=f"{stage}: "):
            contact.meet(visit, make)
    found = record_in(out)
    assert [name for name, one in found["stages"].items() if one["status"] != "done"] == [stage]
    assert list(found["stages"])[-1] == stage
    assert re.search(message, found["stages"][stage]["error"])
    assert {"versions", "machine", *left} <= found.keys()
    broken = ["parity: step at 77 frames"] if stage == "speak" else []
    assert found["findings"][:-1] == broken and re.search(message, found["findings"][-1])
    assert ["error" in line for line in found.get("lines", [])] == [False, True, True] * (stage == "speak")
    assert found.get("voice", {"name": "own"})["name"] == "own"
    assert not re.search("friend|every Monday", json.dumps(found))


def test_words_are_counted_if_the_judge_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"language": language, "spoken": "We have 2 apples.", "audio_s": 1.0, "file": f"{number}.wav"}
        for number, language in enumerate(("en", "zh", "en"), 1)
    ]
    heard = iter(("we have two apples", "we had two", None))
    for number in (1, 3):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 24_000, 0, "NONE", ""))
            file.writeframes(bytes(2_000))

    class Recogniser:
        def transcribe(self, sound: Any, rate_hz: int) -> str:
            assert (len(sound), rate_hz) == (1_000, 24_000)
            return next(heard)

    monkeypatch.setattr(hearing, "missing", lambda modules: [])
    monkeypatch.setattr(hearing, "recogniser", Recogniser)
    assert contact.judged(lines, tmp_path) == {"wrong": 2, "words": 8, "judge": "moonshine tiny-en"}
    assert [line.get("wrong") for line in lines] == [0, None, 2]
    assert contact.judged(lines[1:2], tmp_path) == {"not heard": "no line of en was spoken"}


def test_a_refusal_of_fetch_names_its_remedy(
    out: Path, monkeypatch: pytest.MonkeyPatch, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        assert main(words) == 1
        return capsys.readouterr().err.splitlines()[-1].removeprefix("export: ")

    assert told("first-contact", "F6") == told("fetch", "F6")
    with rehearsing(published) as hub:
        hub.gated = "letmein"
        mine, theirs = told(*command(out)), told("fetch", NAME, "--out", str(out / "weights"))
        assert f"{REPOSITORY}/model.safetensors: is gated; accept its terms" in theirs and theirs in mine


@pytest.mark.parametrize("name", KNOWN)
def test_each_row_has_twenty_lines_or_asks_for_them(name: str, tmp_path: Path) -> None:
    languages = KNOWN[name].languages
    try:
        lines = lines_of(languages)
    except ContactFailed as error:
        assert "--lines FILE" in str(error) and languages in {("lv",), ("my",), ("fa",)}
        (tmp_path / "own.txt").write_text("one\n\n two \n")
        assert lines_of(languages, tmp_path / "own.txt") == [(*languages, "one"), (*languages, "two")]
        return
    assert len({text for _, text in lines}) == contact.LINES
    assert {code for code, _ in lines} <= {*languages}
    assert (name != "F5TTS_v1_Base") or {code for code, _ in lines} == {"en", "zh"}


def test_paths_names_and_addresses_leave_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("HOME", str(tmp_path / "houses" / "lovelace"))
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example:8080")
    clean = impersonal({tmp_path / "runs": "OUT"}, ["friend.wav"])
    given = {
        "errors": [f"{tmp_path}/runs/bundle: no", f"{tmp_path}/houses/lovelace/weights"],
        "at": ("by ada of adamant", {"url": "http://mirror.example:8080/x", "to": "192.168.1.7"}),
        "numbers": [1, 2.5, None, True],
        "recordings": ["heart", "friend.wav"],
    }
    assert clean(given) == {
        "errors": ["OUT/bundle: no", "~/weights"],
        "at": ["by … of adamant", {"url": "http://…/x", "to": "…"}],
        "numbers": [1, 2.5, None, True],
        "recordings": ["heart", "…"],
    }
