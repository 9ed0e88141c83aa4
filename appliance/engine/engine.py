"""The engine as the scheduler uses it, on one thread."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, get_args

import numpy as np

from appliance.contract.bundle import Bundle, Manifest, Sampling
from appliance.contract.graphs import CONTEXT, STEPS, TAIL, signatures
from appliance.contract.limits import MAX_NFE
from appliance.contract.schedule import check_nfe
from appliance.engine.backend import Arithmetic, Backend, Graph, HostArray, Ranges
from appliance.engine.calls import BackendCalls, Steps, padded
from appliance.engine.condition import Conditioner
from appliance.engine.costs import TRUSTED, CostTable
from appliance.engine.flow import RELEASE_FRAMES, Flow, LaneState
from appliance.engine.modulation import ModulationTable, capacity
from appliance.engine.vocoder import Decoder
from appliance.engine.watermark import Watermark
from appliance.errors import BundleError, EngineFault
from appliance.request import MAX_REFERENCE_S, FloatArray, Lane, PassedOver, Segment

T = TypeVar("T")
MEASURE_S = 6.0
"""Limit of the warm-up's measurements, in seconds. Larger sizes are extrapolated."""
FRAMES_PER_TOKEN = 4
"""Pace of fast speech, at which the warm-up's texts fill their frames."""
MEASURED = (*itertools.product((80, 160, 300, 560), (4, 2)), (1000, 4))
"""(frames, n) of the warm-up's measurements. One frame in n belongs to the reference."""
ALL_GRAPHS = 3
"""Steps within which `short-kv` runs all its graphs."""
LAUNCH_BOUND_S = 0.02
"""Seconds of a step below which launches are captured. That saves the host about 2 ms a step."""
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)


class Synthesizer:
    """Owner of a bundle's graphs, lanes and tensors on a backend."""

    def __init__(
        self,
        bundle: Bundle,
        backend: Backend,
        *,
        host: Backend | None = None,
        lanes: int = 4,
        variant: str | None = None,
        safer: Mapping[str, Arithmetic] | None = None,
    ) -> None:
        """Load the graphs of `variant` (None: the backend's). `host` computes modulation rows.

        Raises BundleError if the bundle is not for this backend.
        """
        manifest = bundle.manifest
        if backend.name not in manifest.backends:
            raise BundleError(
                f"{bundle.folder}: precision {manifest.precision} is for {', '.join(manifest.backends)}, "
                f"not for {backend.name}"
            )
        begun = time.monotonic()
        self.manifest = manifest
        self._backend = backend
        self._host = host or backend
        self.max_lanes = lanes
        self._safer = safe = safer or {}
        variants = {graph: arithmetic.variant for graph, arithmetic in safe.items()}
        d, longest = manifest.dimensions, manifest.max_frames
        specs, usual = signatures(d), variant or bundle.variant_for(backend.name)

        # The closure must not contain `self`: a cycle would keep the sessions until a later collection.
        def load(name: str, to: Backend = backend) -> Graph:
            path = bundle.graph(name, variants.get(name, usual))
            return to.load(name, path, specs[name], ranges(name, manifest, to))

        self._modulation = ModulationTable(partial(load, "modulation", self._host), self._host, backend, d)
        self._condition = Conditioner(load("condition"), backend, d, longest)
        self.longest_reference = longest_reference(manifest)
        # A CPU's memory counts only once it is written.
        beside = longest if backend.frame_multiple == 1 else self.longest_reference
        table = self._modulation.table
        calls = BackendCalls(backend.frame_multiple, backend.max_batch, manifest.sampler, d)
        self._flow = Flow(backend, d, load, table, longest, beside, lanes, manifest.sampler, calls)
        vocoder, mel = manifest.vocoder, manifest.mel
        self._decoder = Decoder(load("vocoder"), backend, vocoder, mel.hop, mel.mels, longest)
        # `exact`: both rows of a guided lane share a call. In other samplings their lengths differ.
        most_rows = manifest.sampler.most_rows
        rows = most_rows if manifest.defaults.sampling == "exact" else 1
        usual_w = manifest.defaults.guidance
        self._strengths = tuple(dict.fromkeys((usual_w, 0.0)[:most_rows]))
        """Strengths of guidance in the warm-up: one for each number of rows, first the usual one."""
        self.max_batch = max(backend.max_batch // rows, 1) if manifest.batch_invariant else 1
        """Lanes that may share a step."""
        self.costs = CostTable(calls.together)
        self.captures = False
        """True if steps become CUDA graphs; the warm-up sets it."""
        self.watermark: Watermark | None = None
        self.passed_over: tuple[PassedOver, ...] = ()
        """Backends that `auto` tried before this one."""
        self._lanes: dict[int, LaneState] = {}
        self._ids = itertools.count(1)
        self.ready_s = time.monotonic() - begun
        """Seconds that loading the graphs and running the paths took."""

    @property
    def backend(self) -> str:
        """Label of the backend, with the arithmetic in `safer`."""
        by_answer = {a: [g for g, arithmetic in self._safer.items() if arithmetic is a] for a in Arithmetic}
        safer = "; ".join(f"{', '.join(graphs)} in {a.value}" for a, graphs in by_answer.items() if graphs)
        return f"{self._backend.label} ({safer})" if safer else self._backend.label

    @property
    def runtime(self) -> str:
        """Name of the backend."""
        return self._backend.name

    def open(self, segment: Segment) -> Lane:
        """Open a lane, and compute its condition.

        Raises ValueError for a segment that does not fit, RuntimeError if all lanes are open.
        """
        if len(self._lanes) >= self.max_lanes:
            raise RuntimeError(f"all {self.max_lanes} lanes are open")
        self.check(segment)
        times = self._modulation.hold(segment.times[:-1].astype(np.float32), segment.guidance)
        try:
            state = self._flow.open(segment, self._condition(segment), times)
            try:
                self._backend.wait()
            except Exception:
                self._flow.close(state)
                raise
        except Exception:
            self._modulation.release(times)
            raise
        lane_id = next(self._ids)
        self._lanes[lane_id] = state
        return Lane(lane_id, state.steps_left)

    def step(self, lane_ids: Sequence[int]) -> None:
        """Advance lanes by one step.

        Raises ValueError for lanes that cannot advance, EngineFault. Lanes survive.
        """
        if not lane_ids or len(set(lane_ids)) < len(lane_ids):
            raise ValueError(f"one or more different lanes are stepped, not {list(lane_ids)}")
        states = [self._lanes[i] for i in lane_ids]
        if finished := [i for i, s in zip(lane_ids, states, strict=True) if not s.steps_left]:
            raise ValueError(f"lane {finished[0]} has no step left")
        self._flow.step(states, captures=self.captures)
        # This waits after every step, because the scheduler chooses the next one by the time that this one
        # took.
        self._backend.wait()

    def condition(self, segment: Segment) -> HostArray:
        """(G, N, D) of a segment. Raises ValueError for a segment that does not fit the bundle."""
        self.check(segment)
        return self._backend.download(self._condition(segment))

    def log_mel(self, lane_id: int) -> FloatArray:
        """(N, M): the reference's log-mel, then the latents. Raises EngineFault if they are not finite."""
        state = self._lanes[lane_id]
        reference = state.segment.reference_log_mel
        latents = np.asarray(self._backend.download(self._flow.latents(state)), np.float32)
        mel = np.concatenate([reference, latents[len(reference) - state.start :]])
        if not np.isfinite(mel).all():
            raise EngineFault("the flow produced numbers that are not finite")
        return mel

    def finish(self, lane_id: int) -> FloatArray:
        """(samples,) of the reply, at the model's rate and the reference's original level, watermarked.

        Raises EngineFault if they are not finite, ValueError while steps are left.
        """
        state = self._lanes[lane_id]
        segment = state.segment
        if state.steps_left:
            raise ValueError(f"lane {lane_id} has {state.steps_left} steps left")
        rest = segment.reference_log_mel[segment.reference_frames :]
        start = max(len(segment.reference_log_mel), segment.reference_frames)
        generated = self._flow.latents(state, start - state.start)
        self._backend.upload(rest, self._decoder.frames(len(rest)))
        self._backend.copy(generated, self._decoder.frames(generated.shape[0], len(rest)))
        samples = self._decoder.run(len(rest) + generated.shape[0], release=segment.frames >= RELEASE_FRAMES)
        if not np.isfinite(samples).all():
            self.log_mel(lane_id)  # raises if the flow is at fault
            raise EngineFault("the vocoder produced numbers that are not finite")
        samples = samples * np.float32(segment.gain)
        return samples if self.watermark is None else self.watermark.embed(samples)

    def decode(self, log_mel: FloatArray) -> FloatArray:
        """(N, M) → (samples,) through the vocoder. Raises EngineFault if they are not finite."""
        self._backend.upload(log_mel, self._decoder.frames(len(log_mel)))
        samples = self._decoder.run(len(log_mel), release=len(log_mel) >= RELEASE_FRAMES)
        if not np.isfinite(samples).all():
            raise EngineFault("the vocoder produced numbers that are not finite")
        return samples

    def close(self, lane_id: int) -> None:
        state = self._lanes.pop(lane_id)
        self._flow.close(state)
        self._modulation.release(state.times)

    def reserve(self, nfe: int = 1) -> None:
        """Open all lanes once, so that their memory is allocated."""
        segment = self._silence(64, 20, nfe, self.manifest.defaults.guidance)
        opened: list[Lane] = []
        try:
            for _ in range(self.max_lanes):
                opened.append(self.open(segment))
            if min(self.max_batch, self.max_lanes) > 1:
                self._flow.batch()
        finally:
            for lane in opened:
                self.close(lane.id)

    def run_paths(self, nfe: int) -> None:
        """Run every path once."""
        begun = time.monotonic()
        self.reserve(nfe)
        longest = self.manifest.max_frames
        # A device allocates its working memory in the first runs. Shorter tensors may fit into other pieces
        # of that memory and make it grow again, so the lengths between are run too.
        between = ((longest * eighths // 8, 1, ALL_GRAPHS) for eighths in range(7, 0, -1))
        sizes = [(longest, self.longest_reference, nfe), (longest, 1, nfe), *between, (128, 40, nfe)]
        for frames, reference, steps in sizes[-1:] if self._backend.frame_multiple == 1 else sizes:
            for w in self._strengths:
                silence = self._silence(frames, reference, steps, w)
                self._speak([silence] * min(self.max_batch, self.max_lanes))
        self.ready_s += time.monotonic() - begun

    def warm_up(self, nfe: int) -> None:
        """Run every path, then measure and fit the costs."""
        self.run_paths(nfe)
        self._measure(nfe)
        self.costs.fit()
        guidance, longest = self.manifest.defaults.guidance, self.manifest.max_frames
        segment = self._silence(min(400, longest), 150, nfe, guidance)
        predicted_s, took_s = self.costs.of(segment).whole_s, math.inf
        for _ in range(3):  # the fastest is the least disturbed, and one as fast as estimated suffices
            begun = time.monotonic()
            self._speak([segment])
            took_s = min(took_s, time.monotonic() - begun)
            if took_s <= TRUSTED * predicted_s:
                break
        self.costs.check(predicted_s, took_s)
        self.captures = took_s / nfe < LAUNCH_BOUND_S

    def _measure(self, nfe: int) -> None:
        """Measure the costs of calls, by segments of silence in several lengths and numbers of lanes."""
        guidance, longest = self.manifest.defaults.guidance, self.manifest.max_frames
        begun = time.monotonic()
        for frames, part in MEASURED:
            if frames > longest or time.monotonic() - begun > MEASURE_S:
                break
            # Further steps make the same calls.
            whole = self._silence(frames, frames // part, nfe, guidance)
            segment = replace(whole, times=whole.times[: ALL_GRAPHS + 1])
            for lanes in (n for n in (1, 2, 4, 8) if n <= min(self.max_batch, self.max_lanes)):
                self._speak([segment] * lanes, self.costs.measure)
            for w in self._strengths[1:]:
                self._speak([replace(segment, guidance=w)], self.costs.measure)

    @property
    def can_interrupt(self) -> bool:
        return self._backend.can_interrupt

    def interrupt(self, on: bool) -> None:
        """Interrupt the current call, or no longer. Any thread may call this. Lanes survive."""
        self._backend.interrupt(on)

    def self_test(self, segment: Segment | None = None) -> None:
        """Synthesise a segment, else a short silence. Raises any fault."""
        self._speak([segment or self._silence(64, 20, ALL_GRAPHS, self.manifest.defaults.guidance)])

    def _speak(
        self, segments: Sequence[Segment], measure: Callable[[str, Steps, float], None] = lambda *_: None
    ) -> None:
        """Synthesise segments together. `measure` gets kind, steps and seconds of each call."""

        def call(kind: str, steps: Steps, make: Callable[[], T]) -> T:
            begun = time.monotonic()
            result = make()
            measure(kind, steps, time.monotonic() - begun)
            return result

        lanes = [call("open", [(segment, 0)], partial(self.open, segment)) for segment in segments]
        try:
            for step in range(segments[0].nfe):
                steps = [(segment, step) for segment in segments]
                call("step", steps, partial(self.step, [lane.id for lane in lanes]))
            for lane, segment in zip(lanes, segments, strict=True):
                call("finish", [(segment, segment.nfe)], partial(self.finish, lane.id))
        finally:
            for lane in lanes:
                self.close(lane.id)

    def shutdown(self) -> None:
        for lane_id in list(self._lanes):
            self.close(lane_id)
        for backend in dict.fromkeys((self._backend, self._host)):
            backend.close()

    def check(self, segment: Segment) -> None:
        """Raise ValueError for a segment that does not fit the bundle."""
        n, longest, d = segment.frames, self.manifest.max_frames, self.manifest.dimensions
        require(n <= longest, f"{n} frames exceed this bundle's {longest}")
        shapes = [(n, d.mels), (segment.nfe, n, d.mels)][: 1 + (self.manifest.sampler.update == "renoise")]
        noise = shapes[0] if segment.noise is None else segment.noise.shape
        require(noise in shapes, f"noise must be {', or '.join(map(str, shapes))}, not {noise}")
        shape, most = segment.reference_log_mel.shape, self._flow.longest_reference
        sampling = segment.sampling
        is_reference = shape[1:] == (d.mels,) and 1 <= shape[0] < n
        require(is_reference, f"the reference must be (1 to {n - 1}, {d.mels}), not {shape}")
        limit = f"with {sampling} sampling a reference has 1 to {most} frames, not {shape[0]}"
        require(sampling == "exact" or shape[0] <= most, limit)
        ids, index, vocabulary = segment.ids, segment.upsample_index, self.manifest.vocab_size
        are_tokens = len(ids) > 0 and ids.min() >= 0 and ids.max() < vocabulary
        require(are_tokens, f"ids must be one or more indices under {vocabulary}")
        fewer = d.upsampling != "floor" or len(ids) < n
        require(fewer, f"ids must be fewer than {n} frames, not {len(ids)}")
        if index is not None:
            absent = "upsample_index must be absent: this bundle spreads no tokens over its frames"
            require(d.upsampling in ("spread", "tokens"), absent)
            tokens = min(len(ids), n)
            are_places = index.shape == (n,) and index.min() >= 0 and index.max() < tokens
            require(are_places, f"upsample_index must be {n} indices under {tokens}")
        check_nfe(segment.nfe)
        require(sampling in SAMPLINGS, f"sampling must be one of {', '.join(SAMPLINGS)}, not {sampling!r}")
        is_known = sampling == "exact" or d.keeps_keys
        require(is_known, f"sampling must be exact with this bundle, not {sampling!r}")

    def _silence(self, frames: int, reference: int, nfe: int, guidance: float) -> Segment:
        """A segment without text, for measurements and the warm-up."""
        mels, defaults = self.manifest.mel.mels, self.manifest.defaults
        return Segment(
            index=0,
            text="",
            ids=np.zeros(max(frames // FRAMES_PER_TOKEN, 1), np.int32),
            frames=frames,
            reference_log_mel=np.zeros((reference, mels), np.float32),
            reference_frames=reference,
            times=defaults.times(nfe),
            guidance=guidance,
            sampling=defaults.sampling,
        )


def require(holds: object, message: str) -> None:
    """Raise ValueError with the message unless `holds` is true."""
    if not holds:
        raise ValueError(message)


def longest_reference(manifest: Manifest) -> int:
    """Frames of the longest reference."""
    spec = manifest.mel
    return min(MAX_REFERENCE_S * spec.sample_rate_hz // spec.hop + 1, manifest.max_frames - 1)


def ranges(graph: str, manifest: Manifest, backend: Backend) -> Ranges:
    """Sizes at which a graph runs on a backend."""
    least = 1
    if graph in STEPS:
        least = backend.frame_multiple
    longest, d = padded(manifest.max_frames, least), manifest.dimensions
    reference = longest_reference(manifest)
    rates = sorted(d.kept.rates) if d.kept else ()
    return {
        # A batch with rows of other lanes has no reference.
        "R": (1, backend.max_batch if graph == "step" else 1),
        "N": (least, longest),
        "P": (d.stride, reference),
        **{f"P/{rate}": (d.stride // rate, reference // rate) for rate in rates},
        "C": (1, CONTEXT),
        "S": (capacity(d),) * 2,
        "K": (1, MAX_NFE),
        "T": (1 + TAIL, longest + TAIL) if manifest.encodes == "tokens" else (2, longest),
        "L": (1, longest * manifest.mel.hop),
    }
