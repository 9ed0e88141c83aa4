"""Speech: what depends on a bundle and on the configuration; it makes segments of a wish."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import cast

from appliance.audio.encode import check_rate
from appliance.audio.phrases import Key, Phrases
from appliance.config import AudioConfig, Config, LanguageRow, SynthesisConfig
from appliance.contract.bundle import Manifest
from appliance.contract.tokens import Vocabulary
from appliance.errors import ConfigError, InvalidRequest
from appliance.options import AUTO
from appliance.request import (
    AT_FIRST,
    Handling,
    Reference,
    ReplyLevel,
    Request,
    Segment,
    Segmentation,
    SegmentAudio,
    Spoken,
    Switch,
)
from appliance.scheduler import Scheduler
from appliance.scheduler.interface import Engine
from appliance.speech.plan import Planner
from appliance.speech.wish import NOT_SAID, Choices, Number, Wish, within
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
"""Size of drawn seeds: exact in every client's numbers, also in JavaScript's."""
FEWER_STEPS = 0.75
"""Ratio of steps from one way to serve a request to the next."""

SEGMENTATIONS = {
    "adaptive": (Segmentation.UPSTREAM, Segmentation.LOW_LATENCY),
    "upstream": (Segmentation.UPSTREAM,),
    "low_latency": (Segmentation.LOW_LATENCY,),
}
"""What the configuration names; the best comes first, and with a seed only the last is possible."""
RowOf = Callable[[LanguageTable, str, str, str], tuple[str, LanguageRow]]
"""Table, text, channel and language → code and row."""


@dataclass(frozen=True)
class Way:
    """One way to serve a wish: with these steps and this segmentation."""

    request: Request
    segments: Sequence[Segment] = ()
    key: Key | None = None
    """Key in the phrase cache, if the finished audio is to be kept."""


@dataclass(frozen=True)
class Ready:
    """A wish with its voice, its text and its segments: the scheduler may admit it."""

    speech: Speech
    """Speech of the bundle that speaks it."""
    ways: Sequence[Way]
    """At least one, the best first."""
    kept: tuple[SegmentAudio, ...] = ()
    """Audio of an earlier request that serves the wish."""

    @property
    def is_empty(self) -> bool:
        """True if the text has nothing to speak."""
        return not self.ways[0].request.text


@dataclass(frozen=True)
class Speech:
    """Whatever one bundle needs to speak. A reload or a swap replaces it whole."""

    front: FrontEnd
    planner: Planner
    voices: VoiceIndex
    synthesis: SynthesisConfig
    audio: AudioConfig
    usual: Choices
    """Choices of a caller who leaves them to the bundle and the configuration."""
    scheduler: Scheduler
    phrases: Phrases
    generation: int | None = None
    """Engine for which the bundle plans; None for a secondary bundle, which no swap replaces."""
    bundle: str = ""
    """Key of the bundle's engine; "" for the engine in use."""
    table: LanguageTable | None = None
    """Voices of wishes that leave the voice to the language of their text."""
    beside: Mapping[str, Speech] = field(default_factory=dict)
    """Speech of each language in the table that has a bundle of its own."""

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
    ) -> Speech:
        """Raises ConfigError for settings that the bundle does not take."""
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
        front = FrontEnd(vocabulary, config.text, manifest.text.languages)
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
        """Engine of the bundle; there is one as soon as requests are admitted."""
        return cast(Engine, self.scheduler.engines.of(self.bundle))

    # From a wish to segments.

    def ready(self, wish: Wish, count: int = 1) -> Work[Ready]:
        """Choose voice and bundle, read the text of a wish that speaks for `count` requests, and plan it.

        Its first slice has `wish.size`. Raises InvalidRequest, VoiceNotFound, StorageError.
        """
        wish, speech = self._chosen(wish, LanguageTable.of)
        ready: Ready = yield from speech._planned(wish.speaking_for(count))
        return ready

    def _chosen(self, wish: Wish, row_of: RowOf) -> tuple[Wish, Speech]:
        """The wish with voice, style and language of its row in the table, and the Speech of the row."""
        voice = wish.voice.lower()
        if self.table is None or voice not in ("", AUTO) or (voice and self.voices.is_usable(voice)):
            return wish, self
        code, row = row_of(self.table, wish.text, wish.terms.channel, wish.language)
        style, language = wish.style or row.style, wish.language or code
        return replace(wish, voice=row.voice, style=style, language=language), self.beside.get(code, self)

    def _planned(self, wish: Wish) -> Work[Ready]:
        is_in_memory = self.voices.at_hand(wish.voice, style_of(wish.style))
        if wish.may_hold_tags or wish.begin != AT_FIRST or not is_in_memory:
            yield LOOKUP
        for name in wish.tagged_voices:
            yield VOICE
            self.voices.is_usable(name)
        requests = self._requests(wish)
        if not requests[0].text:
            return Ready(self, [Way(requests[0])])
        ways = yield from self.planner.ways(requests)
        is_seeded = wish.choices.over(self.usual).seed is not NOT_SAID
        made_by = f"{self._manifest_text} {self.engine.backend}"
        keys = self.phrases.keys([segments for _, segments in ways], made_by, seeded=is_seeded)
        found = self.phrases.find(keys)
        if found is None:
            return Ready(self, [Way(*way, key) for way, key in zip(ways, keys, strict=True)])
        place, phrase = found
        request, segments = ways[place]
        return Ready(self, [Way(replace(request, seed=phrase.seed), segments)], phrase.segments)

    def _requests(self, wish: Wish) -> list[Request]:
        """Ways to serve a wish, the best first: by segmentation, then with fewer steps."""
        request = self._request(wish)
        ways = [replace(request, segmentation=one) for one in self._segmentations(wish)]
        if wish.min_nfe is not NOT_SAID:
            fewest = within("min_nfe_steps", wish.min_nfe, 1, request.nfe)
            steps = fewer(request.nfe, fewest, self.manifest.sampler.steps)
            ways += [replace(ways[-1], nfe=nfe) for nfe in steps]
        return ways

    def _segmentations(self, wish: Wish) -> Sequence[Segmentation]:
        """Segmentation of a wish; if it is adaptive and no seed fixes the samples, each, the best first."""
        if wish.segmentation is not NOT_SAID:
            return [wish.segmentation]
        synthesis, is_seeded = self.synthesis, wish.choices.over(self.usual).seed is not NOT_SAID
        name = synthesis.stream_segmentation if wish.stream else synthesis.unary_segmentation
        return SEGMENTATIONS[name][-1:] if is_seeded else SEGMENTATIONS[name]

    def _request(self, wish: Wish) -> Request:
        """The wish by the bundle, its text rewritten; the segmentation is yet to be chosen."""
        choices, sampler, synthesis = wish.choices.over(self.usual), self.manifest.sampler, self.synthesis
        nfe = within("nfe_steps", choices.nfe, 1, synthesis.max_nfe)
        written = clean(wish.text, limit_characters=synthesis.max_text_characters)
        check_pronunciations(wish.pronunciations)
        begin = self._begin(wish)
        spoken = self._spoken(wish, begin.voice)
        if not wish.voice:
            raise InvalidRequest("voice", "is empty; name a registered voice (ListVoices lists them)")
        channel_gain_db = self.audio.channel_gain_db.get(wish.terms.channel, 0.0)
        return Request(
            text=spoken.text,
            written=spoken.text if wish.handling is Handling.SSML else written,
            changes=spoken.changes,
            pauses=spoken.pauses,
            directions=spoken.directions,
            style=style_of(wish.style),
            switches=(begin, *spoken.switches),
            max_spoken_s=wish.max_spoken_s,
            voice=wish.voice,
            nfe=_allowed("nfe_steps", nfe, sampler.check_steps),
            seed=secrets.randbits(SEED_BITS) if choices.seed is None else choices.seed,
            guidance=_allowed("guidance", choices.guidance, sampler.check_strength),
            segmentation=Segmentation.UPSTREAM,
            speaking_rate=wish.speaking_rate,
            encoding=wish.encoding,
            sample_rate_hz=check_rate(choices.sample_rate_hz, wish.encoding),
            stream=wish.stream,
            word_timings=wish.word_timings,
            level=ReplyLevel(self.audio.loudness_lufs, wish.gain_db + channel_gain_db),
        )

    def _begin(self, wish: Wish) -> Switch:
        """Voice and style of an earlier text, unless the voice is gone or the style is not this voice's."""
        voice, style = wish.begin.voice, wish.begin.style
        lost_voice = voice and not self.voices.is_usable(voice)
        lost_style = style and style not in self.voices.styles(voice or wish.voice)
        return AT_FIRST if lost_voice or lost_style else wish.begin

    def _spoken(self, wish: Wish, begin: str) -> Spoken:
        """The text within the vocabulary; it begins in the voice `begin`, "" is the voice of the wish."""

        def voiced(voice: str) -> Voiced:
            words = {**self.voices.pronunciations(voice), **wish.pronunciations}
            return Voiced(words, self.voices.styles(voice) if wish.may_hold_tags else ())

        @cache
        def other(name: str) -> Voiced | None:
            return voiced(name or wish.voice) if not name or self.voices.is_usable(name) else None

        own = voiced(begin or wish.voice)
        others = other if wish.voice_tags and wish.may_hold_tags else None
        return self.front.speakable(
            wish.text, wish.handling, own.words, wish.language, own.styles, others, begin
        )

    # A text that is still being written.

    def splitter(self, wish: Wish) -> TextSplitter:
        """Splitter of texts with the values of a wish. Raises InvalidRequest, VoiceNotFound, StorageError."""
        codes = filter(None, (base_code(wish.language), *self.front.languages))
        most, is_verbatim = self.synthesis.max_text_characters, wish.handling is Handling.VERBATIM
        budgets = self.budgets(replace(wish, text="a"))
        return TextSplitter(budgets, tuple(codes), most=most, verbatim=is_verbatim)

    def budgets(self, wish: Wish) -> Budgets:
        """Sizes of pieces in the voice of a wish; the channel's language stays what it was.

        Raises InvalidRequest, VoiceNotFound, StorageError.
        """
        wish, speech = self._chosen(wish, LanguageTable.likely)
        return speech.planner.budgets(speech._request(wish))


def usual_choices(synthesis: SynthesisConfig, manifest: Manifest) -> Choices:
    """Raises ConfigError for settings that the bundle does not take."""
    sampler, nfe = manifest.sampler, synthesis.steps_with(manifest.sampler)
    guidance = manifest.defaults.guidance if synthesis.guidance is None else synthesis.guidance
    try:
        sampler.check_steps(nfe)
    except ValueError as error:
        raise ConfigError(f"synthesis.nfe: {error}") from None
    if nfe > synthesis.max_nfe:
        raise ConfigError(
            f"synthesis.max_nfe: must be {nfe} or more with this bundle, not {synthesis.max_nfe}"
        )
    try:
        sampler.check_strength(guidance)
    except ValueError as error:
        raise ConfigError(f"synthesis.guidance: {error}") from None
    return Choices(nfe, guidance, synthesis.seed, manifest.mel.sample_rate_hz)


def fewer(nfe: int, fewest: int, steps: Sequence[int]) -> Iterator[int]:
    """Numbers of steps below `nfe`, falling, among the `steps` that a bundle takes; none: it takes any."""
    yield from (number for number in reversed(steps) if fewest <= number < nfe)
    while nfe > fewest and not steps:
        nfe = max(min(int(nfe * FEWER_STEPS), nfe - 1), fewest)
        yield nfe


def _allowed(name: str, value: Number, check: Callable[[Number], None]) -> Number:
    try:
        check(value)
    except ValueError as error:
        raise InvalidRequest(name, str(error)) from None
    return value
