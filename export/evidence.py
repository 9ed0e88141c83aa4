"""Flow-matching loss of weights on recordings with known words, which shows the flags and mels that the
weights were trained with.

Checkpoints of different rotary heads, masks and mels have the same names and shapes, and the graphs of either
equal their torch model. The training loss (Lipman et al. 2022, arXiv 2210.02747; F5 fills in masked frames)
distinguishes them.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.contract.mel import Kind, MelSpec, log_mel
from appliance.contract.placement import Placement
from appliance.durable import sha256
from appliance.engine.cases import FEMALE, MALE, TARGET_RMS, samples, transcript
from appliance.text.spelling import Spelling
from appliance.text.tokens.tokenizers import maker
from appliance.voices.decode import decode
from appliance.voices.reference import MAX_REFERENCE_MS, MIN_RMS, resample, trim
from export import progress
from export.assemble import BundleFailed, Loaded
from export.families import NAMED
from export.families.declaration import Point
from export.sources import adapter, wholeness
from export.sources.checkpoint import CheckpointError, WeightsKind

TIMES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Flow times near the noise, at which text and masks matter.

From 0.7 on the loss measures the noise itself.
"""
SEEDS = (1, 2)
"""Seeds of the noise. With TIMES they give ten passes."""
CONDITION = 1 / 3
"""Share of a recording that the model may see."""
SPEAKS = 0.6
"""Largest loss of weights that speak, as a multiple of the mean spectrum's: 0.13 for the demo voice, a
student, 0.07 for its teacher, 0.16 after twelve minutes of training, 0.39 after two, above 1 for random
weights.
"""
ALIKE = 0.98
"""Ratio of two losses above which they count as equal. Different rotary heads have 0.99 for weights that were
trained for minutes.
"""
FITS_BETTER = 0.9
"""Ratio of losses below which other flags or mels are right.

For models in tests/records/export.md, v1's in place of v0's have 0.73 to 0.83, the demo voice's others at
most 0.76. The right ones never lose by more than 0.99, on words of another text too.
"""
FITS_SOMEWHAT = 0.95
"""Ratio of losses below which the exporter advises other flags. Models that were trained for two minutes have
0.90 to 0.93.
"""
OTHERS_FIT_BETTER = 0.95
HEARS_TEXT = 0.95
"""Largest ratio of a loss to the loss without text, for weights that use their text. The demo voice, a
student, has 0.91 and its teacher 0.59; with a vocabulary in another order the ratio exceeds 1.
"""
GIVEN, WITHOUT_TEXT, REORDERED = "given", "without text", "another order"
UNADAPTED = "without the adapter"
COPY, COPY_FRAMES = "copy synthesis", 200
COPIES = 0.75
"""Largest mean distance between log-mels and those of the vocoder's waveform, in nepers: 0.27 for the demo's
vocoder, 2.4 for random weights. A mean spectrum has 1.5.
"""
TAKEN: Mapping[WeightsKind, str] = {"ema": "averaged", "raw": "raw"}
OTHER: Mapping[WeightsKind, WeightsKind] = {"ema": "raw", "raw": "ema"}


class Verdict(enum.Enum):
    """Result of the evidence."""

    FITS = "fits"
    UNTRAINED = "untrained"
    """Weights that predict no speech prove nothing."""
    UNREAD = "unread"
    """The vocabulary lacks the words of the recordings."""
    MISFIT = "misfit"
    """Other flags or mels fit better."""


@dataclass(frozen=True)
class EvidenceRecording:
    """A recording with known words."""

    name: str
    words: str
    samples: Callable[[int], NDArray[np.float32]]
    """Function of a sample rate in Hz that returns the samples, shape (samples,)."""


DEMO = tuple(
    EvidenceRecording(voice, transcript(voice).strip(), partial(samples, voice)) for voice in (FEMALE, MALE)
)


@dataclass
class Evidence:
    """Losses of the trials, and the verdict on them."""

    recordings: tuple[str, ...]
    losses: dict[str, float] = field(default_factory=dict)
    """Name of a trial → mean squared error of the velocity."""
    verdict: Verdict = Verdict.FITS
    advice: list[str] = field(default_factory=list)
    speechless: list[str] = field(default_factory=list)
    """Reasons not to expect speech."""
    order_proved: bool = False
    """True if the vocabulary's order has a smaller loss than another order."""
    accepted_by: str = ""
    adapter: str = ""
    """Description of the merged adapter; "" without one."""

    def record(self) -> dict[str, Any]:
        losses = {name: float(f"{loss:.3g}") for name, loss in self.losses.items()}
        accepted = {"accepted_by": self.accepted_by} if self.accepted_by else {}
        measured = {"recordings": list(self.recordings), "losses": losses, "verdict": self.verdict.value}
        merged = {"adapter": self.adapter} if self.adapter else {}
        return measured | {"order": "proved" if self.order_proved else "not proved"} | merged | accepted


def weigh(loaded: Loaded, recordings: Sequence[EvidenceRecording] = DEMO, *, accept: str = "") -> Evidence:
    """Measure the losses of the sources, in ten passes each.

    Raises BundleFailed if other flags or mels fit clearly better, unless `accept` has a reason.
    """
    progress.begin("evidence")
    merges = loaded.sources.adapter and adapter.read(loaded.sources.adapter)
    merged = f"{merges}, sha256 {sha256(merges.file)}" if merges else ""
    evidence = Evidence(tuple(one.name for one in recordings), adapter=merged)
    _judge_vocoder(loaded, recordings[0], evidence)
    recordings = [one for one in recordings if _is_read(loaded, one)]
    if not recordings:
        evidence.verdict = Verdict.UNREAD
        evidence.advice.append(
            f"the loss of the weights was not measured, because their tokens lack the words of "
            f"{', '.join(evidence.recordings)}; pass --recording FILE --transcript TEXT in their language"
        )
        _compare_weights(loaded, (), evidence)
        return evidence
    evidence.recordings = tuple(one.name for one in recordings)
    trials = {trial.name: trial for trial in _trials(loaded)}
    most = SPEAKS * idle(loaded.mel, recordings)
    # Two passes each are enough to recognise random weights, such as the tests' weights.
    if min(trial.loss(loaded, recordings, TIMES[2:3]) for trial in trials.values()) > 2 * most:
        return _untrained(loaded, evidence)
    evidence.losses |= {name: trial.loss(loaded, recordings) for name, trial in trials.items()}
    lowest = min(evidence.losses.values())
    if lowest > most:
        return _untrained(loaded, evidence)
    loss, names = evidence.losses[GIVEN], ", ".join(evidence.recordings)
    evidence.losses[WITHOUT_TEXT] = silent = trials[GIVEN].loss(loaded, recordings, drops_text=True)
    evidence.losses[REORDERED] = turned = trials[GIVEN].loss(loaded, recordings, reorders=True)
    evidence.order_proved = loss <= HEARS_TEXT * turned
    if not evidence.order_proved:
        evidence.advice.append(
            f"the vocabulary's order is unproved: the loss on {names} is {loss:.2f} in its order, "
            f"{turned:.2f} in another"
        )
    if lowest < FITS_SOMEWHAT * loss:
        _judge_fit(loaded, recordings, trials, evidence, accept)
    if loss > HEARS_TEXT * silent:
        evidence.advice.append(
            f"the weights do not use the text: their loss on {names} is {loss:.2f} with it, {silent:.2f} "
            "without; if they speak another language, pass --recording FILE --transcript TEXT, else look at "
            "the vocabulary"
        )
    _compare_weights(loaded, recordings, evidence)
    if loaded.sources.adapter is not None:  # no file says which weights it was trained on
        base = dataclasses.replace(loaded, sources=dataclasses.replace(loaded.sources, adapter=None))
        with suppress(CheckpointError):  # the adapter brings the embedding of another vocabulary
            evidence.losses[UNADAPTED] = theirs = Trial.unchanged(base).loss(base, recordings)
            evidence.advice.append(
                f"the loss on {names} is {loss:.3g} with the adapter, {theirs:.3g} without it"
            )
    return evidence


def settle(evidence: Evidence, accept: str) -> None:
    """Raise BundleFailed for weights that give no speech, unless `accept` has a reason to write them."""
    if evidence.speechless and not accept:
        raise BundleFailed(
            f"{'; '.join(evidence.speechless)}; --accept REASON writes the bundle nevertheless"
        )
    if evidence.speechless:
        evidence.accepted_by = accept


def _judge_vocoder(loaded: Loaded, one: EvidenceRecording, evidence: Evidence) -> None:
    """Measure log-mel → waveform → log-mel of a recording."""
    mel = log_mel(one.samples(loaded.mel.sample_rate_hz), loaded.mel)[:COPY_FRAMES]
    with torch.inference_mode():
        wave = loaded.reference_vocoder()(torch.from_numpy(mel)).numpy().reshape(-1)
    copy = log_mel(wave.astype(np.float32), loaded.mel)[: len(mel)]
    evidence.losses[COPY] = apart = loaded.mel.scale * float(np.abs(copy - mel[: len(copy)]).mean())
    if not apart <= COPIES:
        evidence.speechless.append(
            f"{loaded.sources.vocoder_path}: the vocoder does not reproduce its mels: after mel, "
            f"waveform, mel {one.name} differs by {apart:.2f} nepers, allowed {COPIES}"
        )


def _judge_fit(
    loaded: Loaded,
    recordings: Sequence[EvidenceRecording],
    trials: Mapping[str, Trial],
    evidence: Evidence,
    accept: str,
) -> None:
    """Advise flags or mels that fit better; refuse the user's if others clearly fit better.

    Raises BundleFailed.
    """
    # Words that the weights do not know mislead them most under the right flags, so text may be dropped.
    lowest = {
        name: min(evidence.losses[name], trial.loss(loaded, recordings, drops_text=True))
        for name, trial in trials.items()
    }
    # Among flags that fit equally well, a known family's flags win.
    alike = [name for name in trials if lowest[name] * ALIKE <= min(lowest.values())]
    best = min(alike, key=lambda name: (not loaded.declaration.is_known(trials[name].arch), lowest[name]))
    ratio = lowest[best] / lowest[GIVEN]
    if ratio >= FITS_SOMEWHAT:
        return
    clearly = ratio < FITS_BETTER
    problem = (
        f"the weights {'were' if clearly else 'may be'} trained with other flags or mels: their loss on "
        f"{', '.join(evidence.recordings)} is {lowest[GIVEN]:.2f} as {loaded.sources.family.name}, and "
        f"{lowest[best]:.2f} with {best}: pass {trials[best].remedy}"
    )
    if clearly and not accept:
        raise BundleFailed(f"{problem}; --accept REASON writes the bundle nevertheless")
    evidence.verdict, evidence.accepted_by = Verdict.MISFIT, accept if clearly else ""
    evidence.advice.append(problem)


@dataclass(frozen=True)
class Trial:
    """The weights with certain flags, on certain mels."""

    name: str
    remedy: str
    """Options of `bundle` that select these flags and mels."""
    arch: Any
    mel: MelSpec

    @classmethod
    def unchanged(cls, loaded: Loaded) -> Trial:
        return cls(GIVEN, "", loaded.sources.family.arch, loaded.mel)

    @torch.inference_mode()
    def loss(
        self,
        loaded: Loaded,
        recordings: Sequence[EvidenceRecording],
        times: Sequence[float] = TIMES,
        *,
        drops_text: bool = False,
        reorders: bool = False,
    ) -> float:
        """Mean squared error of the velocity over the frames that the model must fill in.

        `reorders` replaces each token by another. Raises BundleFailed if the loss with the user's flags is
        not finite.
        """
        inputs = dataclasses.replace(loaded.given, arch=self.arch, mel=self.mel)
        model, text = loaded.declaration.build(loaded.weights(), inputs), loaded.text
        strength, errors = loaded.sources.defaults.guidance, []
        seeds = SEEDS[: 1 if len(recordings) > 1 else None]
        for one in recordings:
            mel = torch.from_numpy(log_mel(one.samples(self.mel.sample_rate_hz), self.mel))  # (N, M)
            start = int(len(mel) * CONDITION)
            cond = mel.clone()
            cond[start:] = 0.0
            tokens = _tokens(loaded, one)
            ids = torch.from_numpy(loaded.vocabulary.ids(tokens)).long()
            if reorders:
                ids = torch.from_numpy(np.random.default_rng(0).permutation(loaded.vocabulary.size))[ids]
            index = None
            if text.durations:
                places = Placement(text.durations).index(len(mel), tokens, (), len(mel))
                index = torch.from_numpy(places).long()
            for seed, time in itertools.product(seeds, times):
                noise = torch.randn(mel.shape, generator=torch.Generator().manual_seed(seed))
                point = Point((1 - time) * noise + time * mel, cond, ids, time, strength, drops_text, index)
                velocity = loaded.declaration.velocity(model, point)
                progress.did(len(mel))
                errors.append(float((velocity - (mel - noise))[start:].square().mean()))
        loss = float(np.mean(errors))
        if not math.isfinite(loss) and self.name == GIVEN:
            raise BundleFailed(f"{loaded.sources.checkpoint}: the loss of the weights is not finite")
        return loss if math.isfinite(loss) else math.inf


def _trials(loaded: Loaded) -> Iterator[Trial]:
    arch, spec = loaded.sources.family.arch, loaded.mel
    yield Trial.unchanged(loaded)
    flags = loaded.declaration.flags
    for other in loaded.declaration.others(arch):
        remedy = f"--family {name}" if (name := named(other)) else f"a YAML file with {flags(other)}"
        yield Trial(flags(other), remedy, other, spec)
    others: dict[Kind, Kind] = {} if spec.rounded else {"vocos": "bigvgan", "bigvgan": "vocos"}
    if kind := others.get(spec.kind):
        yield Trial(f"mels of {kind}", f"--vocoder {kind}", arch, dataclasses.replace(spec, kind=kind))


def _untrained(loaded: Loaded, evidence: Evidence) -> Evidence:
    evidence.verdict = Verdict.UNTRAINED
    why = (
        f"the loss of the weights proves nothing: they predict no speech on {', '.join(evidence.recordings)}"
    )
    evidence.advice.append(why)
    evidence.speechless.append(why)
    _compare_weights(loaded, (), evidence)
    return evidence


def _compare_weights(loaded: Loaded, recordings: Sequence[EvidenceRecording], evidence: Evidence) -> None:
    """Report the distance between average and raw weights, if the checkpoint has both."""
    used, kind = TAKEN[loaded.sources.weights], OTHER[loaded.sources.weights]
    other = dataclasses.replace(loaded, sources=dataclasses.replace(loaded.sources, weights=kind))
    try:
        if other.weights().averaged == loaded.weights().averaged:
            return
    except CheckpointError:
        return
    try:
        wholeness.check(loaded.sources.checkpoint, other.weights())
    except CheckpointError as error:
        evidence.advice.append(f"the {TAKEN[kind]} weights, which are not used, are broken: {error}")
        return
    advice = (
        f"the checkpoint has averaged and raw weights, {distance(loaded, other):.0%} apart: {used} weights "
        f"are used; --weights {kind} uses the others"
    )
    if recordings:
        loss = evidence.losses[GIVEN]
        evidence.losses[TAKEN[kind]] = theirs = Trial.unchanged(other).loss(other, recordings)
        fit = ", which fit better" if theirs < OTHERS_FIT_BETTER * loss else ""
        advice += f", with a loss of {theirs:.2f} for {loss:.2f}{fit}"
    evidence.advice.append(advice)


def _tokens(loaded: Loaded, one: EvidenceRecording) -> Sequence[str]:
    vocabulary = loaded.vocabulary
    reads = vocabulary.tokenizer in ("letters", "simple")  # these may have one case alone
    words = Spelling(vocabulary).read(one.words) if reads else one.words
    return vocabulary.split(loaded.text.framed(words), maker(vocabulary.tokenizer, vocabulary.voice))


def _is_read(loaded: Loaded, one: EvidenceRecording) -> bool:
    """True unless the vocabulary leaves out more than half of the recording's words."""
    return not loaded.vocabulary.leaves_out or 2 * len(_tokens(loaded, one)) >= len(one.words)


def idle(spec: MelSpec, recordings: Sequence[EvidenceRecording]) -> float:
    """Loss of predicting the recordings' mean spectrum everywhere: the variance of mels and of the noise."""
    levels = [log_mel(one.samples(spec.sample_rate_hz), spec) for one in recordings]
    return 1.0 + float(np.mean([mel[int(len(mel) * CONDITION) :].var(axis=0).mean() for mel in levels]))


def distance(one: Loaded, other: Loaded) -> float:
    """Root mean square of the weights' differences, as a share of the root mean square of the weights."""
    a, b = one.weights(), other.weights()
    apart = sum(float((a[name] - b[name]).square().sum()) for name in a)
    return float(np.sqrt(apart / sum(float(a[name].square().sum()) for name in a)))


def named(arch: Any) -> str:
    """Name of a family with this architecture, or ""."""
    return next((family.name for family in NAMED.values() if family.arch == arch), "")


def recording_of(path: Path, words: str) -> EvidenceRecording:
    """Read a recording. Up to 12 s stay untrimmed, as in a corpus. Raises OSError, InvalidReference."""
    whole = decode(path.read_bytes())
    trimmed = trim(whole)  # refuses silence
    recording = trimmed if whole.duration_ms > MAX_REFERENCE_MS else whole
    wave = recording.mono()
    rms = float(np.sqrt(np.mean(np.square(wave, dtype=np.float64))))
    levelled = wave * np.float32(max(TARGET_RMS / max(rms, MIN_RMS), 1.0))
    return EvidenceRecording(path.name, words, lambda rate_hz: resample(levelled, recording.rate_hz, rate_hz))
