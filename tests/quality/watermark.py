"""How surely the watermark is found in the demo's replies, and what it costs them: a table.

    python -m export watermark WHEEL --out watermark
    python -m tests.quality.watermark watermark [--unmarked N] [--marked N] [--judged N]

Replies of both voices to the lines of this folder, of 1 s or longer, at the daemon's loudness.
"""

from __future__ import annotations

import argparse
import io
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
import soundfile

from appliance.audio.encode import Resampler, encode
from appliance.audio.loudness import levelled, true_peak
from appliance.encodings import Encoding
from appliance.engine.watermark import Watermark
from appliance.request import FloatArray, Level
from tests.daemons import DEMO
from tests.quality.judges import Naturalness
from tests.quality.mouth import Mouth, references_in

FILES = ("lines.txt", "chat-lines.txt", "short-lines.txt")
LINES = [line for name in FILES for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]
LEVEL = Level(-18.0)
LEAST_S = 1.0


def coded(encoding: Encoding, rate_hz: int) -> Callable[[FloatArray, int], tuple[FloatArray, int]]:
    def way(samples: FloatArray, made_hz: int) -> tuple[FloatArray, int]:
        data = encode(Resampler(made_hz, rate_hz).push(samples, last=True), encoding, rate_hz)
        return soundfile.read(io.BytesIO(data), dtype="float32")

    return way


WAYS: dict[str, Callable[[FloatArray, int], tuple[FloatArray, int]]] = {
    "as made": lambda samples, rate_hz: (samples, rate_hz),
    "half gain": lambda samples, rate_hz: (samples / 2, rate_hz),
    "Opus, 48 kHz": coded(Encoding.OGG_OPUS, 48_000),
    "MP3": coded(Encoding.MP3, 24_000),
    "first second": lambda samples, rate_hz: (samples[:rate_hz], rate_hz),
}


def replies(mouth: Mouth, count: int) -> Iterator[FloatArray]:
    """(samples,) of `count` replies, each of its own line, voice and seed."""
    voices = list(references_in(DEMO / "voices"))
    made = 0
    for seed, (line, voice) in enumerate(itertools.cycle(itertools.product(LINES, voices))):
        if made == count:
            return
        samples = mouth.speak(line, voice, seed=seed, segmentation="low_latency")
        if len(samples) >= LEAST_S * mouth.rate_hz:
            made += 1
            yield levelled(samples, mouth.rate_hz, LEVEL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("watermark", type=Path)
    for name, count in (("unmarked", 1_000), ("marked", 200), ("judged", 60)):
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N")
    asked = parser.parse_args()
    watermark = Watermark(asked.watermark, 1)
    with (
        tempfile.TemporaryDirectory() as work,
        Mouth(DEMO / "bundle", references_in(DEMO / "voices"), Path(work), threads=1, variant=None) as mouth,
    ):
        plain = [watermark.confidence(sound, mouth.rate_hz) for sound in replies(mouth, asked.unmarked)]
        wrong = sum(found >= watermark.manifest.threshold for found in plain)
        print(f"unmarked: {wrong} of {len(plain)} found, confidence at most {max(plain):.2f}", flush=True)
        before = list(replies(mouth, asked.judged))
        mouth.watermark(watermark)
        marked = list(replies(mouth, asked.marked))
        for way, change in WAYS.items():
            found = [watermark.confidence(*change(sound, mouth.rate_hz)) for sound in marked]
            right = sum(one >= watermark.manifest.threshold for one in found)
            print(f"{way}: {right} of {len(found)} found, confidence at least {min(found):.2f}", flush=True)
        peak_db = 20 * np.log10(max(true_peak(sound, mouth.rate_hz) for sound in marked))
        print(f"true peak at most {peak_db:.2f} dB", flush=True)
        begun = time.process_time()
        for sound in marked:
            watermark.embed(sound)
        spent_s, audio_s = time.process_time() - begun, sum(map(len, marked)) / mouth.rate_hz
        print(f"CPU: {spent_s / audio_s:.4f} s a second", flush=True)
        judge = Naturalness()
        scores = [
            [judge.score(sound, mouth.rate_hz) for sound in sounds[: asked.judged]]
            for sounds in (before, marked)
        ]
        print("naturalness: {:.2f} without, {:.2f} with".format(*map(fmean, scores)))


if __name__ == "__main__":
    main()
