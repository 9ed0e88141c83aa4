#!/usr/bin/env bash
# moonshine-voice 0.1.0, model tiny-en (the one in the package), CPU, Linux x86_64, Python 3.11 and 3.13, seen 2026-11-27.
#
# Guess before: `Transcriber.transcribe_without_streaming(audio)` is a function of the audio, since nothing is streamed.
# Seen: the transcript depends on what the same Transcriber was given before. Twelve cuts of 2.5 s of `two_cities.wav`, a reading
# that the package brings, each with 0.3 s of zeros around it: with a new Transcriber for each none begins with "You", and
# a second new one gives the same transcript for 11 of 12. With one Transcriber, which transcribes another form of the cut before each, 11 of
# the 12 begin with a "You" that nobody said, and one transcript of twelve is what the new one gives. A second of zeros given in
# between takes the "You" away, but a third of the transcripts still differ.
#
# Who is hurt: whoever counts the wrong words of a synthesiser with one Transcriber: the count depends on the order of the
# clips. It is the voice activity detection that remembers: with `options={"vad_threshold": 0}` one Transcriber gives each cut
# the transcript that a new one gives, and no "You"; a new Transcriber for each clip (0.5 s) also helps, but repeats itself less well.
#
# Exits with 0 while this is so, 1 where it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/pip install --quiet moonshine-voice==0.1.0 numpy==2.2.6 soundfile==0.14.0 soxr==1.1.0
cat > run.py <<'END'
from pathlib import Path

import moonshine_voice
import numpy as np
import soundfile
import soxr

RATE_HZ = 16_000


def transcriber(**options):
    return moonshine_voice.Transcriber(
        str(moonshine_voice.get_model_path("tiny-en")), moonshine_voice.ModelArch.TINY, options=options
    )


def said(one, wave):
    lines = one.transcribe_without_streaming(wave.astype(np.float32).tolist(), RATE_HZ).lines
    return " ".join(line.text.strip() for line in lines)


samples, rate_hz = soundfile.read(Path(moonshine_voice.__file__).parent / "assets" / "two_cities.wav")
samples = soxr.resample(samples if samples.ndim == 1 else samples.mean(1), rate_hz, RATE_HZ)
cuts = [samples[start : start + 40_000] for start in range(0, 24 * RATE_HZ, 2 * RATE_HZ)]
silence, draw = np.zeros(round(0.3 * RATE_HZ)), np.random.default_rng(0)
padded = [np.concatenate([silence, cut, silence]) for cut in cuts]
new, again = ([said(transcriber(), wave) for wave in padded] for _ in range(2))


def after_another(one):
    found = []
    for cut, wave in zip(cuts, padded):
        said(one, np.concatenate([1e-4 * draw.standard_normal(1_600), cut]))
        found.append(said(one, wave))
    return found


def invented(transcripts):
    return sum(text.lower().startswith("you ") for text in transcripts)


def equal(transcripts, others):
    return sum(a == b for a, b in zip(transcripts, others))


used = after_another(transcriber())
switched_off = after_another(transcriber(vad_threshold=0))
alone = [said(transcriber(vad_threshold=0), wave) for wave in padded]
print(f"a new Transcriber each: {invented(new)} of {len(cuts)} begin with You, {equal(again, new)} the same again")
print(f"one for all: {invented(used)} begin with You, {equal(used, new)} as with a new one")
print(f"without detection: {invented(switched_off)} begin with You, {equal(switched_off, alone)} as with a new one")
remembers = invented(new) <= 1 and invented(used) >= 6 and equal(used, new) <= 6
raise SystemExit(not (remembers and invented(switched_off) == 0 and equal(switched_off, alone) == len(cuts)))
END
env/bin/python run.py && echo "as seen" || { echo "CHANGED" >&2 && exit 1; }
