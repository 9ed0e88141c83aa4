"""Speech: turns wishes into segments, with one bundle and the configuration."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import cast

from appliance.audio.encode import check_rate
from appliance.audio.phrases import Key, Phrases
from appliance.config import AudioConfig, Config, LanguageRow, SynthesisConfig
from appliance.contract.bundle import Manifest
from appliance.contract.tokens import Vocabulary
from appliance.errors import ApplianceError, ConfigError, InvalidRequest
from appliance.options import AUTO
from appliance.request import (
    AT_FIRST,
    Handling,
    Reference,
    Request,
    Segment,
    Segmentation,
    SegmentAudio,
    SpokenText,
    Switch,
)
from appliance.scheduler import Scheduler
from appliance.scheduler.interface import Engine
from appliance.speech.budget import LONGEST_PIECE_S
from appliance.speech.plan import Planner
from appliance.speech.rules import RULES
from appliance.speech.wish import UNSET, Choices, Wish, within
from appliance.speech.work import LOOKUP, VOICE, Work
from appliance.text.languages import base_code
from appliance.text.normalise import clean
from appliance.text.pieces.arriving import TextSplitter
from appliance.text.pieces.split import Budgets
from appliance.text.polyglot import LanguageTable
from appliance.text.pronounce import check as check_pronunciations
from appliance.text.sayable import FrontEnd
from appliance.text.styles import Voiced, style_of
from appliance.text.tokens.tokenizers import maker
from appliance.voices.index import VoiceIndex

SEED_BITS = 32
"""Size of drawn seeds. They are exact in every client's numbers, even in JavaScript's."""
FEWER_STEPS = 0.75
"""Steps of a way to serve a request, divided by the steps of the way before it."""
REFERENCES = 2.0
"""Length of a piece, in lengths of its reference, up to which a CPU does not cut it. A cut computes the
reference once more, so that it pays only for longer pieces.
"""

SEGMENTATIONS = {
    "adaptive": (Segmentation.UPSTREAM, Segmentation.LOW_LATENCY),
    "upstream": (Segmentation.UPSTREAM,),
    "low_latency": (Segmentation.LOW_LATENCY,),
}
"""Name in the configuration → segmentations to try, the best first. A wish with a seed uses only the last."""
RowOf = Callable[[LanguageTable, str, str, str], tuple[str, LanguageRow]]
"""(table, text, channel, language) → (code, row)."""


@dataclass(frozen=True)
class PlannedWay:
    """A way to serve a wish: a number of steps and a segmentation."""

    request: Request
    segments: Sequence[Segment] = ()
    key: Key | None = None
    """Key in the phrase cache, if the finished audio is to be stored."""


@dataclass(frozen=True)
class Ready:
    """A wish with its voice, its text and its segments, ready for admission."""

    speech: Speech
    """Speech of the bundle that will speak the wish."""
    wish: Wish
    """The wish with all choices."""
    ways: Sequence[PlannedWay]
    """At least one way; the best is first."""
    cached_segments: tuple[SegmentAudio, ...] = ()
    """Finished audio from the cache, if it serves the wish."""

    @property
    def is_empty(self) -> bool:
        """True if the text has nothing to speak."""
        return not self.ways[0].request.text


@dataclass(frozen=True)
class Speech:
    """Everything needed to speak from one bundle. A reload or a swap replaces the whole object."""

    front: FrontEnd
    planner: Planner
    voices: VoiceIndex
    synthesis: SynthesisConfig
    audio: AudioConfig
    usual: Choices
    """Choices for callers who leave them to the bundle and the configuration."""
    scheduler: Scheduler
    phrases: Phrases
    generation: int | None = None
    """Generation of the engine, for the current bundle; None in the Speech of a secondary bundle, which no
    swap replaces.
    """
    bundle: str = ""
    """Key of the bundle's engine; "" for the current engine."""
    table: LanguageTable | None = None
    """Voices for wishes that leave the voice to the language of their text."""
    secondary: Mapping[str, Speech] = field(default_factory=dict)
    """Language code → Speech of its secondary bundle, for rows of the table that name a bundle."""

    @classmethod
    def of(
        cls,
        config: Config,
        manifest: Manifest,
        vocabulary: Vocabulary,
        reference: Callable[[str, str], Reference],
        *,
        voices: VoiceIndex,
        scheduler: Scheduler,
        phrases: Phrases,
        bundle: str = "",
        words: Mapping[str, Path] = MappingProxyType({}),
    ) -> Speech:
        """Raises ConfigError for settings that the bundle does not allow."""
        synthesis = config.synthesis
        usual = usual_choices(synthesis, manifest)
        planner = Planner(
            manifest,
            vocabulary,
            reference,
            maker(vocabulary.tokenizer, vocabulary.voice),
            max_audio_s=synthesis.max_audio_s,
            max_work_s=synthesis.max_work_s,
            restores_level=config.audio.loudness_lufs is None,
        )
        front = FrontEnd(vocabulary, config.text, manifest.text.languages, words)
        generation = None if bundle else scheduler.engines.generation
        settings = synthesis, config.audio, usual
        return cls(front, planner, voices, *settings, scheduler, phrases, generation, bundle)

    @property
    def manifest(self) -> Manifest:
        return self.planner.manifest

    @cached_property
    def _manifest_text(self) -> str:
        return repr(self.manifest)

    @property
    def engine(self) -> Engine:
        """Engine of the bundle. It exists as soon as requests are admitted."""
        return cast(Engine, self.scheduler.engines.of(self.bundle))

    # The way of a wish to segments.

    def ready(self, wish: Wish, count: int = 1) -> Work[Ready]:
        """Choose voice and bundle, read the text of a wish that stands for `count` requests, and plan it.

        The first slice of work has the size `wish.size`. Raises InvalidRequest, VoiceNotFound, StorageError.
        """
        wish, speech = self._chosen(wish, LanguageTable.of)
        ready: Ready = yield from speech._planned(wish.speaking_for(count))
        return ready

    def _chosen(self, wish: Wish, row_of: RowOf) -> tuple[Wish, Speech]:
        """The wish with voice, style and language of its row in the table, and the Speech of the row."""
        table = self.table
        if table is None or not wish.is_by_language or (wish.voice and self.voices.is_usable(AUTO)):
            return wish, self
        code, row = row_of(table, wish.text, wish.terms.channel, wish.language_code)
        style, language = wish.style or row.style, wish.language_code or code
        wish = replace(wish, voice=row.voice, style=style, language_code=language)
        return wish, self.secondary.get(code, self)

    def _planned(self, wish: Wish) -> Work[Ready]:
        """Plan a request: look up voices, rewrite the text, plan the ways, look for a stored reply."""
        is_in_memory = self.voices.at_hand(wish.voice, style_of(wish.style))
        if wish.may_hold_tags or wish.begin != AT_FIRST or not is_in_memory:
            yield LOOKUP
        for name in wish.tagged_voices:
            yield VOICE
            self.voices.is_usable(name)
        wish = wish.over(self.usual)
        requests = self._requests(wish)
        if not requests[0].text:
            return Ready(self, wish, [PlannedWay(requests[0])])
        ways = yield from self.planner.ways(requests)
        if wish.segmentation is UNSET and self._is_dear(ways[0][1]):
            by_steps = {one.nfe: replace(one, segmentation=Segmentation.LOW_LATENCY) for one in requests}
            ways = yield from self.planner.ways(list(by_steps.values()))
        made_by = f"{self._manifest_text} {self.engine.backend}"
        keys = self.phrases.keys([segments for _, segments in ways], made_by, seeded=wish.seed is not None)
        match = self.phrases.find(keys)
        if match is None:
            return Ready(self, wish, [PlannedWay(*way, key) for way, key in zip(ways, keys, strict=True)])
        place, phrase = match
        request, segments = ways[place]
        return Ready(self, wish, [PlannedWay(replace(request, seed=phrase.seed), segments)], phrase.segments)

    def _is_dear(self, segments: Sequence[Segment]) -> bool:
        """True if a piece is so long that a CPU makes two shorter pieces sooner, because its time grows with
        the square of the length.
        """
        longest = LONGEST_PIECE_S * self.manifest.mel.frames_per_second
        return self.engine.backend.startswith("ort-cpu") and any(
            one.frames - one.reference_frames > max(longest, REFERENCES * one.reference_frames)
            for one in segments
        )

    def _requests(self, wish: Wish) -> list[Request]:
        """Ways to serve a wish, the best first: by segmentation, then with fewer steps."""
        request = self._request(wish)
        ways = [replace(request, segmentation=one) for one in self._segmentations(wish)]
        if wish.min_nfe_steps is not UNSET:
            within("min_nfe_steps", wish.min_nfe_steps, 1, request.nfe)
            steps = fewer(request.nfe, wish.min_nfe_steps, self.manifest.sampler.steps)
            ways += [replace(ways[-1], nfe=nfe) for nfe in steps]
        return ways

    def _segmentations(self, wish: Wish) -> Sequence[Segmentation]:
        """Segmentations to try for the wish, the best first.

        An adaptive segmentation has several, unless the wish has a seed, which must always give the same
        samples.
        """
        if wish.segmentation is not UNSET:
            return [wish.segmentation]
        synthesis = self.synthesis
        name = synthesis.stream_segmentation if wish.stream else synthesis.unary_segmentation
        return SEGMENTATIONS[name] if wish.seed is None else SEGMENTATIONS[name][-1:]

    def _request(self, wish: Wish) -> Request:
        """Request of a wish with all choices: its text within the vocabulary, in upstream's segmentation."""
        sampler, synthesis = self.manifest.sampler, self.synthesis
        within("nfe_steps", wish.nfe_steps, 1, synthesis.max_nfe)
        written = clean(wish.text, limit_characters=synthesis.max_text_characters)
        check_pronunciations(wish.pronunciations)
        begin = self._begin(wish)
        spoken = self._spoken(wish, begin.voice)
        for rule in RULES:
            spoken = rule(self.front, self.voices, self.scheduler.queue, wish, spoken)
        if not wish.voice:
            raise InvalidRequest("voice", "is empty; name a registered voice (ListVoices lists them)")
        with values_of(partial(InvalidRequest, "nfe_steps")):
            sampler.check_steps(wish.nfe_steps)
        with values_of(partial(InvalidRequest, "guidance")):
            sampler.check_strength(wish.guidance)
        check_rate(wish.sample_rate_hz, wish.encoding)
        return Request(
            **{**vars(spoken), "switches": (begin, *spoken.switches)},
            written=spoken.text if wish.handling is Handling.SSML else written,
            voice=wish.voice,
            style=style_of(wish.style),
            nfe=wish.nfe_steps,
            seed=secrets.randbits(SEED_BITS) if wish.seed is None else wish.seed,
            guidance=wish.guidance,
            segmentation=Segmentation.UPSTREAM,
            speaking_rate=wish.speaking_rate,
            max_spoken_s=wish.max_spoken_seconds,
        )

    def _begin(self, wish: Wish) -> Switch:
        """Voice and style at the end of the earlier text; the start if that voice no longer exists or lacks
        the style.
        """
        voice, style = wish.begin.voice, wish.begin.style
        lost_voice = voice and not self.voices.is_usable(voice)
        lost_style = style and style not in self.voices.styles(voice or wish.voice)
        return AT_FIRST if lost_voice or lost_style else wish.begin

    def _spoken(self, wish: Wish, begin: str) -> SpokenText:
        """The text within the vocabulary. It begins in the voice `begin`; "" is the voice of the wish."""

        def voiced(voice: str) -> Voiced:
            words = {**self.voices.pronunciations(voice), **wish.pronunciations}
            return Voiced(words, self.voices.styles(voice) if wish.may_hold_tags else ())

        @cache
        def other(name: str) -> Voiced | None:
            return voiced(name or wish.voice) if not name or self.voices.is_usable(name) else None

        own = voiced(begin or wish.voice)
        others = other if wish.voice_tags and wish.may_hold_tags else None
        return self.front.speakable(
            wish.text, wish.handling, own.words, wish.language_code, own.styles, others, begin
        )

    # Methods for a text that is still being written.

    def splitter(self, wish: Wish) -> TextSplitter:
        """Splitter for texts with the options of a wish.

        Raises InvalidRequest, VoiceNotFound, StorageError.
        """
        codes = filter(None, (base_code(wish.language_code), *self.front.languages))
        most, is_verbatim = self.synthesis.max_text_characters, wish.handling is Handling.VERBATIM
        budgets = self.budgets(replace(wish, text="0"))  # a digit reveals no language
        return TextSplitter(budgets, tuple(codes), most=most, verbatim=is_verbatim)

    def budgets(self, wish: Wish) -> Budgets:
        """Sizes of pieces in the voice of a wish. The channel's remembered language does not change.

        Raises InvalidRequest, VoiceNotFound, StorageError.
        """
        wish, speech = self._chosen(wish, LanguageTable.likely)
        return speech.planner.budgets(speech._request(wish.over(speech.usual)))


def usual_choices(synthesis: SynthesisConfig, manifest: Manifest) -> Choices:
    """Usual choices of a configuration. Raises ConfigError for settings that the bundle does not allow."""
    sampler, nfe = manifest.sampler, synthesis.steps_with(manifest.sampler)
    guidance = manifest.defaults.guidance if synthesis.guidance is None else synthesis.guidance
    with values_of(lambda why: ConfigError(f"synthesis.nfe: {why}")):
        sampler.check_steps(nfe)
    if nfe > synthesis.max_nfe:
        raise ConfigError(
            f"synthesis.max_nfe: must be {nfe} or more with this bundle, not {synthesis.max_nfe}"
        )
    with values_of(lambda why: ConfigError(f"synthesis.guidance: {why}")):
        sampler.check_strength(guidance)
    rate_hz = manifest.mel.sample_rate_hz
    return Choices(nfe_steps=nfe, guidance=guidance, seed=synthesis.seed, sample_rate_hz=rate_hz)


@contextmanager
def values_of(error_of: Callable[[str], ApplianceError]) -> Iterator[None]:
    """Turn a ValueError in this block into the error that `error_of` makes of its message."""
    try:
        yield
    except ValueError as error:
        raise error_of(str(error)) from None


def fewer(nfe: int, fewest: int, steps: Sequence[int]) -> Iterator[int]:
    """Allowed numbers of steps from `fewest` to below `nfe`, falling. Empty `steps` allow any number."""
    yield from (number for number in reversed(steps) if fewest <= number < nfe)
    while nfe > fewest and not steps:
        nfe = max(min(int(nfe * FEWER_STEPS), nfe - 1), fewest)
        yield nfe
