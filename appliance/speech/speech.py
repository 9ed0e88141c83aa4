"""Speech: what depends on a bundle and on the configuration; it makes segments of a wish."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from appliance.audio.encode import check_rate
from appliance.audio.phrases import Key, Phrase, Phrases, key_of
from appliance.config import AudioConfig, Config, LanguageRow, SynthesisConfig
from appliance.contract.bundle import Manifest
from appliance.contract.tokens import Vocabulary
from appliance.errors import ConfigError, InvalidRequest
from appliance.request import (
    AT_FIRST,
    Handling,
    PassedOver,
    Reference,
    ReplyLevel,
    Request,
    Segment,
    Segmentation,
    Spoken,
    Switch,
)
from appliance.scheduler import Scheduler
from appliance.speech.plan import Planner
from appliance.speech.wish import Number, Wish, within
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

RowOf = Callable[[str, str, str], tuple[str, LanguageRow]]
"""Text, channel and language → code and row of the table of languages."""


@dataclass(frozen=True)
class Way:
    """One way to serve a wish: with these steps and this segmentation."""

    request: Request
    segments: Sequence[Segment] = ()


@dataclass(frozen=True)
class Ready:
    """A wish with its voice, its text and its segments: the scheduler may admit it."""

    speech: Speech
    """Speech of the bundle that speaks it."""
    ways: Sequence[Way]
    """At least one, the best first."""
    keys: Sequence[Key] = ()
    """Key of each way in the phrase cache; empty if the finished audio is not to be kept."""
    phrase: Phrase | None = None
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
    nfe: int
    """Steps of a wish that names none."""
    guidance: float
    scheduler: Scheduler
    phrases: Phrases
    generation: int | None = None
    """Engine for which the bundle plans; None for a bundle beside it, which no swap replaces."""
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
        nfe, guidance = usual(synthesis, manifest)
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
        settings = synthesis, config.audio, nfe, guidance
        return cls(front, planner, voices, *settings, scheduler, phrases, generation, bundle)

    @property
    def manifest(self) -> Manifest:
        return self.planner.manifest

    @property
    def backend(self) -> tuple[str, Sequence[PassedOver]]:
        """Backend of the engine, and backends that the engine passed over."""
        engine = self.scheduler.engines.of(self.bundle)
        return (engine.backend, engine.passed_over) if engine else ("", ())

    # From a wish to segments.

    def ready(self, wish: Wish, count: int = 1) -> Work[Ready]:
        """Choose voice and bundle, read the text of a wish that speaks for `count` requests, and plan it.

        Raises InvalidRequest, VoiceNotFound, StorageError.
        """
        speech = self
        if self.table is not None and wish.is_by_language:
            yield LOOKUP if wish.voice else len(wish.text)
            wish, speech = self._by_language(wish, self.table.of)
        ready: Ready = yield from speech._ready(wish.speaking_for(count))
        return ready

    def _by_language(self, wish: Wish, row_of: RowOf) -> tuple[Wish, Speech]:
        """The wish with voice, style and language of its row in the table, and the Speech of the row."""
        if wish.voice and self.voices.is_usable(wish.voice.lower()):
            return wish, self
        code, row = row_of(wish.text, wish.terms.channel, wish.language)
        style = style_of(row.style) if wish.style is None else wish.style
        chosen = replace(wish, voice=row.voice, style=style, language=wish.language or code)
        return chosen, self.beside.get(code, self)

    def _ready(self, wish: Wish) -> Work[Ready]:
        if (
            wish.may_hold_tags
            or wish.begin != AT_FIRST
            or not self.voices.at_hand(wish.voice, wish.style or "")
        ):
            yield LOOKUP
        for name in wish.tagged_voices:
            yield VOICE
            self.voices.is_usable(name)
        yield wish.size
        requests = self._requests(wish)
        if not requests[0].text:
            return Ready(self, [Way(requests[0])])
        ways = [Way(*way) for way in (yield from self.planner.ways(requests))]
        is_seeded = wish.seed is not None or self.synthesis.seed is not None
        if not self.phrases.takes(seeded=is_seeded):
            return Ready(self, ways)
        made_by = f"{self.manifest!r} {self.backend[0]}"
        keys = [key_of(way.segments, made_by, seeded=is_seeded) for way in ways]
        kept = self.phrases.find(keys)
        if kept is None:
            return Ready(self, ways, keys)
        place, phrase = kept
        way = replace(ways[place], request=replace(ways[place].request, seed=phrase.seed))
        return Ready(self, [way], phrase=phrase)

    def _requests(self, wish: Wish) -> list[Request]:
        """Ways to serve a wish, the best first: by segmentation if it is adaptive, then with fewer steps."""
        synthesis, request = self.synthesis, self._request(wish)
        ways = [request]
        is_adaptive = wish.stream and synthesis.stream_segmentation == "adaptive"
        if is_adaptive and wish.segmentation is None and wish.seed is None and synthesis.seed is None:
            ways = [
                replace(request, segmentation=s) for s in (Segmentation.UPSTREAM, Segmentation.LOW_LATENCY)
            ]
        if wish.min_nfe is not None:
            fewest = within("min_nfe_steps", wish.min_nfe, 1, request.nfe)
            steps = fewer(request.nfe, fewest, self.manifest.sampler.steps)
            ways += [replace(ways[-1], nfe=nfe) for nfe in steps]
        return ways

    def _request(self, wish: Wish) -> Request:
        synthesis, sampler = self.synthesis, self.manifest.sampler
        nfe = within("nfe_steps", self.nfe if wish.nfe is None else wish.nfe, 1, synthesis.max_nfe)
        written = clean(wish.text, limit_characters=synthesis.max_text_characters)
        check_pronunciations(wish.pronunciations)
        begin = self._begin(wish)
        spoken = self._spoken(wish, begin)
        if not wish.voice:
            raise InvalidRequest("voice", "is empty; name a registered voice (ListVoices lists them)")
        rate_hz = self.manifest.mel.sample_rate_hz if wish.sample_rate_hz is None else wish.sample_rate_hz
        channel_gain_db = self.audio.channel_gain_db.get(wish.terms.channel, 0.0)
        return Request(
            text=spoken.text,
            written=spoken.text if wish.handling is Handling.SSML else written,
            changes=spoken.changes,
            pauses=spoken.pauses,
            directions=spoken.directions,
            style=wish.style or "",
            switches=spoken.switches if begin == AT_FIRST else (begin, *spoken.switches),
            max_spoken_s=wish.max_spoken_s,
            voice=wish.voice,
            nfe=_allowed("nfe_steps", nfe, sampler.check_steps),
            seed=self._seed(wish),
            guidance=_allowed(
                "guidance", self.guidance if wish.guidance is None else wish.guidance, sampler.check_strength
            ),
            segmentation=self._segmentation(wish),
            speaking_rate=wish.speaking_rate,
            encoding=wish.encoding,
            sample_rate_hz=check_rate(rate_hz, wish.encoding),
            stream=wish.stream,
            word_timings=wish.word_timings,
            level=ReplyLevel(self.audio.loudness_lufs, wish.gain_db + channel_gain_db),
        )

    def _begin(self, wish: Wish) -> Switch:
        """Voice and style of an earlier text, unless they are gone or this text's voice lacks the style."""
        voice, style = wish.begin.voice, wish.begin.style
        if voice and not self.voices.is_usable(voice):
            return AT_FIRST
        return AT_FIRST if style and style not in self.voices.styles(voice or wish.voice) else wish.begin

    def _spoken(self, wish: Wish, begin: Switch) -> Spoken:
        """Rewrite the text for the vocabulary."""

        def voiced(voice: str) -> Voiced:
            words = {**self.voices.pronunciations(voice), **wish.pronunciations}
            return Voiced(words, self.voices.styles(voice) if wish.may_hold_tags else ())

        @cache
        def other(name: str) -> Voiced | None:
            return voiced(name or wish.voice) if not name or self.voices.is_usable(name) else None

        own = voiced(begin.voice or wish.voice)
        others = other if wish.voice_tags and wish.may_hold_tags else None
        return self.front.speakable(
            wish.text, wish.handling, own.words, wish.language, own.styles, others, begin.voice
        )

    def _seed(self, wish: Wish) -> int:
        seed = self.synthesis.seed if wish.seed is None else wish.seed
        return secrets.randbits(SEED_BITS) if seed is None else seed

    def _segmentation(self, wish: Wish) -> Segmentation:
        if wish.segmentation is not None:
            return wish.segmentation
        synthesis = self.synthesis
        usual_way = synthesis.stream_segmentation if wish.stream else synthesis.unary_segmentation
        return Segmentation.LOW_LATENCY if usual_way == "adaptive" else Segmentation(usual_way)

    # A text that is still being written.

    def splitter(self, wish: Wish) -> TextSplitter:
        """Splitter of texts with the values of a wish. Raises InvalidRequest, VoiceNotFound, StorageError."""
        codes = filter(None, (base_code(wish.language), *self.front.languages))
        most, is_verbatim = self.synthesis.max_text_characters, wish.handling is Handling.VERBATIM
        budgets = self.budgets(replace(wish, text="a"))
        return TextSplitter(budgets, tuple(codes), most=most, verbatim=is_verbatim)

    def budgets(self, wish: Wish) -> Budgets:
        """Sizes of pieces in the voice of a wish; a channel's language stays what it was.

        Raises InvalidRequest, VoiceNotFound, StorageError.
        """
        speech = self
        if self.table is not None and wish.is_by_language:
            wish, speech = self._by_language(wish, self.table.likely)
        return speech.planner.budgets(speech._request(wish))


def usual(synthesis: SynthesisConfig, manifest: Manifest) -> tuple[int, float]:
    """Steps and strength of wishes that name none.

    Raises ConfigError for settings that the bundle does not take.
    """
    sampler = manifest.sampler
    nfe = synthesis.steps_with(sampler)
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
    return nfe, guidance


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
