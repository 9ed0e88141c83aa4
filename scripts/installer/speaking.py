"""The proof at the end: services, a voice, a spoken sentence, the speed it had, and health."""

from __future__ import annotations

import tempfile
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.box.tools import Ran
from scripts.installer.actions import Action, Failure, Tell
from scripts.installer.layout import BASELINES, CLOCKS, CURRENT, SERVICE
from scripts.installer.releases import linked
from scripts.installer.source import Source
from scripts.installer.system import of_release, startable, systemctl
from scripts.installer.target import Target

SENTENCE = "This box is installed, and it speaks."
TONE = ("tone", "These are tones and pauses, not words.")
SHORT_S = 60.0
LONG_S = 600.0
LOOK = f"see `journalctl -u {SERVICE}`, then run this again"


@dataclass(frozen=True)
class Voice:
    """A reference voice to register."""

    name: str
    audio: Path
    transcript: str
    """What is said in it, or a file that holds that."""

    @property
    def words(self) -> str:
        """What is said in it. Raises OSError."""
        path = Path(self.transcript)
        named = len(self.transcript) < 200 and path.suffix == ".txt" and path.is_file()
        return path.read_text("utf-8").strip() if named else self.transcript


def actions(
    target: Target, source: Source, voice: Voice | None, tell: Tell, *, changed: bool = False
) -> Iterator[Action]:
    """What is done once a release is in place and its daemon ready.

    What this run `changed` is heard at its end, and so is a voice that it added.
    """
    tools = target.box.tools
    had = not changed and _has_voice(target, voice)
    yield Action(
        "clocks",
        "pin the clocks",
        lambda: tools.find("jetson_clocks") is None or tools.run("systemctl", "is-active", CLOCKS).code == 0,
        lambda: _pin(target, tell),
    )
    yield Action(
        "services",
        "start the services and timers",
        lambda: not _inactive(target),
        lambda: systemctl(target, "start", *_inactive(target)),
        LOOK,
    )
    yield Action(
        "voice",
        f"register the voice {voice.name}" if voice else "register a first voice, if there is none",
        lambda: _has_voice(target, voice),
        lambda: _add_voice(target, source, voice, tell),
        LOOK,
    )
    yield Action(
        "sentence",
        "speak a sentence",
        lambda: had and _has_baseline(target),
        lambda: _speak(target, tell),
        LOOK,
    )
    yield Action(
        "speed",
        "keep how fast it speaks as this box's measure",
        lambda: _has_baseline(target),
        lambda: _measure(target, tell),
        LOOK,
    )


def health(target: Target, tell: Tell) -> int:
    """Print health; its exit status, 2 when something fails."""
    ran = target.box.tools.run(str(target.box.root.at(f"{CURRENT}/scripts/health")), timeout_s=LONG_S)
    tell(ran.text.rstrip() or ran.told)
    return ran.code


def _inactive(target: Target) -> list[str]:
    """Units that should be active now and are not; the clocks' is a step of its own."""
    units = [unit for unit in startable(of_release(target, linked(target))) if unit != CLOCKS]
    states = target.box.tools.run("systemctl", "is-active", *units).output.split()
    active = {unit for unit, state in zip(units, states, strict=False) if state == "active"}
    return [unit for unit in units if unit not in active]


def _pin(target: Target, tell: Tell) -> None:
    try:
        systemctl(target, "start", CLOCKS)
    except Failure as failure:
        # The daemon serves all the same, and says so; what is missing may be a reboot.
        tell(f"clocks: {failure.what}; see `f5-clock-lock status`")


def appliance(target: Target, *arguments: str, timeout_s: float = SHORT_S) -> Ran:
    """Run a command of the current release's command line."""
    python = target.box.root.at(f"{CURRENT}/venv/bin") / "python"
    return target.box.tools.run(str(python), "-I", "-m", "appliance", *arguments, timeout_s=timeout_s)


def _voices(target: Target) -> list[str]:
    ran = appliance(target, "voices", "list")
    return [line.split()[0] for line in ran.output.splitlines() if line.strip()] if ran.code == 0 else []


def _has_voice(target: Target, voice: Voice | None) -> bool:
    present = _voices(target)
    return voice.name in present if voice else bool(present)


def _add_voice(target: Target, source: Source, voice: Voice | None, tell: Tell) -> None:
    if voice is not None:
        _register(target, voice)
        return
    recording = source.recording
    if recording is not None:
        transcript = recording.with_suffix(".txt").read_text("utf-8").strip()
        _register(target, Voice(recording.stem, recording, transcript))
        return
    tell("no voice was given and none comes with this checkout: a tone stands in, which ONLY MAKES NOISE;")
    tell("register a real one with `appliance voices add NAME AUDIO --transcript TEXT`")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tone.wav"
        python = target.box.root.at(f"{CURRENT}/venv/bin") / "python"
        _ran(target.box.tools.run(str(python), "-I", str(source.folder / "scripts" / "tone"), str(path)))
        _register(target, Voice(TONE[0], path, TONE[1]))


def _register(target: Target, voice: Voice) -> None:
    _ran(
        appliance(
            target,
            "voices",
            "add",
            voice.name,
            str(voice.audio),
            "--transcript",
            voice.words,
            timeout_s=LONG_S,
        )
    )


def _speak(target: Target, tell: Tell) -> None:
    out = Path(tempfile.mkdtemp(prefix="f5-first-words-")) / "first-words.wav"
    voices = _voices(target)
    if not voices:
        raise Failure("the daemon names no voice", LOOK)
    _ran(appliance(target, "say", SENTENCE, "--voice", voices[0], "--out", str(out), timeout_s=LONG_S))
    tell(f"spoke {seconds(out):.1f} s with the voice {voices[0]}: {out}")


def _has_baseline(target: Target) -> bool:
    return any(target.at(path).is_file() for path in BASELINES)


def _measure(target: Target, tell: Tell) -> None:
    guard = str(target.box.root.at(f"{CURRENT}/scripts/health"))
    ran = target.box.tools.run(guard, "--guard", "--set-baseline", timeout_s=LONG_S)
    if not _has_baseline(target):
        tell(f"speed: not kept ({ran.told}); once health is green: f5-health --guard --set-baseline")


def seconds(path: Path) -> float:
    """Length of a WAV. Raises Failure when it is none or has no sound in it."""
    try:
        with wave.open(str(path)) as recording:
            frames = recording.readframes(recording.getnframes())
            if any(frames):
                return float(recording.getnframes() / recording.getframerate())
    except (OSError, EOFError, wave.Error) as error:
        raise Failure(f"what was spoken is no recording: {error}", LOOK) from error
    raise Failure("what was spoken is silence", LOOK)


def _ran(ran: Ran) -> None:
    if ran.code:
        raise Failure(ran.text.strip().splitlines()[-1] if ran.text.strip() else ran.told, LOOK)
