"""What follows from a bundle: how references are prepared, requests planned, and segments joined."""

from __future__ import annotations

from dataclasses import dataclass

from appliance import plan
from appliance.audio import encode, join, reference
from appliance.audio.decode import decode
from appliance.config import Config
from appliance.contract.bundle import Bundle, Manifest
from appliance.contract.tokens import Vocabulary
from appliance.job import FloatArray, Request
from appliance.rpc.requests import Defaults
from appliance.rpc.synthesizer import Plan
from appliance.text import chinese
from appliance.voices import Features, VoiceStore

ANY_TRANSCRIPT = "."
"""The features of a reference do not depend on what is said in it."""


def voice_store(config: Config, manifest: Manifest) -> VoiceStore:
    """The store of voices as this bundle's model wants them. Raises StorageError."""
    return VoiceStore(
        config.voices.folder,
        config.voices.cache,
        Preparation(manifest),
        memory_entries=config.voices.memory_entries,
        max_reference_bytes=config.voices.max_reference_bytes,
    )


@dataclass(frozen=True)
class Preparation:
    """How references are prepared for one bundle."""

    manifest: Manifest

    @property
    def fingerprint(self) -> str:
        """Names the mel spec, the level and the trim version."""
        spec, level = self.manifest.mel, self.manifest.defaults.target_rms
        return f"{spec.fingerprint}/{level}/{reference.TRIM_VERSION}"

    @property
    def sample_rate_hz(self) -> int:
        """The model's."""
        return self.manifest.mel.sample_rate_hz

    def features(self, audio: bytes) -> Features:
        """Decode, trim, level and transform. Raises InvalidReference."""
        spec, level = self.manifest.mel, self.manifest.defaults.target_rms
        prepared = reference.prepare_reference("", audio, ANY_TRANSCRIPT, spec, level)
        return Features(prepared.samples, prepared.log_mel, prepared.rms)

    def transcript(self, text: str) -> str:
        """Completed as upstream does. Raises InvalidReference."""
        return reference.complete_transcript(text)

    def warnings(self, audio: bytes) -> tuple[str, ...]:
        """What makes this a poor reference. Raises InvalidReference."""
        return reference.warnings(reference.trim(decode(audio)))


@dataclass(frozen=True)
class Voicebox:
    """What follows from a bundle: voices and the planning of requests."""

    config: Config
    bundle: Bundle
    store: VoiceStore
    vocabulary: Vocabulary

    @property
    def defaults(self) -> Defaults:
        """What requests get that do not say otherwise."""
        manifest, guidance = self.bundle.manifest, self.config.synthesis.guidance
        return Defaults(
            synthesis=self.config.synthesis,
            guidance=manifest.defaults.guidance if guidance is None else guidance,
            sample_rate_hz=manifest.mel.sample_rate_hz,
        )

    def plan(self, request: Request) -> Plan:
        """A request made ready for the engine. Raises VoiceNotFound, InvalidRequest, StorageError."""
        manifest = self.bundle.manifest
        segments = plan.plan(
            request,
            self.store.reference(request.voice),
            spec=manifest.mel,
            vocabulary=self.vocabulary,
            to_tokens=chinese.to_tokens,
            defaults=manifest.defaults,
            max_frames=manifest.max_frames,
        )
        return Plan(tuple(segments), Outlet(manifest, request.sample_rate_hz))


class Outlet:
    """Joins the segments of one request and brings them to its rate."""

    def __init__(self, manifest: Manifest, rate_hz: int) -> None:
        model_hz = manifest.mel.sample_rate_hz
        self._joiner = join.Joiner(join.overlap_samples(manifest.defaults.cross_fade_s, model_hz))
        self._resampler = encode.Resampler(model_hz, rate_hz)

    def push(self, samples: FloatArray, *, last: bool) -> FloatArray:
        """(samples,) of the next segment → those that are final, at the request's rate."""
        return self._resampler.push(self._joiner.push(samples, last=last), last=last)
