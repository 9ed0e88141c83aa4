"""Parity cases, and their results by the plain torch model and, if installed, by upstream's package."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, cast

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
from appliance.text.tokens.tokenizers import maker
from export import progress
from export.model.dit import states
from export.model.exact import in_float64
from export.parity import ALLOWED_PEAK, LARGEST_HALF

FloatArray = NDArray[np.float32]

STEP_FRAMES = (77, 190)
"""Lengths in frames of the single steps. They differ from the length of the trace."""
SAMPLE_FRAMES = 128
SAMPLE_NFES = (7,)
GATE_NFES = (7, 32)
"""Steps of a coarse and of a fine solution. Their distance is the unit of lossy errors."""
REFERENCE_SHARE = 0.4
TOKENS_PER_FRAME = 0.16
MID_TIME = 0.3
GRAPH_TIMES = np.array([0.0, 0.0012, 0.3, 0.9], np.float32)
SEED = 20
EXACT = "float64"
"""Name of the results that single graphs and steps are measured against."""
READINGS = ((MALE, 500), (FEMALE, 2003))
"""Voice and length in frames: a usual length, and a long one for errors that grow with the length."""
SOLVED_TIMES = [0, 3, 6, 7]
"""Indices in the grid of GATE_NFES[0]. Its beginning, middle and end are enough to judge single steps."""
LONG_FRAMES = 1000
LONG_TIMES = [3, 7]
"""Indices in the grid above LONG_FRAMES: one row of Base takes half a minute in float64."""
VOCODER_FRAMES = 1000


@dataclass(frozen=True)
class Case:
    """Complete input for the synthesis of one segment."""

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
        """(frames, M), or (steps, frames, M) if each step has its own noise.

        Later steps draw theirs as a lane does.
        """
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
    """Case of a demo voice that reads as much of `words` as upstream's duration rule fits into `frames`.

    It has at most `max_frames`, at most half of them reference.
    """
    sound = samples(voice, mel.sample_rate_hz)[: max_frames // 2 * mel.hop]
    transcribed = transcript(voice)
    reference = len(sound) // mel.hop
    pace = reference / len(transcribed.encode())  # frames for each byte
    text = "".join(itertools.islice(itertools.cycle(words), math.ceil((frames - reference) / pace)))
    frames = min(reference + int(pace * len(text.encode())), max_frames)
    rng = np.random.default_rng([seed, frames])
    whole = transcribed + text
    if vocabulary.tokenizer == "letters":  # these may have capitals alone
        whole = Spelling(vocabulary).read(whole)
    tokens = vocabulary.split(whole, maker("phones")) if vocabulary.tokenizer == "phones" else whole
    return Case(
        cond=log_mel(sound, mel),
        ids=vocabulary.ids(tokens)[: frames - 1],
        frames=frames,
        noise=rng.standard_normal((frames, mel.mels), dtype=np.float32),
        guidance=guidance,
    )


@dataclass(frozen=True)
class CaseSet:
    """Cases that judge a model, and the sampler of its weights."""

    mel: MelSpec
    vocabulary: Vocabulary
    max_frames: int
    guidance: float = Case.guidance
    sampler: Sampler = UPSTREAM
    grid: Callable[[int], NDArray[np.float64]] = time_grid
    step_frames: tuple[int, ...] = STEP_FRAMES
    sample_frames: int = SAMPLE_FRAMES
    nfes: tuple[int, ...] = ()
    """Steps of the random samples; empty: the sampler's, else SAMPLE_NFES."""
    readings: tuple[tuple[str, int], ...] = field(default_factory=lambda: READINGS)

    def drawn(self, frames: int) -> Case:
        return random_case(frames, self.mel, self.vocabulary.size, guidance=self.guidance)

    def random(self) -> Iterator[tuple[Literal["step", "sample"], Case, NDArray[np.float64]]]:
        """Random cases with their times: single steps, then whole samples."""
        # A step of length 1 adds the whole velocity to the noise. A re-noising one ends at 1.
        end = 1.0 if self.sampler.update == "renoise" else MID_TIME + 1.0
        for frames in self.step_frames:
            yield "step", self.drawn(frames), np.array([MID_TIME, end])
        for nfe in self.nfes or self.sampler.steps or SAMPLE_NFES:
            yield "sample", self.drawn(self.sample_frames), self.grid(nfe)

    def read(self) -> list[Case]:
        """Cases of `readings`. All but the last leave an eighth of `max_frames` for padding."""
        limits = [self.max_frames * 7 // 8] * (len(self.readings) - 1) + [self.max_frames]
        return [
            read_case(voice, frames, self.mel, self.vocabulary, limit, guidance=self.guidance)
            for (voice, frames), limit in zip(self.readings, limits, strict=True)
        ]

    def short_and_long(self) -> list[Case]:
        """The shortest random case, and the longest reading."""
        return [self.drawn(self.step_frames[0]), self.read()[-1]]


def condition_inputs(case: Case, upsampling: Upsampling) -> dict[str, NDArray[Any]]:
    return condition.condition_inputs(case.ids, case.cond, case.frames, upsampling)


def modulation_strength(sampler: Sampler, times: FloatArray, w: float) -> dict[str, FloatArray]:
    """Second input of the modulation graph, if the weights embed the strength."""
    return {"strength": np.full_like(times, w)} if sampler.guidance == "embedded" else {}


class Oracle(Protocol):
    """Independent implementation that samples a case."""

    name: str

    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        """Log-mel (frames, M), including the reference's frames of the case."""
        ...


class TorchOracle:
    """Plain torch model of `export.model`: samples in float32, single graphs and steps in float64."""

    name = "torch"

    def __init__(self, model: Any, sampler: Sampler = UPSTREAM) -> None:
        """`model` is a DiT. Other families override the methods that call it."""
        self.model, self.sampler = model, sampler

    def modulation(self, times: FloatArray, guidance: float) -> ExpectedGraph:
        inputs: dict[str, NDArray[Any]] = {"t": times}
        inputs |= modulation_strength(self.sampler, times, guidance)
        pairs = list(zip(times, inputs.get("strength", times), strict=True))

        def rows(dtype: torch.dtype) -> Tensor:
            return torch.stack([self._rows(*(torch.tensor(x, dtype=dtype) for x in pair)) for pair in pairs])

        return judged("modulation", inputs, self.model, rows)

    def condition(self, case: Case) -> ExpectedGraph:
        inputs = condition_inputs(case, self.upsampling)
        return judged("condition", inputs, self.model, functools.partial(self._condition, case))

    @property
    def upsampling(self) -> Upsampling:
        arch: Arch = self.model.arch
        return dimensions(arch, self.model.mels, "fp32", encodes=arch.encodes).upsampling

    def sample(self, case: Case, times: NDArray[np.float64]) -> FloatArray:
        """Log-mel (frames, M) of a case, in float32."""
        return self._sample(case, times, torch.float32)

    def exact(self, case: Case, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-mel (frames, M) of a case, in float64."""
        with in_float64(self.model):
            return self._sample(case, times, torch.float64)

    def _sample(self, case: Case, times: NDArray[np.float64], dtype: torch.dtype) -> NDArray[Any]:
        solving = progress.each(
            self._states(case, times, dtype), case.frames, self.sampler.rows(case.guidance)
        )
        *_, (last, _) = solving
        return np.concatenate([case.cond.astype(last.numpy().dtype), last.numpy()[len(case.cond) :]])

    def trajectory(self, case: Case, times: NDArray[np.float64]) -> Trajectory:
        """Solve a case in float64, and store all steps.

        If the times begin after 0, the solution begins as training does, between noise and speech. The speech
        is the reference, repeated.
        """
        if times[0] > 0.0:
            speech = np.resize(case.cond, case.noise.shape)
            case = replace(case, noise=speech + np.float32(1.0 - times[0]) * (case.noise - speech))
        with in_float64(self.model):
            solving = self._states(case, times, torch.float64)
            *steps, (last, _) = progress.each(solving, case.frames, self.sampler.rows(case.guidance))
            with torch.inference_mode():
                condition = self._condition(case, torch.float64).numpy()
        _, first = next(self._states(case, times, torch.float32))
        return Trajectory(
            case,
            times,
            [x.float().numpy() for x, _ in steps],
            [v.numpy() for _, v in steps],
            np.concatenate([case.cond, last.float().numpy()[len(case.cond) :]]),
            condition,
            self.modulation(times[:-1].astype(np.float32), case.guidance).output,
            relative_error(first.numpy(), steps[0][1].numpy()),
        )

    def _states(
        self, case: Case, times: NDArray[np.float64], dtype: torch.dtype
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Latents before each step, and the velocities of its rows."""
        return states(
            self.model,
            torch.from_numpy(case.cond).to(dtype),
            torch.from_numpy(case.ids).long(),
            case.frames,
            case.noises(len(times) - 1, self.sampler).to(dtype),
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

    def _condition(self, case: Case, dtype: torch.dtype) -> Tensor:
        """Output that the graph `condition` should have: the model's input projection of zero latents."""
        rows = self.sampler.most_rows
        text = self.model.text_embed(torch.from_numpy(case.ids).long(), case.frames, rows)
        cond = torch.zeros(rows, case.frames, self.model.mels, dtype=dtype)
        cond[0, : len(case.cond)] = torch.from_numpy(case.cond)
        projected: Tensor = self.model.input_embed.proj(
            torch.cat((torch.zeros_like(cond), cond, text), dim=-1)
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
        model = UpstreamDiT(**asdict(arch), mel_dim=mels, text_num_embeds=vocab_size)
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
    what: Literal["step", "sample"]
    against: str
    case: Case
    times: NDArray[np.float64]
    mel: NDArray[Any]
    wave: NDArray[Any] | None = None
    own: float = 0.0
    """Relative error of torch's float32 in the generated frames; `own_wave`: in the waveform."""
    own_wave: float = 0.0

    def error(self, mel: FloatArray) -> float:
        """Relative error of the generated frames; for a single step, of the velocity it adds to the noise."""
        start, base = len(self.case.cond), self.case.noise if self.what == "step" else np.float32(0.0)
        return relative_error((mel - base)[start:], (self.mel - base)[start:])

    def wave_error(self, wave: FloatArray) -> float:
        return 0.0 if self.wave is None else relative_error(wave, self.wave)


@dataclass(frozen=True)
class ExpectedGraph:
    graph: str
    inputs: dict[str, NDArray[Any]]
    output: NDArray[np.float64]
    own: float
    """Relative error of torch's float32 result."""

    @property
    def frames(self) -> int:
        return 0 if self.graph == "modulation" else len(self.inputs["log_mel"])


def judged(
    graph: str, inputs: dict[str, NDArray[Any]], model: nn.Module, compute: Callable[[torch.dtype], Tensor]
) -> ExpectedGraph:
    """Expected output of a graph: the result of `compute` on `model` in float64."""
    with torch.inference_mode():
        rough = compute(torch.float32).numpy()
        with in_float64(model):
            output = compute(torch.float64).numpy()
    return ExpectedGraph(graph, inputs, output, relative_error(rough, output))


@dataclass(frozen=True)
class Trajectory:
    """All steps of a solved case."""

    case: Case
    times: NDArray[np.float64]
    latents: list[FloatArray]
    """(N, M) before each step."""
    velocities: list[NDArray[Any]]
    """(rows, N, M) at each step: guided row, then any unguided one."""
    mel: FloatArray
    """(N, M), including the reference's frames of the case."""
    condition: NDArray[Any]
    """Output of the graph `condition`."""
    table: NDArray[Any]
    """Output of the graph `modulation` at all steps."""
    own: float = 0.0
    """Relative error of torch's float32 in the first velocities."""

    @property
    def last(self) -> Trajectory:
        """The last step alone."""
        return replace(
            self,
            times=self.times[-2:],
            latents=self.latents[-1:],
            velocities=self.velocities[-1:],
            table=self.table[-1:],
        )


@dataclass(frozen=True)
class Coarse:
    """Sample at `nfe`, and its distances to the sample at the fine number of GATE_NFES."""

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
    """Module of the reference model, or its attention's scores."""
    value: float
    """Largest magnitude of the module's inputs and outputs; infinite if a value is not a number."""

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
    """Set for graphs in half precision; for each graph the largest comes first."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Bounds of the family; empty: the bounds in `parity`."""


def expect(
    oracles: Sequence[Callable[[], Oracle]],
    vocoder: Callable[[], nn.Module],
    cases: CaseSet,
    *,
    lossy: bool = False,
    graphs: Sequence[ExpectedGraph] | None = None,
) -> Expectations:
    """Run all installed oracles on the random cases, and torch's on the readings.

    `lossy` adds the samples of a Coarse. `graphs` are the results of `alone`, if they exist already.
    """
    result = Expectations([], [], [], "")
    decode, random = vocoder(), list(cases.random())
    for make in oracles:
        try:
            oracle = make()
        except ImportError as error:
            result = replace(result, absent=f"not installed here ({error})")
            continue
        progress.begin(f"oracle {oracle.name}")
        if isinstance(oracle, TorchOracle):
            if graphs is None:
                graphs = alone(oracle, decode, cases.short_and_long())
            result.graphs.extend(graphs)
            times = cases.grid(GATE_NFES[0])
            result.trajectories.extend(
                oracle.trajectory(unguided(case, oracle.sampler), times[LONG_TIMES])
                if case.frames > LONG_FRAMES
                else oracle.trajectory(case, times[SOLVED_TIMES])
                for case in cases.read()
            )
            if lossy:
                result = replace(result, coarse=_coarse(oracle, decode, result.trajectories[0].case, cases))
        for place, (what, case, times) in enumerate(random):
            out = oracle.sample(case, times)
            wave = _decoded(decode, out).numpy() if what == "sample" else None
            if isinstance(oracle, TorchOracle):
                result.samples.append(_exactly(oracle, decode, Expected(what, EXACT, case, times, out, wave)))
            else:  # after the torch model, which shows float32's error on these weights
                drawn_first = result.samples[place : place + 1] or [Expected(what, "", case, times, out)]
                result.samples.append(replace(drawn_first[0], against=oracle.name, mel=out, wave=wave))
    return result


def _exactly(oracle: TorchOracle, decode: nn.Module, rough: Expected) -> Expected:
    """Sample in float64, and note the errors of `rough`, the sample in float32."""
    mel = oracle.exact(rough.case, rough.times)
    exact = replace(rough, mel=mel, own=0.0)
    if rough.wave is not None:
        with in_float64(decode):
            exact = replace(exact, wave=_decoded(decode, mel, torch.float64).numpy())
        exact = replace(exact, own_wave=exact.wave_error(rough.wave))
    return replace(exact, own=exact.error(rough.mel))


def alone(oracle: TorchOracle, decode: nn.Module, cases: Sequence[Case]) -> list[ExpectedGraph]:
    """Expected output of the graphs that run once, for a short case and a long one.

    The vocoder gets at most VOCODER_FRAMES of them, because it has no sum over a text's length.
    """
    outputs = [oracle.modulation(GRAPH_TIMES, cases[0].guidance), *map(oracle.condition, cases)]
    for case in cases:
        mel = np.resize(case.cond, (min(case.frames, VOCODER_FRAMES), case.cond.shape[1]))
        outputs.append(judged("vocoder", {"log_mel": mel}, decode, functools.partial(_decoded, decode, mel)))
    return outputs


def unguided(case: Case, sampler: Sampler) -> Case:
    """The case without guidance: one row in place of two, at half the cost."""
    return case if sampler.guidance == "embedded" else replace(case, guidance=0.0)


def _coarse(oracle: TorchOracle, decode: nn.Module, case: Case, cases: CaseSet) -> Coarse:
    nfe = cases.sampler.nearest(GATE_NFES[0])
    coarse, fine = (oracle.sample(case, cases.grid(steps)) for steps in (nfe, GATE_NFES[1]))
    wave_mel, finest = (log_mel(_decoded(decode, mel).numpy(), cases.mel) for mel in (coarse, fine))
    start = len(case.cond)
    return Coarse(
        case,
        nfe,
        coarse,
        wave_mel,
        distance(coarse[start:], fine[start:]),
        distance(wave_mel[start:], finest[start:]),
    )


@torch.inference_mode()
def _decoded(decode: nn.Module, mel: NDArray[Any], dtype: torch.dtype = torch.float32) -> Tensor:
    samples: Tensor = decode(torch.from_numpy(mel).to(dtype))
    return samples


def relative_error(a: NDArray[Any], b: NDArray[Any]) -> float:
    """‖a − b‖ / ‖b‖; infinite if shapes differ or a value is not finite."""
    if a.shape != b.shape or not np.isfinite(a).all():
        return math.inf
    return ratio(float(np.linalg.norm(a.astype(np.float64) - b)), float(np.linalg.norm(b.astype(np.float64))))


def ratio(error: float, to: float) -> float:
    """error / to, with a lower bound on `to`; infinite if either is not finite."""
    return error / max(to, 1e-12) if math.isfinite(error) and math.isfinite(to) else math.inf


def distance(a: FloatArray, b: FloatArray) -> float:
    """Mean absolute difference, in nepers for log-mels; infinite if shapes differ."""
    return float(np.abs(a.astype(np.float64) - b).mean()) if a.shape == b.shape else math.inf
