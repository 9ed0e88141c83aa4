"""`say --play`, and lines of standard input; a fake aplay stores the bytes that it gets."""

import io
import sys
from pathlib import Path

import pytest

from appliance import cli
from appliance.client import Client
from tests.harness.daemons import Running, shared

TEXT = "Thanks for the follow, welcome to the stream."

box = shared()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the arguments of aplay in one line, followed by the bytes that it got."""
    kept = tmp_path / "played"
    _aplay(tmp_path, f'echo "$@" > {kept}; exec cat >> {kept}', monkeypatch)
    return kept


def _aplay(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin/aplay"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def say(box: Running, *arguments: str) -> int:
    return cli.main(["say", *arguments, "--voice", "ann", "--address", box.address])


def spoken(box: Running, text: str) -> bytes:
    with Client(box.address) as client:
        return client.stream(text, "ann", seed=3).reply().audio


def test_the_played_bytes_are_the_spoken_ones(box: Running, played: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.pcm"
    assert say(box, TEXT, "--play", "--seed", "3", "-o", str(out)) == 0
    arguments, audio = played.read_bytes().split(b"\n", 1)
    assert audio == out.read_bytes() == spoken(box, TEXT)
    assert {b"--format=S16_LE", b"--rate=24000", b"--channels=1"} <= set(arguments.split())


def test_lines_play_in_order_and_a_failed_line_is_skipped(
    box: Running, played: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["One, two.", "", "x" * 100_000, TEXT]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert say(box, "--play", "--seed", "3") == 1
    assert played.read_bytes().split(b"\n", 1)[1] == spoken(box, lines[0]) + spoken(box, TEXT)
    error = capsys.readouterr().err
    assert error.startswith("appliance say: ") and error.endswith("(INVALID_ARGUMENT)\n")
    assert len(error.splitlines()) == 1


def test_a_player_that_fails_is_named(
    box: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _aplay(tmp_path, 'echo "aplay: main:831: audio open error: No such device" >&2; exit 1', monkeypatch)
    assert say(box, TEXT, "--play") == 1
    assert capsys.readouterr().err == "appliance say: aplay: main:831: audio open error: No such device\n"
    (tmp_path / "bin/aplay").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert say(box, TEXT, "--play") == 1
    assert "install aplay (Debian: alsa-utils)" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    ((TEXT,), "--play, --out FILE, or both"),
    ((), "lines of standard input can only be played: add --play"),
    (("--play", "--out", "a.wav"), "--out needs a TEXT"),
    ((TEXT, "--play", "--out", "a.mp3"), "--play plays WAV and PCM16, not mp3"),
])  # fmt: skip
def test_say_requires_a_destination(
    box: Running, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(box, *arguments) == 1
    assert message in capsys.readouterr().err
