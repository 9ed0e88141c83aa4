"""How far a bundle is from what it was made of: per graph, per whole sample, and as a waveform.

The reference is the plain torch model on the same weights and, where it is installed, upstream's own package.
The bundle runs on the device's engine, so that what is measured is what ships.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from appliance.contract.bundle import Arch, Bundle, Precision
from appliance.contract.graphs import signatures
from appliance.contract.mel import MelSpec
from appliance.contract.schedule import time_grid
from appliance.engine.condition import padded_ids, padded_mel, upsample_index
from appliance.engine.ort import OrtBackend
from appliance.engine.replay import replay
from appliance.engine.synthesizer import Synthesizer
from appliance.job import Segment
from export.model.dit import DiT, sample

FloatArray = NDArray[np.float32]

STEP_FRAMES = (77, 190)
"""Neither was traced."""
SAMPLE_FRAMES = 128
SAMPLE_NFES = (5, 7, 16)
REFERENCE_SHARE = 0.4
TOKENS_PER_FRAME = 0.16
MID_TIME = 0.3
GRAPH_TIMES = np.array([0.0, 0.0012, 0.3, 0.9], np.float32)
SEED = 20

BOUNDS: dict[Precision, dict[str, float]] = {
    "fp32": {
        "modulation": 5e-6,
        "condition": 5e-6,
        "step": 5e-6,
        "vocoder": 1e-5,
        "sample": 5e-5,
        "wave": 5e-4,
    },
    "fp16": {
        "modulation": 2e-3,
        "condition": 5e-3,
        "step": 5e-3,
        "vocoder": 1e-2,
        "sample": 1e-2,
        "wave": 1e-1,
    },
    "int8": {
        "modulation": 2e-3,
        "condition": 5e-6,
        "step": 5e-2,
        "vocoder": 1e-5,
        "sample": 5e-2,
        "wave": 5e-1,
    },
}
"""Largest relative errors ‖a − b‖ / ‖b‖ with which a bundle is written."""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    what: str
    against: str
    frames: int
    nfe: int
    """Steps taken; 0 where none are."""
    error: float
    """‖a − b‖ / ‖b‖"""
    bound: float

    @property
    def snr_db(self) -> float:
        """The error as a signal-to-noise ratio."""
        return -20.0 * float(np.log10(max(self.error, 1e-12)))


@dataclass
class Report:
    """All measurements of one bundle."""

    precision: str
    rows: list[Row] = field(default_factory=list)
    absent: str = ""
    """Why upstream's package was not measured against; empty when it was."""

    @property
    def failed(self) -> list[str]:
        """The rows beyond their bound, in words. A NaN is beyond."""
        return [
            f"{r.what} at {r.frames} frames, NFE {r.nfe}, against {r.against}: {r.error:.1e}, "
            f"allowed {r.bound:.1e}"
            for r in self.rows
            if not r.error <= r.bound
        ]

    def record(self) -> dict[str, Any]:
        """As the manifest carries it."""
        rows = [
            {**asdict(r), "error": float(f"{r.error:.3g}"), "snr_db": round(r.snr_db, 1)} for r in self.rows
        ]
        return {"rows": rows, "upstream": self.absent or "measured"}

    def table(self) -> str:
        """For people."""
        return table(self.record()["rows"], self.absent)


def table(rows: list[Mapping[str, Any]], absent: str = "") -> str:
    """Rows of a report, as the manifest carries them, for people."""
    lines = [
        f"{'what':10s} {'against':12s} {'frames':>6s} {'NFE':>4s} {'rel. error':>10s} {'SNR dB':>7s} "
        f"{'bound':>8s}"
    ]
    lines += [
        f"{r['what']:10s} {r['against']:12s} {r['frames']:6d} {r['nfe']:4d} {r['error']:10.2e} "
        f"{r['snr_db']:7.1f} {r['bound']:8.0e}"
        for r in rows
    ]
    return "\n".join([*lines, f"upstream's package: {absent}"] if absent else lines)


@dataclass(frozen=True)
class Case:
    """One segment with everything given."""

    cond: FloatArray
    """(R + 1, M)"""
    ids: NDArray[np.int32]
    frames: int
    noise: FloatArray
    guidance: float = 2.0

    def segment(self, times: NDArray[np.float64]) -> Segment:
        """As the engine takes it."""
        return Segment(
            index=0,
            text="",
            ids=self.ids,
            frames=self.frames,
            reference_log_mel=self.cond,
            reference_frames=len(self.cond) - 1,
            noise=self.noise,
            times=times,
            guidance=self.guidance,
        )


def random_case(frames: int, mel: MelSpec, vocab_size: int, seed: int = SEED) -> Case:
    """Noise in the range of log-mels: 0 is loud, −11.5 silence."""
    rng = np.random.default_rng([seed, frames])
    reference = int(frames * REFERENCE_SHARE)
    envelope = rng.normal(-3.0, 2.0, (reference, 1)) + rng.normal(0.0, 1.5, (reference, mel.mels))
    return Case(
        cond=envelope.clip(-11.5, 3.0).astype(np.float32),
        ids=rng.integers(0, vocab_size, max(int(frames * TOKENS_PER_FRAME), 3), dtype=np.int32),
        frames=frames,
        noise=rng.standard_normal((frames, mel.mels), dtype=np.float32),
    )


class Oracle(Protocol):
    """Something that samples a case independently of the bundle."""

    name: str

    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        """(frames, M) log-mel, the reference's frames overwritten."""
        ...


class TorchOracle:
    """The plain model of `export.model`."""

    name = "torch"

    def __init__(self, model: DiT) -> None:
        self.model = model

    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        """See `Oracle.sample`."""
        mel = sample(
            self.model,
            torch.from_numpy(case.cond),
            torch.from_numpy(case.ids).long(),
            case.frames,
            torch.from_numpy(case.noise),
            times.tolist(),
            case.guidance,
        )
        return mel.numpy()

    def graphs(self, case: Case, times: FloatArray) -> Iterator[ExpectedGraph]:
        """What the graphs that the steps build on must give: modulation rows, and the segment's condition."""
        with torch.inference_mode():
            rows = np.stack([self._rows(torch.tensor(t)).numpy() for t in times])
            yield ExpectedGraph("modulation", {"t": times}, rows)
            inputs: dict[str, NDArray[Any]] = {
                "ids": padded_ids(case.ids, case.frames),
                "log_mel": padded_mel(case.cond, case.frames),
            }
            if self.model.arch.text_embedding_average_upsampling:
                inputs["upsample_index"] = upsample_index(len(case.ids), case.frames)
            yield ExpectedGraph("condition", inputs, self._condition(case).numpy())

    def _rows(self, t: Tensor) -> Tensor:
        time = self.model.time_embed(t)
        norms = [cast(nn.Module, block.attn_norm) for block in self.model.transformer_blocks]
        rows = [row for norm in norms for row in norm(time)]
        scale, shift = self.model.norm_out(time)
        return torch.stack([*rows, shift, scale])

    def _condition(self, case: Case) -> Tensor:
        """The input projection of latents that are zero: all of it that no step changes."""
        text = self.model.text_embed(torch.from_numpy(case.ids).long(), case.frames)
        seen = torch.zeros(2, case.frames, self.model.mels)
        seen[0, : len(case.cond)] = torch.from_numpy(case.cond)
        projected: Tensor = self.model.input_embed.proj(
            torch.cat((torch.zeros_like(seen), seen, text), dim=-1)
        )
        return projected


class UpstreamOracle:
    """The DiT of the package f5-tts in a plain Euler loop. Raises ImportError where it is not installed."""

    name = "upstream"

    def __init__(self, weights: Mapping[str, Tensor], arch: Arch, vocab_size: int, mels: int) -> None:
        try:
            from f5_tts.model.backbones.dit import DiT as UpstreamDiT
        except Exception as error:  # half installed, it fails in other ways at every further attempt
            raise ImportError(str(error)) from error
        model = UpstreamDiT(
            dim=arch.dim,
            depth=arch.depth,
            heads=arch.heads,
            dim_head=arch.dim_head,
            ff_mult=arch.ff_mult,
            mel_dim=mels,
            text_num_embeds=vocab_size,
            text_dim=arch.text_dim,
            text_mask_padding=arch.text_mask_padding,
            text_embedding_average_upsampling=arch.text_embedding_average_upsampling,
            qk_norm=arch.qk_norm,
            conv_layers=arch.conv_layers,
            pe_attn_head=arch.pe_attn_head,
            long_skip_connection=arch.long_skip_connection,
        )
        model.load_state_dict(dict(weights), strict=False, assign=True)
        self.model = model.eval()

    @torch.inference_mode()
    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        """See `Oracle.sample`."""
        cond = torch.zeros(1, case.frames, case.cond.shape[1])
        cond[0, : len(case.cond)] = torch.from_numpy(case.cond)
        ids, y = torch.from_numpy(case.ids).long()[None], torch.from_numpy(case.noise)[None]
        for now, then in pairwise(times):
            t = torch.tensor(now, dtype=torch.float32)
            guided, plain = self.model(x=y, cond=cond, text=ids, time=t, cfg_infer=True).chunk(2)
            y = y + float(then - now) * (guided + (guided - plain) * case.guidance)
        y[0, : len(case.cond)] = cond[0, : len(case.cond)]
        return y[0].numpy()


@dataclass(frozen=True)
class Expected:
    """What an oracle says of one case."""

    what: str
    against: str
    case: Case
    times: NDArray[np.float64]
    mel: FloatArray
    wave: FloatArray | None = None


@dataclass(frozen=True)
class ExpectedGraph:
    """What one graph alone must give."""

    graph: str
    inputs: dict[str, NDArray[Any]]
    wanted: FloatArray


@dataclass(frozen=True)
class Expectations:
    """Oracles' answers, computed once so that their models need not stay in memory beside the engine."""

    samples: list[Expected]
    graphs: list[ExpectedGraph]
    absent: str


def expect(
    oracles: list[Callable[[], Oracle]],
    vocoder: Callable[[], nn.Module],
    mel: MelSpec,
    vocab_size: int,
    *,
    step_frames: tuple[int, ...] = STEP_FRAMES,
    sample_frames: int = SAMPLE_FRAMES,
    nfes: tuple[int, ...] = SAMPLE_NFES,
) -> Expectations:
    """Ask every oracle about every case. One that is not installed is noted as absent."""
    samples: list[Expected] = []
    graphs: list[ExpectedGraph] = []
    absent = ""
    decode = vocoder()
    for make in oracles:
        try:
            oracle = make()
        except ImportError as error:
            absent = f"not installed here ({error})"
            continue
        if isinstance(oracle, TorchOracle):
            graphs += oracle.graphs(random_case(step_frames[0], mel, vocab_size), GRAPH_TIMES)
        with torch.inference_mode():
            for what, case, times in tqdm(
                list(_cases(mel, vocab_size, step_frames, sample_frames, nfes)), desc=f"asking {oracle.name}"
            ):
                out = oracle.sample(case, times)
                wave = decode(torch.from_numpy(out)).numpy() if what == "sample" else None
                samples.append(Expected(what, oracle.name, case, times, out, wave))
    heard = random_case(SAMPLE_FRAMES, mel, vocab_size).noise - 2.0
    with torch.inference_mode():
        spoken = decode(torch.from_numpy(heard)).numpy()
    graphs.append(ExpectedGraph("vocoder", {"log_mel": heard}, spoken))
    return Expectations(samples, graphs, absent)


def _cases(
    mel: MelSpec, vocab_size: int, step_frames: tuple[int, ...], sample_frames: int, nfes: tuple[int, ...]
) -> Iterator[tuple[str, Case, NDArray[np.float64]]]:
    for frames in step_frames:
        # A step of length 1: what is compared is the velocity, added to the noise.
        yield "step", random_case(frames, mel, vocab_size), np.array([MID_TIME, MID_TIME + 1.0])
    for nfe in nfes:
        yield "sample", random_case(sample_frames, mel, vocab_size), time_grid(nfe)


def measure(bundle: Bundle, expected: Expectations) -> Report:
    """Run the bundle on the CPU engine and compare generated frames and waveforms."""
    bounds = BOUNDS[bundle.manifest.precision]
    report = Report(bundle.manifest.precision, absent=expected.absent)
    for g in expected.graphs:
        error = relative_error(_run(bundle, g), g.wanted)
        frames = 0 if g.graph == "modulation" else len(g.inputs["log_mel"])
        report.rows.append(Row(g.graph, TorchOracle.name, frames, 0, error, bounds[g.graph]))
    # Not the CPU's own variant: FP16 is measured as a device computes it.
    engine = Synthesizer(bundle, OrtBackend(), lanes=1, variant="default")
    try:
        for e in tqdm(expected.samples, desc="measuring the bundle"):
            nfe, start = len(e.times) - 1, len(e.case.cond)
            mel, wave = replay(engine, e.case.segment(e.times))
            base = e.case.noise if e.what == "step" else np.float32(0.0)  # a step is judged by its velocity
            error = relative_error((mel - base)[start:], (e.mel - base)[start:])
            report.rows.append(Row(e.what, e.against, e.case.frames, nfe, error, bounds[e.what]))
            if e.wave is not None:
                error = relative_error(wave, e.wave)
                report.rows.append(Row("wave", e.against, e.case.frames, nfe, error, bounds["wave"]))
    finally:
        engine.shutdown()
    return report


def _run(bundle: Bundle, expected: ExpectedGraph) -> FloatArray:
    """The output of one graph alone, as float32."""
    (spec,) = signatures(bundle.manifest.dimensions)[expected.graph].outputs
    backend = OrtBackend()
    inputs = {name: np.ascontiguousarray(array) for name, array in expected.inputs.items()}
    output = backend.empty(expected.wanted.shape, spec.dtype)
    backend.load(bundle.graph(expected.graph)).run(inputs, {spec.name: output})
    return output.astype(np.float32)


def relative_error(a: FloatArray, b: FloatArray) -> float:
    """‖a − b‖ / ‖b‖; infinite where shapes differ."""
    if a.shape != b.shape:
        return float("inf")
    return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b.astype(np.float64)))
