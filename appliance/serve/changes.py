"""Changes of a running daemon: its configuration by a reload, its bundle by a swap."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from appliance.config import Config, LanguageRow, SynthesisConfig
from appliance.contract import bundle
from appliance.contract.bundle import Bundle, Manifest, Text
from appliance.contract.tokens import Vocabulary
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_beside, that_rests
from appliance.errors import (
    ApplianceError,
    BundleError,
    ConfigError,
    EngineFault,
    Interrupted,
    PhonesMissing,
    Unavailable,
)
from appliance.request import Reference
from appliance.rpc.requests import RequestDefaults
from appliance.rpc.speech import Speech
from appliance.speech.plan import Planner
from appliance.speech.resident import bundles_beside, key_of
from appliance.text.languages import UnknownLanguage, base_code
from appliance.text.polyglot import LanguageTable
from appliance.text.sayable import FrontEnd
from appliance.text.tokens.tokenizers import maker, warm
from appliance.voices.index import VoiceIndex
from appliance.voices.prompts import Prompts
from appliance.voices.transcript import Reader

logger = logging.getLogger(__name__)

LIVE_SECTIONS = ("synthesis", "text", "audio", "scheduler", "log")
"""Sections that a reload can change."""


class Changes:
    """The bundle and the configuration in use, and the Speech that they make."""

    def __init__(
        self, config: Config, read: Bundle, store: VoiceIndex, prompts: Prompts, parts: Callable[..., Speech]
    ) -> None:
        """`parts` takes planner and defaults. Raises ConfigError."""
        self.config, self.bundle = config, read
        self._store, self._prompts, self._make = store, prompts, parts
        self.beside = bundles_beside(config, read)
        """Bundles of the table of languages, by the path that is their key."""
        store.further = list(map(Reader.of, self.beside.values()))
        vocabulary = read.vocabulary()
        self.front = front_of(vocabulary, read.manifest, config)
        self.speech = self._speech(config, read.manifest, vocabulary, self.front)
        self._scheduler = self.speech.scheduler

    def _speech(self, config: Config, manifest: Manifest, vocabulary: Vocabulary, front: FrontEnd) -> Speech:
        """Speech of the present bundle and of those beside it.

        Raises ConfigError for settings that a bundle does not take, and for a table that names others.
        """
        fronts, beside = {"": front}, dict[str, Speech]()
        for key, read in self.beside.items():
            letters = read.vocabulary()
            fronts[key] = front_of(letters, read.manifest, config)
            reader = Reader(fronts[key].spelling, read.manifest.text.languages)
            reference = partial(self._store.reference, reader=reader)
            speech = self._speech_of(config, read.manifest, letters, fronts[key], reference)
            beside[key] = replace(speech, generation=None, bundle=key)
        speech = self._speech_of(config, manifest, vocabulary, front, self._prompts.reference)
        defaults = replace(speech.defaults, by_language=table_of(config, fronts))
        return replace(speech, defaults=defaults, beside=beside)

    def _speech_of(
        self,
        config: Config,
        manifest: Manifest,
        vocabulary: Vocabulary,
        front: FrontEnd,
        reference: Callable[[str, str], Reference],
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
        defaults = RequestDefaults(
            synthesis,
            nfe,
            guidance,
            manifest.mel.sample_rate_hz,
            speakable=front.speakable,
            languages=front.languages,
            language_of=front.language_of,
            pronunciations=self._store.pronunciations,
            styles=self._store.styles,
            is_voice=self._store.is_usable,
            sampler=manifest.sampler,
            audio=config.audio,
        )
        return self._make(planner, defaults)

    def reload(self, config: Config) -> list[str]:
        """Apply LIVE_SECTIONS of a configuration; streams go on.

        Returns the changed sections that need a restart. Raises ConfigError.
        """
        # The watermark belongs to the engine, and to phrases that it has made.
        audio = replace(config.audio, watermark=self.config.audio.watermark)
        live = {section: getattr(config, section) for section in LIVE_SECTIONS} | {"audio": audio}
        fixed = [
            section
            for section in vars(config)
            if section not in live and getattr(config, section) != getattr(self.config, section)
        ]
        if audio != config.audio:
            fixed.append("audio.watermark")
        if fixed:
            logger.warning("reload: only a restart takes over the changes in %s", ", ".join(fixed))
        changed = replace(self.config, **live)
        vocabulary, manifest = self.speech.planner.vocabulary, self.bundle.manifest
        front = front_of(vocabulary, manifest, changed)
        speech = self._speech(changed, manifest, vocabulary, front)
        self.speech = replace(speech, generation=self.speech.generation)
        self.config, self.front = changed, front
        self._scheduler.config = changed.scheduler
        logging.getLogger().setLevel(changed.log.level.upper())
        logger.info("reload: configuration read, %d voices", len(self._store.names()))
        return fixed

    async def swap(self, folder: Path, report: Callable[[str], None]) -> Synthesizer:
        """Load another bundle beside the present one, and give it all new requests.

        Raises BundleError when it cannot be used or has another mel or level of references, ConfigError when
        it does not know `text.language`, EngineFault, StorageError, Unavailable.
        """
        self._scheduler.check_open()
        try:
            read, vocabulary, loaded = await asyncio.to_thread(self._load, folder, report)
        except Interrupted:
            raise Unavailable("the daemon is draining") from None
        try:
            # Makes what a runtime keeps by thread; a fault shows while the old engine still speaks.
            await self.test_engine(loaded)
            # By the configuration that holds now: a reload may have come meanwhile.
            front = front_of(vocabulary, read.manifest, self.config)
            speech = self._speech(self.config, read.manifest, vocabulary, front)

            def switch() -> None:
                self.speech = replace(speech, generation=self._scheduler.engines.generation)
                self.bundle, self.front = read, front

            engine = that_rests(
                loaded, read, self.config.engine, speech.defaults.nfe, self.config.audio.watermark
            )
            self._scheduler.engines.replace(engine, switch)
        except ApplianceError:
            loaded.shutdown()
            raise
        self._store.reader = Reader(front.spelling, read.manifest.text.languages)
        for line in await asyncio.to_thread(self._store.misread):
            logger.warning("%s", line)
        logger.info("new requests are spoken from %s on %s", folder, loaded.backend)
        return loaded

    def _load(self, folder: Path, report: Callable[[str], None]) -> tuple[Bundle, Vocabulary, Synthesizer]:
        config = self.config
        real = Path(os.path.realpath(folder))
        read = bundle.read(real, verify=config.bundle.verify).up_to(config.engine.longest_s)
        if read.manifest.prepares != self.bundle.manifest.prepares:
            raise BundleError(
                f"{folder}: its mel, or its rule of references, is another than that of the prepared "
                "voices; restart with it"
            )
        # Both refuse a configuration that does not fit the bundle, before anything is loaded.
        nfe, _ = usual(config.synthesis, read.manifest)
        vocabulary = read.vocabulary()
        FrontEnd(vocabulary, config.text, read.manifest.text.languages)
        warm_tokens(read.manifest.text)
        present = [self.bundle.folder, *(other.folder for other in self.beside.values())]
        mark = config.audio.watermark
        return read, vocabulary, load_beside(read, config.engine, nfe, report, mark, present)

    async def test_engine(self, engine: Synthesizer | None = None) -> float:
        """Test an engine, else the present one, between two calls; returns seconds.

        Raises Unavailable, EngineFault.
        """
        loop = asyncio.get_running_loop()
        test: asyncio.Future[float | Exception] = loop.create_future()

        def settle(result: float | Exception) -> None:
            if not test.done():
                test.set_result(result)

        def done(result: float | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result)

        self._scheduler.engines.test(done, engine)
        result = await test
        if isinstance(result, ApplianceError):
            raise result
        if isinstance(result, Exception):
            raise EngineFault(f"the engine failed: {type(result).__name__}: {result}") from result
        return result


def front_of(vocabulary: Vocabulary, manifest: Manifest, config: Config) -> FrontEnd:
    """Raises ConfigError for a `text.language` that is not known."""
    front = FrontEnd(vocabulary, config.text, manifest.text.languages)
    if front.languages:
        logger.info("languages: %s", ", ".join(front.languages))
    else:
        logger.warning("no language is known, so no number becomes a word; text.language says which it is")
    return front


def table_of(config: Config, fronts: Mapping[str, FrontEnd]) -> LanguageTable | None:
    """`fronts` are by the keys of bundles. Raises ConfigError for a table that cannot be used."""
    rows: dict[str, LanguageRow] = {}
    for code, row in config.text.languages.items():
        if code != base_code(code):
            raise ConfigError(f"text.languages.{code}: must be the first part of a tag, as {base_code(code)}")
        if (key := key_of(row, config)) not in fronts:
            raise ConfigError(f"text.languages.{code}.bundle: only a restart loads another bundle")
        try:
            fronts[key].check_language(code)
        except UnknownLanguage as error:
            raise ConfigError(f"text.languages.{code}: {error}") from None
        rows[code] = replace(row, bundle=Path(key) if key else None)
    return LanguageTable(rows) if rows else None


def usual(synthesis: SynthesisConfig, manifest: Manifest) -> tuple[int, float]:
    """Steps and strength of requests that name none.

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


def warm_tokens(text: Text) -> None:
    if text.tokenizer in ("char", "letters", "simple"):  # no dictionary; the Chinese ones take 84 MB
        return
    try:
        warm(text.tokenizer, text.voice)
    except PhonesMissing as error:  # Chinese is spoken without
        logger.error("%s is refused: %s", "English" if text.tokenizer == "emilia" else "speech", error)
