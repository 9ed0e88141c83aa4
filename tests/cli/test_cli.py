"""The command line as a person uses it, against a running daemon and without one."""

import re
import shutil
import sys
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import soundfile

from appliance import cli
from appliance.box.checks.runner import CHECKS
from appliance.cli import saying
from appliance.client import CallFailed, Client, Credentials, Header, Reply, Timings
from appliance.config import USUAL_NFE
from appliance.contract import bundle
from appliance.engine.backend import HostArray, Tensor
from appliance.engine.ort import OrtBackend
from appliance.engine.tensorrt import gate, trt
from appliance.voices.records import Place
from tests.conftest import Checked
from tests.harness.daemons import (
    BUNDLE,
    Running,
    finished,
    free_port,
    reference_wav,
    shared,
    store_in,
    write_config,
)
from tests.harness.patience import PATIENCE_S
from tests.harness.rows import rows

TEXT = "Thanks for the follow, welcome to the stream."
TRANSCRIPT = "Some call me nature, others call me mother nature."

box = shared(synthesis={"nfe": None})

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit status, output and errors of a command."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(list(map(str, arguments)))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


HOSTILE = "a\x1b]0;owned\x07\x9b31m\u202eb\x7f\r\u2028c"
"""Title of the window, colour, right to left, and back to the line's start."""


def test_nothing_that_is_printed_commands_a_terminal(box: Running, run: Run, tmp_path: Path) -> None:
    at = ("--address", box.address)
    with Client(box.address) as client:
        client.pause(HOSTILE)
        client.add_voice("odd", reference_wav(), f"{TRANSCRIPT} {HOSTILE}", pronunciations={HOSTILE: HOSTILE})
    (tmp_path / "config.yaml").write_text('server: {"a\\e[31m": 1}\n')
    printed = [
        run(*command)
        for command in (
            ("queue", "list", *at),
            ("queue", "pause", HOSTILE, *at),
            ("voices", "list", *at),
            ("voices", "show", "odd", *at),
            ("voices", "show", HOSTILE, *at),
            ("say", "Hi.", "--voice", HOSTILE, "--out", tmp_path / "x.wav", *at),
            ("cancel", HOSTILE, *at),
            ("admin", "status", "--socket", tmp_path / HOSTILE),
            ("bundle", "list", "--config", tmp_path / "config.yaml"),
        )
    ]
    reply = Reply(b"", Header(text=HOSTILE, voice=HOSTILE, sample_rate_hertz=24_000), Timings(), 1.0, 1.0)
    printed.append((0, saying.table(reply), ""))
    for _, out, err in printed:
        for line in (out + err).split("\n"):
            assert line.isprintable(), line
    assert "paused: a" in printed[0][1] and "owned" in printed[0][1]
    assert all(out + err for _, out, err in printed[2:])


def test_a_terminal_that_lacks_a_letter_gets_a_mark(box: Running, tmp_path: Path) -> None:
    say = ("say", TEXT, "--voice", "ann", "--table", "--out", tmp_path / "a.wav", "--address", box.address)
    done = finished(sys.executable, "-m", "appliance", *say, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "NFE ? seed" in done.stdout


def test_a_reader_that_has_enough_is_no_error(box: Running) -> None:
    command = f"{sys.executable} -m appliance voices list --address {box.address}"
    done = finished("bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}")
    assert done.stderr == "" and done.stdout.strip() in ("0", "1")


@pytest.mark.parametrize("stream", [False, True])
def test_say_writes_a_wav_and_prints_the_table(box: Running, run: Run, tmp_path: Path, stream: bool) -> None:
    out = tmp_path / "out.wav"
    address = f"unix:{box.folder}/grpc.sock" if stream else box.address
    options = ["--voice", "ann", "--out", out, "--seed", "3", "--table", "--address", address]
    code, printed, _ = run("say", TEXT, *options, *(["--stream"] if stream else []))
    assert code == 0
    first, *rows = printed.splitlines()
    assert first == str(out)
    table = {name: value.strip() for name, value in (row.split("  ", 1) for row in rows)}
    assert table["text"] == TEXT
    assert table["NFE · seed"] == f"{USUAL_NFE} · 3"
    for name in ("wall", "time to first audio", "real-time factor", "condition", "steps", "vocoder"):
        assert float(table[name].split()[0]) >= 0.0
    with wave.open(str(out)) as audio:
        assert table["audio"] == f"{audio.getnframes() / audio.getframerate():.2f} s"
        assert audio.getnframes() > 24_000


@pytest.mark.parametrize(("name", "kind", "stream"), [
    ("a.flac", "FLAC", True), ("a.mp3", "MP3", False), ("a.opus", "OGG", True), ("a.OGG", "OGG", False),
])  # fmt: skip
def test_say_writes_files(box: Running, run: Run, tmp_path: Path, name: str, kind: str, stream: bool) -> None:
    out = tmp_path / name
    options = ["--voice", "ann", "-o", out, "--address", box.address]
    assert run("say", TEXT, *options, *(["--stream"] if stream else []))[0] == 0
    assert soundfile.info(out).format == kind
    assert run("say", TEXT, *options, "--encoding", "mulaw", "--rate", "8000")[0] == 0
    assert out.read_bytes()[:4] not in (b"fLaC", b"OggS")
    assert run("say", TEXT, *options, "-o", "/dev/null")[:2] == (0, "/dev/null\n")


def test_a_wrong_option_shows_its_own_commands_usage(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("admin", "swap", "bundle", "--bogus")
    assert capsys.readouterr().err.startswith("usage: appliance admin swap ")


@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "say_refused.jsonl"))
@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_say_names_the_error_and_writes_nothing(
    box: Running, run: Run, tmp_path: Path, arguments: list[str], message: str, stream: bool
) -> None:
    options = [argument.format(tmp_path) for argument in arguments] + ["--stream"] * stream
    code, _, error = run("say", TEXT, "--out", tmp_path / "a.wav", "--address", box.address, *options)
    assert code == 1
    assert error.startswith("appliance say: ") and message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_pause_is_silent_and_words_are_timed_around_it(box: Running, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    document = "<speak>Hello there, Ann.<break time='1.5s'/>Good day to you.</speak>"
    options = ["--voice", "ann", "--text-handling", "ssml", "--seed", "3", "--address", box.address]
    for stream in ([], ["--stream"]):
        assert run("say", document, "--out", out, *options, *stream)[0] == 0
        with wave.open(str(out)) as audio:
            samples = np.frombuffer(audio.readframes(10**9), np.int16)
        silent = np.flatnonzero(np.convolve(samples != 0, np.ones(36_000, int), "valid") == 0)
        assert len(silent) >= 1
    with Client(box.address) as client:
        more: dict[str, Any] = {"text_handling": "ssml", "word_timings": True, "encoding": "pcm16"}
        reply = client.speak(document, "ann", seed=3, **more)
    assert reply.audio == samples.tobytes()
    begin_s = silent[0] / 24_000
    ann, good = reply.words[2], reply.words[3]
    assert (ann.word, good.word, ann.segment + 1) == ("Ann.", "Good", good.segment)
    assert ann.end_s <= begin_s + 0.01 and good.start_s >= begin_s + 1.49


def test_say_sends_options_cancel_its_id(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MagicMock()
    client.return_value.__enter__.return_value = client
    client.speak.return_value = Reply(b"", Header(sample_rate_hertz=24_000), Timings(), 0.1, 0.1)
    monkeypatch.setattr("appliance.client.Client", client)
    options = ["--priority", "high", "--channel", "chat", "--user", "u1", "--supersede", "score"]
    options += ["--queue-timeout", "2.5", "--min-nfe", "3", "--request-id", "r-1", "--timeout", "9"]
    options += ["--text-handling", "ssml", "--pronounce", "Xx=x", "--pronounce", "a=b=c"]
    options += ["--segmentation", "low-latency", "--out", tmp_path / "out.wav", "--voice", "ann"]
    assert run("say", TEXT, *options)[0] == 0
    (spoken, sent) = client.speak.call_args
    assert spoken == (TEXT, "ann")
    assert {name: value for name, value in sent.items() if value is not None} == {
        **{"encoding": "pcm16", "priority": "high", "channel": "chat", "user": "u1", "supersede": "score"},
        **{"queue_timeout": 2.5, "min_nfe": 3, "request_id": "r-1", "segmentation": "low_latency"},
        **{"text_handling": "ssml", "pronunciations": {"Xx": "x", "a": "b=c"}, "timeout": 9.0},
    }
    assert run("cancel", "r-1", "--address", "unix:/x") == (0, "", "")
    client.assert_called_with("unix:/x", Credentials())
    client.cancel.assert_called_once_with("r-1")


def test_the_queue_from_the_shell(box: Running, run: Run) -> None:
    at = ("--address", box.address)
    assert run("queue", "pause", "stage", *at) == (0, "", "")
    with Client(box.address) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.speak, TEXT, "ann", channel="stage", request_id="later", user="ann")
        next(event for event in client.watch("stage") if event.utterances)
        code, output, _ = run("queue", "list", *at)
        assert code == 0 and re.fullmatch(
            rf"later +stage +WAITING +\+\d\.\d s  {re.escape(TEXT)}\npaused: stage\n", output
        )
        assert run("queue", "list", "other", *at) == (0, "", "")
        assert run("queue", "cancel", "--user", "bob", *at) == (0, "", "")
        code, _, error = run("queue", "cancel", *at)
        assert code == 1 and "INVALID_ARGUMENT" in error
        code, output, _ = run("queue", "clear", "stage", *at)
        assert code == 0 and output.startswith("later ")
        with pytest.raises(CallFailed, match="cleared"):
            waiting.result(PATIENCE_S)
    assert run("queue", "resume", "stage", *at) == (0, "", "")


def test_lines_are_approved_from_the_shell(box: Running, run: Run) -> None:
    at = ("--address", box.address)
    assert run("queue", "moderate", "stage", *at) == (0, "", "")
    with Client(box.address) as client, ThreadPoolExecutor(3) as pool:
        lines = {}
        for name in ("good", "bad", "late"):
            lines[name] = pool.submit(client.speak, TEXT, "ann", channel="stage", request_id=name)
            next(e for e in client.watch("stage") if name in [u.request_id for u in e.utterances])
        _, output, _ = run("queue", "list", *at)
        held = "".join(rf"{name} +stage +HELD +{re.escape(TEXT)}\n" for name in lines)
        assert re.fullmatch(rf"{held}moderated: stage\n", output)
        assert run("queue", "reject", "stage", "bad", *at)[1].startswith("bad ")
        code, output, _ = run("queue", "approve", "stage", "good", *at)
        assert code == 0 and re.match("good +stage +(WAITING|SOUNDING) ", output)
        assert lines["good"].result(PATIENCE_S).audio
        assert run("queue", "unmoderate", "stage", *at) == (0, "", "")
        assert run("queue", "approve", "stage", *at)[1].startswith("late ")
        assert lines["late"].result(PATIENCE_S).audio
        with pytest.raises(CallFailed, match="rejected"):
            lines["bad"].result(PATIENCE_S)


@pytest.mark.parametrize("address", ["", "nosuch.invalid:50051", "unix:/nowhere/grpc.sock"])
def test_no_daemon(address: str, run: Run) -> None:
    address = address or f"127.0.0.1:{free_port()}"
    code, _, error = run("voices", "list", "--address", address)
    assert code == 1
    assert error == f"appliance voices: no daemon answers at {address}; start one with `appliance serve`\n"


def fields_of(shown: str) -> dict[str, str]:
    """Values in the output of `voices show`, by name."""
    return dict(line.split(maxsplit=1) for line in shown.splitlines() if len(line.split()) > 1)


def test_voices_from_add_to_remove(box: Running, run: Run, tmp_path: Path) -> None:
    audio = tmp_path / "bea.wav"
    audio.write_bytes(reference_wav(4.0))
    at = ["--address", box.address]
    words = ["--transcript", TRANSCRIPT, "--consent", "Bea agreed."]
    assert run("voices", "add", "bea", audio, *words, "--validate-only", *at)[0] == 0
    assert "bea" not in run("voices", "list", *at)[1]
    assert run("voices", "add", "bea", audio, *words, *at)[0] == 0
    assert [line.split()[0] for line in run("voices", "list", *at)[1].splitlines()] == ["ann", "bea"]
    shown = fields_of(run("voices", "show", "bea", *at)[1])
    assert (shown["transcript"], shown["consent_note"]) == (TRANSCRIPT, "Bea agreed.")
    assert run("voices", "remove", "bea", *at) == (0, "", "")
    code, _, error = run("voices", "show", "bea", *at)
    assert (code, error) == (1, "appliance voices: no voice is named 'bea'; those here are ann (NOT_FOUND)\n")
    code, _, error = run("voices", "add", "bea", "/nowhere.wav", *words, *at)
    assert (code, error) == (1, "appliance voices: /nowhere.wav: No such file or directory\n")


def test_a_style_from_add_to_remove(box: Running, run: Run, tmp_path: Path) -> None:
    audio, out = tmp_path / "happy.wav", tmp_path / "out.wav"
    audio.write_bytes(reference_wav(2.5))
    at = ["--address", box.address]
    add = ["voices", "add", "ann", audio, "--style", "happy", "--transcript", "I am glad.", *at]
    assert run(*add, "--validate-only")[0] == 0
    assert "happy" not in run("voices", "list", *at)[1]
    assert run(*add, "--consent", "Ann agreed.")[0] == 0
    rows = [line.split()[0] for line in run("voices", "list", *at)[1].splitlines()]
    assert rows == ["ann", "[happy]"]
    of_style = fields_of(run("voices", "show", "ann", *at)[1].partition("[happy]\n")[2])
    told = tuple(of_style[name] for name in ("transcript", "consent_note", "state"))
    assert told == ("I am glad.", "Ann agreed.", "READY")
    say = ["say", "Hi there, everyone.", "--voice", "ann", "--seed", "1", "--nfe", "1", "-o", out, *at]
    assert run(*say)[0] == 0
    own = out.read_bytes()
    assert run(*say, "--style", "happy")[0] == 0 and out.read_bytes() != own
    code, _, error = run(*say, "--style", "angry")
    assert code == 1 and "style: voice 'ann' has no style 'angry'; it has neutral, happy" in error
    code, _, error = run(*add, "--display-name", "Ann")
    assert code == 1 and "--display-name and --pronounce are a voice's" in error
    assert run("voices", "remove", "ann", "--style", "happy", *at) == (0, "", "")
    code, _, error = run("voices", "remove", "ann", "--style", "happy", *at)
    assert code == 1 and "no style 'happy'; it has neutral (NOT_FOUND)" in error


def test_check_next_to_a_running_daemon(box: Running, checked: Checked, run: Run) -> None:
    _, found = checked(box.folder / "config.yaml")
    well = ["config", "bundle", "voices", "daemon", "listening"]
    assert {found[name]["level"] for name in (*well, "synthesis")} == {"PASS"}, found
    assert "1 readable" in found["voices"]["value"]
    assert found["synthesis"]["figures"]["audio_s"] > 0.2
    assert found["synthesis"]["figures"]["peak"] > 0
    assert {finding["value"] for name, finding in found.items() if name in CHECKS} >= {"not a Jetson"}
    for name in ("disk", "memory", "time"):
        assert found[name]["level"] != "SKIP", "they need no Jetson"
    config = ("--config", box.folder / "config.yaml")
    code, printed, _ = run("check", *config, "--only", "application", "--no-speak")
    *rows, last = printed.splitlines()
    passed = [["PASS", name] for name in well]
    assert [line.split()[:2] for line in rows] == [*passed, ["SKIP", "engines:"]]
    assert (code, last) == (0, "5 PASS · 1 SKIP")


def test_check_names_missing_parts(checked: Checked, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    voice = tmp_path / "voices" / "ann"
    voice.mkdir(parents=True)
    (voice / "voice.yaml").write_text("name: ann\n")
    code, found = checked(config, "--only", "application")
    assert code == 2
    levels = {"config": "PASS", "bundle": "PASS", "voices": "FAIL", "engines": "SKIP"}
    levels |= {"daemon": "FAIL", "synthesis": "FAIL", "listening": "FAIL"}
    assert {name: finding["level"] for name, finding in found.items()} == levels
    assert "missing key transcript" in found["voices"]["value"]
    assert "appliance voices remove" in found["voices"]["remedy"]
    assert "start it with `appliance serve`" in found["daemon"]["remedy"]
    absent, found = checked(config, "--only", "daemon")
    assert (absent, list(found)) == (2, ["daemon"])


@pytest.mark.parametrize("quick", [True, False])
def test_check_of_a_damaged_bundle(checked: Checked, tmp_path: Path, quick: bool) -> None:
    """Hashes find every damage; --quick finds only a changed size."""
    copy = tmp_path / "bundle"
    shutil.copytree(BUNDLE, copy)
    config = write_config(tmp_path, copy)
    options = ("--only", "bundle", *(["--quick"] if quick else []))
    weights = copy / "step.onnx.data"
    flipped = bytearray(weights.read_bytes())
    flipped[100] ^= 1
    weights.write_bytes(flipped)
    assert checked(config, *options)[0] == (0 if quick else 2)
    weights.write_bytes(flipped[:-1])
    code, found = checked(config, *options)
    assert code == 2
    assert "step.onnx.data" in found["bundle"]["value"]
    assert "copy the bundle again" in found["bundle"]["remedy"]
    (copy / "manifest.yaml").unlink()
    assert checked(config, "--only", "voices")[1]["voices"]["level"] == "SKIP"


MODE = "device:\n  power_mode: "


@pytest.mark.parametrize(("text", "level", "words"), [
    ("server: {listn: x}", "FAIL", "unknown key listn"),
    ("engine: {backend: openvino}", "WARN", "engine.backend: openvino was removed in 0.25"),
    # Root's commands have no YAML library: they read this key line by line.
    *((f"{MODE}{name}\n", "PASS", "") for name in ("MODE_50W", "MODE_STUDIO-45W", "X_45.5W")),
    ("device: {power_mode: MODE_50W}", "FAIL", "device.power_mode: must be written as `device:`"),
    (f"{MODE}MODE 50W", "FAIL", "must be the name of a power mode"),
])  # fmt: skip
def test_check_of_a_config(checked: Checked, tmp_path: Path, text: str, level: str, words: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    _, found = checked(path, "--only", "config" if level != "FAIL" else "application")
    assert (list(found), found["config"]["level"]) == (["config"], level) and words in found["config"][
        "value"
    ]


def test_check_of_a_config_that_is_not_there(checked: Checked, tmp_path: Path) -> None:
    for only in ("config", "daemon"):
        code, found = checked(tmp_path / "nowhere.yaml", "--only", only)
        assert (code, found["config"]["remedy"].startswith("name an existing file: --config ")) == (2, True)


class Rounding(OrtBackend):
    """A runtime that rounds its inputs to float16."""

    name = label = "tensorrt"

    def upload(self, array: HostArray, to: Tensor) -> None:
        super().upload(array.astype(np.float16) if array.dtype == np.float32 else array, to)


@pytest.mark.parametrize(("backend", "allowed", "level"), [
    ("tensorrt", 0.25, "PASS"), ("tensorrt", 0.0, "FAIL"), ("ort-cpu", 0.0, "SKIP"),
])  # fmt: skip
def test_check_of_arithmetic_that_is_not_the_cpus(
    checked: Checked, tmp_path: Path, monkeypatch: Any, backend: str, allowed: float, level: str
) -> None:
    monkeypatch.setattr(trt, "TrtBackend", lambda *_, **__: Rounding(1))
    monkeypatch.setattr(gate, "ALLOWED_SHARE", allowed)
    config = write_config(tmp_path, engine={"backend": backend})
    store_in(tmp_path).create(Place("ann"), reference_wav(), TRANSCRIPT)
    finding = checked(config, "--only", "precision")[1]["precision"]
    assert finding["level"] == level, finding
    if level != "SKIP":
        assert 1e-5 < finding["figures"]["share"] < 0.25
        assert finding["value"].endswith("on tensorrt")


def test_check_of_the_unreadable(checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreadable files are skipped, not failed: a person without root gets the findings that need no root."""
    config = write_config(tmp_path)

    def refuse(self: Path, *arguments: Any, **options: Any) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    code, found = checked(config, "--only", "config,bundle,voices")
    assert code == 0
    assert {finding["level"] for finding in found.values()} == {"SKIP"}
    assert {"needs root" in finding["value"] for finding in found.values()} == {True}


def test_a_jetson_that_speaks_from_its_cpu_fails(
    box: Running, checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "proc/device-tree"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0")
    monkeypatch.setenv("F5_SYSROOT", str(tmp_path))
    code, found = checked(box.folder / "config.yaml", "--only", "synthesis")
    assert (code, found["synthesis"]["level"]) == (2, "FAIL")
    value, passed_over = found["synthesis"]["value"], found["synthesis"]["figures"]["passed_over"]
    assert [*passed_over] == ["tensorrt", "ort-cuda"]
    why = "; ".join(f"{name} passed over: {reason}" for name, reason in passed_over.items())
    assert value.endswith(f" on ort-cpu, which is the CPU; {why}")
    assert "python3-libnvinfer" in found["synthesis"]["remedy"]


def test_check_of_what_there_is_not(run: Run) -> None:
    code, _, error = run("check", "--only", "daemon,weather")
    assert (code, error) == (2, "appliance check: no check is called weather\n")


def test_synthesis_without_a_voice(box: Running, checked: Checked) -> None:
    with Client(box.address) as client:
        client.remove_voice("ann")
    code, found = checked(box.folder / "config.yaml", "--only", "synthesis")
    assert (code, found["synthesis"]["level"]) == (0, "SKIP")
    assert "no voice is stored" in found["synthesis"]["value"]


def test_the_probe_abstains_during_others_speech(box: Running, checked: Checked) -> None:
    def synthesis() -> tuple[str, str]:
        found = checked(box.folder / "config.yaml", "--only", "synthesis")[1]["synthesis"]
        return found["level"], found["value"]

    # Over 20 s of audio: playback outlasts synthesis by far.
    text = " ".join([TEXT] * 12)
    with Client(box.address) as client:
        client.stream(text, "ann", channel="stage").reply()
        assert client.utterances("stage"), "no longer heard: the text is too short for this machine"
        level, value = synthesis()
        assert (level, "not disturbed" in value) == ("SKIP", True), value
        client.pause("stage")
        client.moderate("door")
        held = client.stream(TEXT, "ann", channel="door")
        next(iter(held))  # the header comes after the admission
        assert synthesis()[0] == "PASS", "what is paused or held does not keep the engine busy"
        held.cancel()


@pytest.fixture
def case(tmp_path: Path) -> Path:
    mels = bundle.read(BUNDLE).manifest.mel.mels
    draw = np.random.default_rng(7)
    path = tmp_path / "case.npz"
    np.savez(
        path,
        cond=draw.standard_normal((1, 21, mels), dtype=np.float32),
        ids=np.array([[3, 1, 4, 1, 5]], np.int64),
        n_frames=np.int64(64),
        noise=draw.standard_normal((64, mels), dtype=np.float32),
    )
    return path


def test_replay_without_nfe_takes_the_usual_number(run: Run, tmp_path: Path, case: Path) -> None:
    written = {}
    for name, more in {"absent": [], "same": ["--nfe", USUAL_NFE], "other": ["--nfe", 5]}.items():
        out = tmp_path / f"{name}.npz"
        assert run("replay", str(BUNDLE), str(case), "--out", out, *more)[0] == 0
        with np.load(out) as arrays:
            written[name] = {key: arrays[key] for key in arrays.files}
    with np.load(case) as given:
        np.testing.assert_array_equal(written["absent"]["mel"][:21], given["cond"][0])
    assert written["absent"]["mel"].shape[0] == 64
    for key in ("mel", "wave"):
        np.testing.assert_array_equal(written["absent"][key], written["same"][key])
        assert not np.array_equal(written["absent"][key], written["other"][key])


def test_replay_of_a_case_that_lacks_something(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "case.npz", cond=np.zeros((1, 3, 100), np.float32))
    arguments = ("replay", str(BUNDLE), tmp_path / "case.npz", "--out", tmp_path / "out.npz")
    code, _, error = run(*arguments)
    assert code == 1
    assert "lacks ids, n_frames, noise" in error


def test_python_m_appliance_helps() -> None:
    helped = finished(sys.executable, "-m", "appliance", "--help")
    assert helped.returncode == 0
    for command in ("serve", "say", "cancel", "queue", "voices", "admin", "check", "replay", "bench"):
        assert command in helped.stdout


def test_a_table_without_audio() -> None:
    assert "no audio" in saying.table(Reply(b"", Header(), Timings(), 0.1, 0.0))


OURS = ("appliance.config", "appliance.box.checks", "appliance.client.aio")
HEAVY = ("numpy", "yaml", "onnxruntime", "soundfile", *OURS)


@pytest.mark.parametrize(("command", "also"), [
    (["--help"], ["grpc"]),
    (["say", "Hi.", "--voice", "a", "--out", "/nowhere/a.wav"], []),
    (["voices", "list"], []),
])  # fmt: skip
def test_a_command_imports_nothing_of_the_others(command: list[str], also: list[str]) -> None:
    arguments = command if "--help" in command else [*command, "--address", f"127.0.0.1:{free_port()}"]
    code = (
        "import contextlib, sys; from appliance import cli\n"
        f"with contextlib.suppress(SystemExit): cli.main({arguments})\n"
        f"print('imported:', *{{*{[*HEAVY, *also]}}} & set(sys.modules))"
    )
    assert finished(sys.executable, "-c", code).stdout.splitlines()[-1].split(":")[1] == ""
