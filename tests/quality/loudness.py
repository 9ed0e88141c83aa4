"""How loud a daemon's replies are by ffmpeg's ebur128, with and without a target: a table.

    python -m tests.quality.loudness

Four voices: the demo's two, one of them 20 dB quieter and 7 % lower, the other 4 dB louder and a tenth
higher. Each speaks 40 lines whole, and every four of them as one streamed text; two daemons take turns.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
import soxr

from appliance.client import Client, Piece
from appliance.client.messages import Event, Reply
from appliance.engine.cases import FEMALE, MALE
from tests.daemons import DEMO, running
from tests.sounds import to_file

LINES = [
    line
    for name in ("lines.txt", "chat-lines.txt")
    for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()[:20]
]
TOGETHER = 4
VOICES = {
    MALE: (MALE, 0.0, 1.0),
    FEMALE: (FEMALE, 0.0, 1.0),
    "quiet": (MALE, -20.0, 0.93),
    "high": (FEMALE, 4.0, 1.1),
}
"""Name → (recording, dB, pitch)."""
LEVELS: dict[str, float | None] = {"made": None, "-18": -18.0}
FADE_S, NEAR_S = 0.15, 0.005


@dataclass
class Figures:
    lufs: list[float] = field(default_factory=list)
    peaks_db: list[float] = field(default_factory=list)
    steps_lu: list[float] = field(default_factory=list)
    """Between neighbouring segments."""
    bends: list[float] = field(default_factory=list)
    """Sharpest one around a join, as a share of the reply's sharpest elsewhere."""
    first_ms: list[float] = field(default_factory=list)
    join_us: list[float] = field(default_factory=list)
    """For a second of audio: level, cross-fade and rate."""

    def add(self, reply: Reply) -> None:
        lufs, peak_db = by_ffmpeg(reply.audio, reply.header.sample_rate_hertz)
        self.lufs.append(lufs)
        self.peaks_db.append(peak_db)
        self.first_ms.append(reply.timings.first_audio_ms)
        self.join_us.append(1e6 * reply.timings.join_ms / reply.timings.audio_ms)

    def add_joins(self, reply: Reply, starts: Sequence[int]) -> None:
        """`starts`: first samples of the second and later segments, where their cross-fades begin."""
        samples, rate_hz = np.frombuffer(reply.audio, "<i2"), reply.header.sample_rate_hertz
        parts = [part for part in np.split(samples, starts) if len(part) > rate_hz / 2]
        self.steps_lu += np.abs(np.diff([by_ffmpeg(part.tobytes(), rate_hz)[0] for part in parts])).tolist()
        bends = np.abs(np.diff(samples.astype(np.float32), 2))
        near = np.zeros(len(bends), bool)
        for start in starts:
            near[start - round(NEAR_S * rate_hz) : start + round((FADE_S + NEAR_S) * rate_hz)] = True
        if near.any():
            self.bends.append(float(bends[near].max() / bends[~near].max()))

    def __str__(self) -> str:
        return (
            f"{len(self.lufs):7} {min(self.lufs):12.1f} {max(self.lufs):5.1f} {max(self.peaks_db):5.1f}"
            f" {np.median(self.steps_lu):13.1f} {max(self.steps_lu):5.1f} {max(self.bends):6.2f}"
            f" {np.median(self.first_ms):9.0f} {np.median(self.join_us):8.0f}"
        )


def by_ffmpeg(pcm16: bytes, rate_hz: int) -> tuple[float, float]:
    """Integrated loudness in LUFS, and true peak in dBFS, of one channel of 16-bit samples."""
    read = f"ffmpeg -hide_banner -nostats -f s16le -ar {rate_hz} -ac 1 -i -".split()
    meter = ["-af", "aresample=48000,ebur128=peak=true:framelog=verbose", "-f", "null", "-"]
    ran = subprocess.run([*read, *meter], input=pcm16, capture_output=True, check=True)
    summary = ran.stderr.decode().rpartition("Summary:")[2]
    found = re.search(r"I:\s*(\S+) LUFS.*Peak:\s*(\S+) dBFS", summary, re.DOTALL)
    assert found, summary
    return float(found[1]), float(found[2])


def add_voices(client: Client) -> None:
    for name, (recording, gain_db, pitch) in VOICES.items():
        path = DEMO / "voices" / f"{recording}.wav"
        samples, rate_hz = soundfile.read(path, dtype="float32")
        changed = 10 ** (gain_db / 20) * soxr.resample(samples, rate_hz * pitch, rate_hz)
        audio = to_file(np.clip(changed, -1, 1)[:, None], rate_hz)
        client.add_voice(name, audio, path.with_suffix(".txt").read_text("utf-8"))


def stream(client: Client, text: str, voice: str, seed: int) -> tuple[Reply, list[int]]:
    """A reply in short segments, and the first samples of all but the first."""
    pieces: list[Piece] = []

    def keep(event: Event) -> None:
        if isinstance(event, Piece):
            pieces.append(event)

    reply = client.stream(text, voice, seed=seed, segmentation="low_latency").reply(keep)
    firsts = {piece.segment: piece.sample_offset for piece in reversed(pieces)}
    return reply, sorted(firsts.values())[1:]


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        running(Path(one), speaks_from=DEMO / "bundle", audio={"loudness_lufs": None}) as made,
        running(Path(other), speaks_from=DEMO / "bundle", audio={"loudness_lufs": -18.0}) as levelled,
        Client(made.address) as left,
        Client(levelled.address) as right,
    ):
        clients = dict(zip(LEVELS, (left, right), strict=True))
        for client in clients.values():
            add_voices(client)
        print("voice  level  replies  LUFS: least  most  peak  step: median  most   bend  first ms  join us")
        for voice in VOICES:
            found = {level: Figures() for level in LEVELS}
            for seed, line in enumerate(LINES):
                for level in list(LEVELS)[:: -1 if seed % 2 else 1]:
                    found[level].add(clients[level].speak(line, voice, seed=seed, encoding="pcm16"))
            for seed in range(0, len(LINES), TOGETHER):
                for level, client in clients.items():
                    reply, starts = stream(client, " ".join(LINES[seed : seed + TOGETHER]), voice, seed)
                    found[level].add(reply)
                    found[level].add_joins(reply, starts)
            for level, figures in found.items():
                print(f"{voice:6} {level:5} {figures}", flush=True)


if __name__ == "__main__":
    main()
