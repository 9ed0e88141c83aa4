"""open · step · finish · close: the engine as the scheduler sees it. Called from one thread only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.contract.bundle import Bundle
from appliance.contract.schedule import MAX_NFE, time_grid
from appliance.engine.backend import Backend
from appliance.engine.condition import Conditioner
from appliance.engine.flow import Flow, LaneState
from appliance.engine.modulation import ModulationTable
from appliance.engine.vocoder import Decoder
from appliance.errors import BundleError, EngineFault
from appliance.job import FloatArray, Segment

UNGUIDED_BELOW = 1e-5
"""Guidance under this runs the conditional row alone, as upstream's `CFM.sample` does."""
DEFAULT_BUCKETS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass(frozen=True)
class Lane:
    """A handle to an open segment."""

    id: int
    bucket: int
    """Frames that the step graph computes for it at most; lanes share a batch within a bucket."""
    steps_left: int


class Synthesizer:
    """Owns graphs, lanes and tensors of one bundle on one backend."""

    def __init__(
        self,
        bundle: Bundle,
        backend: Backend,
        *,
        lanes: int = 4,
        buckets: Sequence[int] = DEFAULT_BUCKETS,
        variant: str | None = None,
    ) -> None:
        """Load every graph, of the backend's own variant where none is named.

        Raises BundleError when the bundle is not for this backend.
        """
        manifest = bundle.manifest
        if backend.name not in manifest.backends:
            raise BundleError(
                f"{bundle.folder}: precision {manifest.precision} is for {', '.join(manifest.backends)}, "
                f"not for {backend.name}"
            )
        self.manifest, self._backend = manifest, backend
        self.max_lanes = lanes
        self.max_batch = lanes if manifest.batch_invariant else 1
        self.buckets = tuple(sorted({min(b, manifest.max_frames) for b in (*buckets, manifest.max_frames)}))
        d = manifest.dimensions
        variant = variant or bundle.variant_for(backend.name)
        graphs = {name: backend.load(bundle.graph(name, variant)) for name in manifest.variants["default"]}
        self._modulation = ModulationTable(graphs["modulation"], backend, lanes * MAX_NFE, d.rows, d.dim)
        self._condition = Conditioner(graphs["condition"], backend, d)
        self._flow = Flow(graphs["step"], backend, self._modulation.table, d)
        self._decode = Decoder(graphs["vocoder"], backend, manifest.vocoder, manifest.mel.hop)
        self._lanes: dict[int, tuple[Segment, LaneState]] = {}
        self._ids = itertools.count(1)

    def open(self, segment: Segment) -> Lane:
        """Condition on the segment and take a lane for it.

        Raises ValueError for a segment that the bundle cannot hold, RuntimeError when every lane is taken.
        """
        if len(self._lanes) >= self.max_lanes:
            raise RuntimeError(f"all {self.max_lanes} lanes are open")
        self.check(segment)
        latents = self._backend.empty(segment.noise.shape, "float32")
        self._backend.upload(segment.noise, latents)
        guided = segment.guidance >= UNGUIDED_BELOW
        state = LaneState(
            latents=latents,
            condition=self._condition(segment),
            frames=segment.frames,
            rows=self._modulation.hold(segment.times[:-1].astype(np.float32)),
            dt=np.diff(segment.times).astype(np.float32),
            combine=(1.0 + segment.guidance, -segment.guidance) if guided else (1.0,),
        )
        lane_id = next(self._ids)
        self._lanes[lane_id] = (segment, state)
        return Lane(lane_id, self.bucket(segment.frames), state.steps_left)

    def step(self, lane_ids: Sequence[int]) -> None:
        """Advance lanes of one bucket by one step.

        Raises ValueError for lanes that cannot share a batch, EngineFault when the runtime fails: every lane
        of that batch is lost with it and can only be closed.
        """
        states = [self._lanes[i][1] for i in lane_ids]
        if not 1 <= len(states) <= self.max_batch:
            raise ValueError(f"a batch holds 1 to {self.max_batch} lanes of this bundle, not {len(states)}")
        if len(set(lane_ids)) < len(lane_ids):
            raise ValueError(f"a lane is named twice: {', '.join(map(str, lane_ids))}")
        if done := [i for i, s in zip(lane_ids, states, strict=True) if not s.steps_left]:
            raise ValueError(f"lane {done[0]} has no step left")
        for lane_id, state in zip(lane_ids, states, strict=True):
            _check_kept(lane_id, state)
        longest = max(s.frames for s in states)
        frames = longest if self._backend.exact_shapes else self.bucket(longest)
        try:
            self._flow.step(states, frames)
        except EngineFault:
            self._flow.forget()
            raise

    def log_mel(self, lane_id: int) -> FloatArray:
        """(N, M) the lane's latents, with the reference's frames overwritten by the true log-mel.

        Raises EngineFault when they are not finite, or lost.
        """
        segment, state = self._lanes[lane_id]
        _check_kept(lane_id, state)
        self._flow.leave(state)
        mel = np.asarray(self._backend.download(state.latents), np.float32)
        mel[: len(segment.reference_log_mel)] = segment.reference_log_mel
        if not np.isfinite(mel).all():
            raise EngineFault("the flow produced numbers that are not finite")
        return mel

    def finish(self, lane_id: int) -> FloatArray:
        """(samples,) of the generated part, at the model's rate and the reference's own level.

        Raises EngineFault when the result is not finite, ValueError while steps are left.
        """
        segment, state = self._lanes[lane_id]
        if state.steps_left:
            raise ValueError(f"lane {lane_id} has {state.steps_left} steps left")
        samples = self.decode(self.log_mel(lane_id)[segment.reference_frames :])
        return samples if segment.gain == 1.0 else samples * np.float32(segment.gain)

    def decode(self, log_mel: FloatArray) -> FloatArray:
        """(frames, M) → (samples,) through the vocoder alone. Raises EngineFault when not finite."""
        samples = self._decode(log_mel)
        if not np.isfinite(samples).all():
            raise EngineFault("the vocoder produced numbers that are not finite")
        return samples

    def close(self, lane_id: int) -> None:
        """Give the lane back, finished or not."""
        _, state = self._lanes.pop(lane_id)
        self._flow.leave(state)
        self._modulation.release(state.rows)

    def bucket(self, frames: int) -> int:
        """The smallest bucket that holds so many frames. Raises ValueError beyond the largest."""
        for bucket in self.buckets:
            if frames <= bucket:
                return bucket
        raise ValueError(f"{frames} frames exceed this bundle's {self.buckets[-1]}")

    def warm_up(self, nfe: int) -> None:
        """Run every path once, guided and unguided, on each bucket where shapes matter to the backend."""
        sizes = (min(128, self.buckets[-1]),) if self._backend.exact_shapes else self.buckets
        for frames, guidance in itertools.product(sizes, (self.manifest.defaults.guidance, 0.0)):
            lane = self.open(self._silence(frames, nfe, guidance))
            for _ in range(lane.steps_left):
                self.step([lane.id])
            self.finish(lane.id)
            self.close(lane.id)

    def shutdown(self) -> None:
        """Close every lane and release the backend."""
        for lane_id in list(self._lanes):
            self.close(lane_id)
        self._backend.close()

    def check(self, segment: Segment) -> None:
        """Raise ValueError for a segment that the bundle cannot hold, saying what is allowed."""
        mels = self.manifest.mel.mels
        self.bucket(segment.frames)
        if segment.noise.shape != (segment.frames, mels):
            raise ValueError(f"noise must be ({segment.frames}, {mels}), not {segment.noise.shape}")
        reference = segment.reference_log_mel.shape
        if len(reference) != 2 or reference[1] != mels or reference[0] >= segment.frames:
            raise ValueError(f"the reference must be (under {segment.frames}, {mels}), not {reference}")
        if len(segment.ids) == 0 or segment.ids.min() < 0 or segment.ids.max() >= self.manifest.vocab_size:
            raise ValueError(f"ids must be one or more indices under {self.manifest.vocab_size}")
        if not 2 <= len(segment.times) <= MAX_NFE + 1:
            raise ValueError(f"nfe must be between 1 and {MAX_NFE}, not {len(segment.times) - 1}")

    def _silence(self, frames: int, nfe: int, guidance: float) -> Segment:
        mels, defaults = self.manifest.mel.mels, self.manifest.defaults
        return Segment(
            index=0,
            text="",
            ids=np.zeros(1, np.int32),
            frames=frames,
            reference_log_mel=np.zeros((1, mels), np.float32),
            reference_frames=1,
            noise=np.zeros((frames, mels), np.float32),
            times=time_grid(nfe, grid=defaults.grid, sway=defaults.sway),
            guidance=guidance,
        )


def _check_kept(lane_id: int, state: LaneState) -> None:
    if state.lost:
        raise EngineFault(f"lane {lane_id} was lost when a batch that it sat in failed")


def load(bundle: Bundle, *, backend: str, threads: int, lanes: int, buckets: Sequence[int]) -> Synthesizer:
    """A synthesizer on the backend of that name. Raises BundleError for an unknown one."""
    if backend != "ort-cpu":
        raise BundleError(f"backend {backend!r} is not built in; available: ort-cpu")
    from appliance.engine.ort import OrtBackend

    return Synthesizer(bundle, OrtBackend(threads), lanes=lanes, buckets=buckets)
