"""A bundle that speaks in this process like the daemon: with its store, planning, engine and joining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from appliance.audio.join import Joiner, overlap_samples
from appliance.config import SynthesisConfig, VoicesConfig
from appliance.contract import bundle
from appliance.contract.bundle import Sampling
from appliance.engine import engine as synthesizer
from appliance.engine.flow import LaneState
from appliance.engine.ort import OrtBackend, cpu_variant
from appliance.request import FloatArray, Request, Segment, Segmentation
from appliance.speech.plan import Planner
from appliance.text.normalise import clean
from appliance.text.tokens.tokenizers import maker
from appliance.voices.index import open_index
from appliance.voices.records import Place
from appliance.voices.store import VoiceStore

AUDIO_SUFFIXES = (".wav", ".flac")

Damage = Callable[[LaneState], None]
"""Breaks a lane between its opening and its first step, to show that the judges notice it."""


@dataclass(frozen=True)
class Reference:
    audio: Path
    transcript: str


class Mouth:
    """A bundle with its voices, on the CPU."""

    def __init__(
        self,
        folder: Path,
        references: Mapping[str, Reference],
        work: Path,
        *,
        threads: int = 0,
        variant: str | None = "default",
        damage: Damage | None = None,
    ) -> None:
        """`work` holds the store and its cache. `variant` names the graphs that speak: "default" as on a
        device, None as the daemon computes on a CPU. Raises ApplianceError."""
        self.bundle = bundle.read(folder)
        manifest = self.bundle.manifest
        config = VoicesConfig(folder=work / "voices", cache=work / "cache")
        store = VoiceStore(open_index(config, self.bundle))
        for name, reference in references.items():
            store.create(Place(name), reference.audio.read_bytes(), reference.transcript)
        vocabulary = self.bundle.vocabulary()
        make = maker(vocabulary.tokenizer, vocabulary.voice)
        self._planner = Planner(manifest, vocabulary, store.index.reference, make)
        self.rate_hz = manifest.mel.sample_rate_hz
        backend = OrtBackend(threads)
        self.variant = variant or cpu_variant(self.bundle)
        self._engine = synthesizer.Synthesizer(self.bundle, backend, lanes=1, variant=self.variant)
        self._damage = damage

    def speak(self, text: str, voice: str, **how: Any) -> FloatArray:
        """(samples,) of a request at the bundle's rate; `how` holds arguments of `parts`. Raises
        ApplianceError."""
        return self.parts(text, voice, **how)[2]

    def parts(
        self,
        text: str,
        voice: str,
        *,
        seed: int,
        nfe: int | None = None,
        segmentation: Segmentation,
        sampling: Sampling | None = None,
    ) -> tuple[list[Segment], list[FloatArray], FloatArray]:
        """The segments of a request, (samples,) of each, and the samples of the reply.

        `nfe` None takes the daemon's number of steps, `sampling` None the daemon's sampling. Raises
        ApplianceError, or ValueError if the bundle does not take `nfe`.
        """
        request = Request(
            text=clean(text, limit_characters=SynthesisConfig.max_text_characters),
            voice=voice,
            nfe=SynthesisConfig().steps_with(self.bundle.manifest.sampler) if nfe is None else nfe,
            seed=seed,
            guidance=self.bundle.manifest.defaults.guidance,
            segmentation=segmentation,
        )
        segments = self._planner.plan(request)
        joiner = Joiner(overlap_samples(self.bundle.manifest.defaults.cross_fade_s, self.rate_hz))
        made = [self._synthesize(replace(one, sampling=sampling or one.sampling)) for one in segments]
        joined = [joiner.push(one, last=one is made[-1]) for one in made]
        return segments, made, np.concatenate(joined)

    def _synthesize(self, segment: Segment) -> FloatArray:
        lane = self._engine.open(segment)
        state = self._engine._lanes[lane.id]
        held = state.times
        try:
            if self._damage is not None:
                self._damage(state)
            for _ in range(lane.steps_left):
                self._engine.step([lane.id])
            return self._engine.finish(lane.id)
        finally:
            state.times = held  # closing a lane releases its original times
            self._engine.close(lane.id)

    def __enter__(self) -> Mouth:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.shutdown()


def references_in(folder: Path) -> dict[str, Reference]:
    """NAME.wav or NAME.flac with NAME.txt → references by name."""
    return {
        path.stem: Reference(path, path.with_suffix(".txt").read_text("utf-8").strip())
        for path in sorted(folder.glob("*"))
        if path.suffix in AUDIO_SUFFIXES and path.with_suffix(".txt").is_file()
    }


def read_sound(path: Path) -> tuple[FloatArray, int]:
    """(samples,) mono, and their rate."""
    wave, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono: FloatArray = wave.mean(axis=1)
    return mono, rate_hz
