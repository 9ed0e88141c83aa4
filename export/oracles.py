"""Parity cases, and what the plain torch model and, if installed, upstream's package make of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from appliance.contract.bundle import Arch, Sampling, dimensions
from appliance.contract.graphs import Upsampling
from appliance.contract.mel import MelSpec, log_mel
from appliance.contract.sampler import UPSTREAM, Sampler
from appliance.contract.schedule import noise, time_grid
from appliance.contract.tokens import Vocabulary
from appliance.engine import condition
from appliance.engine.cases import FEMALE, MALE, TEXT, samples, transcript
from appliance.request import Segment
from appliance.text.spelling import Spelling
from appliance.text.tokenizers import maker
from export import progress
from export.model.dit import states

FloatArray = NDArray[np.float32]

STEP_FRAMES = (77, 190)
"""Lengths that differ from the traced one."""
SAMPLE_FRAMES = 128
SAMPLE_NFES = (5, 7, 16)
GATE_NFES = (7, 32)
"""A coarse and a fine solution, whose distance is the unit of lossy errors."""
REFERENCE_SHARE = 0.4
TOKENS_PER_FRAME = 0.16
MID_TIME = 0.3
GRAPH_TIMES = np.array([0.0, 0.0012, 0.3, 0.9], np.float32)
SEED = 20
LARGEST_HALF = 65_504.0
"""Largest float16."""
ALLOWED_PEAK = LARGEST_HALF / 4
"""Largest accepted peak: other texts and voices go beyond those of the cases."""

READINGS = ((MALE, 500), (FEMALE, 2003))
"""Voice and length in frames: a usual one, and one for errors that grow with it."""
LONG_FRAMES = 1000
LONG_TIMES = [0, 3, 6, 7]
"""Steps of the grid of 7 above LONG_FRAMES, where one of Base takes 10 s."""


@dataclass(frozen=True)
class Case:
    """Complete input of one segment."""

    cond: FloatArray
    """Reference log-mel (R + 1, M)."""
    ids: NDArray[np.int32]
    frames: int
    noise: FloatArray
    guidance: float = 2.0

    def segment(self, times: NDArray[np.float64], sampling: Sampling = "exact") -> Segment:
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
            sampling=sampling,
        )

    def noises(self, steps: int, sampler: Sampler) -> Tensor:
        """(frames, M), or (steps, frames, M) where each step has its own; later ones as a lane draws them."""
        if sampler.update == "euler":
            return torch.from_numpy(self.noise)
        later = [noise(0, 0, self.frames, self.noise.shape[1], step) for step in range(1, steps)]
        return torch.from_numpy(np.stack([self.noise, *later]))


def random_case(
    frames: int, mel: MelSpec, vocab_size: int, seed: int = SEED, guidance: float = Case.guidance
) -> Case:
    """Random case in the range of log-mels, −11.5 (silence) to 3, in the model's scale."""
    rng = np.random.default_rng([seed, frames])
    reference = int(frames * REFERENCE_SHARE)
    envelope = rng.normal(-3.0, 2.0, (reference, 1)) + rng.normal(0.0, 1.5, (reference, mel.mels))
    return Case(
        cond=(envelope.clip(-11.5, 3.0) / mel.scale).astype(np.float32),
        ids=rng.integers(0, vocab_size, max(int(frames * TOKENS_PER_FRAME), 3), dtype=np.int32),
        frames=frames,
        noise=rng.standard_normal((frames, mel.mels), dtype=np.float32),
        guidance=guidance,
    )


def read_case(
    voice: str,
    frames: int,
    mel: MelSpec,
    vocabulary: Vocabulary,
    max_frames: int,
    words: str = TEXT,
    seed: int = SEED,
    guidance: float = Case.guidance,
) -> Case:
    """Case of a demo voice reading what of `words` upstream's duration rule fits in `frames`; limited to
    `max_frames`, at most half of it reference.
    """
    given = samples(voice, mel.sample_rate_hz)[: max_frames // 2 * mel.hop]
    said = transcript(voice)
    reference = len(given) // mel.hop
    pace = reference / len(said.encode())  # frames for each byte
    text = "".join(itertools.islice(itertools.cycle(words), math.ceil((frames - reference) / pace)))
    frames = min(reference + int(pace * len(text.encode())), max_frames)
    rng = np.random.default_rng([seed, frames])
    read = said + text
    if vocabulary.tokenizer == "letters":  # which may have capitals alone
        read = Spelling(vocabulary).read(read)
    tokens = vocabulary.split(read, maker("phones")) if vocabulary.tokenizer == "phones" else read
    return Case(
        cond=log_mel(given, mel),
        ids=vocabulary.ids(tokens)[: frames - 1],
        frames=frames,
        noise=rng.standard_normal((frames, mel.mels), dtype=np.float32),
        guidance=guidance,
    )


def read_cases(
    readings: tuple[tuple[str, int], ...],
    mel: MelSpec,
    vocabulary: Vocabulary,
    max_frames: int,
    guidance: float = Case.guidance,
) -> list[Case]:
    """Cases of voices and lengths; all but the last leave an eighth of `max_frames` for padding."""
    limits = [max_frames * 7 // 8] * (len(readings) - 1) + [max_frames]
    return [
        read_case(voice, frames, mel, vocabulary, limit, guidance=guidance)
        for (voice, frames), limit in zip(readings, limits, strict=True)
    ]


def condition_inputs(case: Case, upsampling: Upsampling) -> dict[str, NDArray[Any]]:
    return condition.condition_inputs(case.ids, case.cond, case.frames, upsampling)


def modulation_strength(sampler: Sampler, times: FloatArray, w: float) -> dict[str, FloatArray]:
    """The modulation graph's input beside the times, where the strength is embedded."""
    return {"strength": np.full_like(times, w)} if sampler.guidance == "embedded" else {}


class Oracle(Protocol):
    """Independent implementation that samples a case."""

    name: str

    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        """Log-mel (frames, M) with the reference's frames of the case."""
        ...


class TorchOracle:
    """Plain torch model of `export.model`."""

    name = "torch"

    def __init__(self, model: Any, sampler: Sampler = UPSTREAM) -> None:
        """`model` is a DiT; other families override what calls it."""
        self.model, self.sampler = model, sampler

    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        return self.trajectory(case, times).mel

    def graphs(self, case: Case, times: FloatArray) -> Iterator[ExpectedGraph]:
        with torch.inference_mode():
            inputs: dict[str, NDArray[Any]] = {"t": times}
            inputs |= modulation_strength(self.sampler, times, case.guidance)
            strengths = inputs.get("strength", times)
            rows = [
                self._rows(*map(torch.tensor, pair)).numpy() for pair in zip(times, strengths, strict=True)
            ]
            yield ExpectedGraph("modulation", inputs, np.stack(rows))
            inputs = condition_inputs(case, self.upsampling)
            yield ExpectedGraph("condition", inputs, self._condition(case).numpy())

    @property
    def upsampling(self) -> Upsampling:
        arch: Arch = self.model.arch
        return dimensions(arch, self.model.mels, "fp32", encodes=arch.encodes).upsampling

    def trajectory(self, case: Case, times: NDArray[np.float64]) -> Trajectory:
        """Solve a case, keeping all steps."""
        solving = progress.each(self._states(case, times), case.frames, self.sampler.most_rows)
        *steps, (last, _) = [(x.numpy(), v.numpy()) for x, v in solving]
        mel = np.concatenate([case.cond, last[len(case.cond) :]])
        return Trajectory(case, times, [x for x, _ in steps], [v for _, v in steps], mel)

    def _states(self, case: Case, times: NDArray[np.float64]) -> Iterator[tuple[Tensor, Tensor]]:
        """Latents before each step and the velocities of its rows."""
        return states(
            self.model,
            torch.from_numpy(case.cond),
            torch.from_numpy(case.ids).long(),
            case.frames,
            case.noises(len(times) - 1, self.sampler),
            times.tolist(),
            case.guidance,
            self.sampler,
        )

    def _rows(self, t: Tensor, strength: Tensor) -> Tensor:
        time = self.model.time_embed(t, strength)
        norms = [cast(nn.Module, block.attn_norm) for block in self.model.transformer_blocks]
        rows = [row for norm in norms for row in norm(time)]
        scale, shift = self.model.norm_out(time)
        return torch.stack([*rows, shift, scale])

    def _condition(self, case: Case) -> Tensor:
        """Input projection of zero latents."""
        rows = self.sampler.most_rows
        text = self.model.text_embed(torch.from_numpy(case.ids).long(), case.frames, rows)
        seen = torch.zeros(rows, case.frames, self.model.mels)
        seen[0, : len(case.cond)] = torch.from_numpy(case.cond)
        projected: Tensor = self.model.input_embed.proj(
            torch.cat((torch.zeros_like(seen), seen, text), dim=-1)
        )
        return projected


class UpstreamOracle:
    """DiT of the package f5-tts in a plain Euler loop. Raises ImportError."""

    name = "upstream"

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        arch: Arch,
        vocab_size: int,
        mels: int,
        sampler: Sampler = UPSTREAM,
    ) -> None:
        self.sampler = sampler
        if sampler.guidance == "embedded":
            raise ImportError("its DiT takes no guidance strength")
        try:
            from f5_tts.model.backbones.dit import DiT as UpstreamDiT
        except Exception as error:  # a partial installation raises other errors
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
        model.load_state_dict(dict(weights), strict=True, assign=True)
        self.model = model.eval()

    @torch.inference_mode()
    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        cond = torch.zeros(1, case.frames, case.cond.shape[1])
        cond[0, : len(case.cond)] = torch.from_numpy(case.cond)
        ids, y = torch.from_numpy(case.ids).long()[None], torch.from_numpy(case.noise)[None]
        noises = case.noises(len(times) - 1, self.sampler)
        for step, (now, then) in enumerate(pairwise(times)):
            t = torch.tensor(now, dtype=torch.float32)
            if self.sampler.rows(case.guidance) == 2:
                guided, plain = self.model(x=y, cond=cond, text=ids, time=t, cfg_infer=True).chunk(2)
                v = guided + (guided - plain) * case.guidance
            else:
                v = self.model(x=y, cond=cond, text=ids, time=t)
            if self.sampler.update == "renoise":
                y = y + (1.0 - float(now)) * v
                if step + 1 < len(noises):
                    y = (1.0 - float(then)) * noises[step + 1] + float(then) * y
            else:
                y = y + float(then - now) * v
            progress.did(case.frames, self.sampler.most_rows)
        y[0, : len(case.cond)] = cond[0, : len(case.cond)]
        return y[0].numpy()


@dataclass(frozen=True)
class Expected:
    what: str
    against: str
    case: Case
    times: NDArray[np.float64]
    mel: FloatArray
    wave: FloatArray | None = None


@dataclass(frozen=True)
class ExpectedGraph:
    graph: str
    inputs: dict[str, NDArray[Any]]
    wanted: FloatArray


@dataclass(frozen=True)
class Trajectory:
    """All steps of a solved case."""

    case: Case
    times: NDArray[np.float64]
    latents: list[FloatArray]
    """(N, M) before each step."""
    velocities: list[FloatArray]
    """(rows, N, M) at each step: guided row, then any unguided one."""
    mel: FloatArray
    """(N, M) with the reference's frames of the case."""


@dataclass(frozen=True)
class Coarse:
    """Sample at `nfe`, and its distances to that at the fine one of GATE_NFES."""

    case: Case
    nfe: int
    mel: FloatArray
    wave_mel: FloatArray
    """Log-mel (frames, M) of its waveform."""
    mel_distance: float
    wave_mel_distance: float


@dataclass(frozen=True)
class Peak:
    graph: str
    where: str
    """Module of the reference, or its attention's scores."""
    value: float
    """Largest magnitude of its inputs and outputs; infinite where one is not a number."""

    @property
    def holds(self) -> bool:
        return self.value <= ALLOWED_PEAK

    @property
    def is_finite(self) -> bool:
        return self.value <= LARGEST_HALF

    def __str__(self) -> str:
        return f"float16: {self.where} of {self.graph} reaches {self.value:.3g}, allowed {ALLOWED_PEAK:,.0f}"


@dataclass(frozen=True)
class Expectations:
    """Results of all oracles, computed before an engine takes memory."""

    samples: list[Expected]
    graphs: list[ExpectedGraph]
    trajectories: list[Trajectory]
    absent: str
    coarse: Coarse | None = None
    """Set for lossy precisions."""
    peaks: tuple[Peak, ...] = ()
    """Set for graphs in half precision; the largest of a graph first."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """The family's; none: those of `parity`."""


def expect(
    oracles: Sequence[Callable[[], Oracle]],
    vocoder: Callable[[], nn.Module],
    mel: MelSpec,
    vocabulary: Vocabulary,
    *,
    max_frames: int,
    lossy: bool = False,
    gate_nfe: int = GATE_NFES[0],
    step_frames: tuple[int, ...] = STEP_FRAMES,
    sample_frames: int = SAMPLE_FRAMES,
    nfes: tuple[int, ...] = SAMPLE_NFES,
    readings: tuple[tuple[str, int], ...] = READINGS,
    guidance: float = Case.guidance,
    renoises: bool = False,
    grid: Callable[[int], NDArray[np.float64]] = time_grid,
) -> Expectations:
    """Run all installed oracles on the random cases, torch's on `readings` too.

    `lossy` adds samples at `gate_nfe`, one that the model takes, and at the fine one.
    """

    def drawn(frames: int) -> Case:
        return random_case(frames, mel, vocabulary.size, guidance=guidance)

    made = Expectations([], [], [], "")
    decode = vocoder()
    # A step of length 1 adds the whole velocity to the noise; a re-noising one ends at 1.
    one_step = np.array([MID_TIME, 1.0 if renoises else MID_TIME + 1.0])
    random = [("step", drawn(frames), one_step) for frames in step_frames]
    random += [("sample", drawn(sample_frames), grid(nfe)) for nfe in nfes]
    for make in oracles:
        try:
            oracle = make()
        except ImportError as error:
            made = replace(made, absent=f"not installed here ({error})")
            continue
        progress.begin(f"oracle {oracle.name}")
        if isinstance(oracle, TorchOracle):
            made.graphs.extend(oracle.graphs(drawn(step_frames[0]), GRAPH_TIMES))
            cases = read_cases(readings, mel, vocabulary, max_frames, guidance)
            times = grid(GATE_NFES[0])
            made.trajectories.extend(
                oracle.trajectory(case, times[LONG_TIMES] if case.frames > LONG_FRAMES else times)
                for case in cases
            )
            if lossy:
                made = replace(
                    made, coarse=_coarse(oracle, decode, made.trajectories[0], gate_nfe, mel, grid)
                )
        for what, case, times in random:
            out = oracle.sample(case, times)
            wave = _decoded(decode, out) if what == "sample" else None
            made.samples.append(Expected(what, oracle.name, case, times, out, wave))
    log_mels = (drawn(SAMPLE_FRAMES).noise - 2.0) / mel.scale
    made.graphs.append(ExpectedGraph("vocoder", {"log_mel": log_mels}, _decoded(decode, log_mels)))
    return made


def _coarse(
    oracle: TorchOracle,
    decode: nn.Module,
    solved: Trajectory,
    nfe: int,
    spec: MelSpec,
    grid: Callable[[int], NDArray[np.float64]],
) -> Coarse:
    case, is_solved = solved.case, len(solved.times) - 1 == nfe
    coarse = solved.mel if is_solved else oracle.sample(case, grid(nfe))
    fine = oracle.sample(case, grid(GATE_NFES[1]))
    spoken, finest = (log_mel(_decoded(decode, mel), spec) for mel in (coarse, fine))
    start = len(case.cond)
    return Coarse(
        case,
        nfe,
        coarse,
        spoken,
        distance(coarse[start:], fine[start:]),
        distance(spoken[start:], finest[start:]),
    )


@torch.inference_mode()
def _decoded(decode: nn.Module, mel: FloatArray) -> FloatArray:
    samples: FloatArray = decode(torch.from_numpy(mel)).numpy()
    return samples


def distance(a: FloatArray, b: FloatArray) -> float:
    """Mean absolute difference, in nepers for log-mels; infinite where shapes differ."""
    return float(np.abs(a.astype(np.float64) - b).mean()) if a.shape == b.shape else math.inf
