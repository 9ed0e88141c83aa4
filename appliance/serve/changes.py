"""Changes of a running daemon: its configuration by a reload, its bundle by a swap."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from appliance.audio.phrases import Phrases
from appliance.config import Config
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Text
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
from appliance.scheduler import Scheduler
from appliance.speech.resident import Residents
from appliance.speech.speech import Speech
from appliance.text.languages import UnknownLanguage, base_code
from appliance.text.polyglot import LanguageTable
from appliance.text.tokens.tokenizers import warm
from appliance.voices.index import VoiceIndex
from appliance.voices.prompts import Prompts
from appliance.voices.transcript import Reader

logger = logging.getLogger(__name__)

LIVE_SECTIONS = ("synthesis", "text", "audio", "scheduler", "log")
"""Sections that a reload applies. Changes of others need a restart."""


class Changes:
    """Current bundle and configuration, and the Speech that is built from them."""

    def __init__(
        self,
        config: Config,
        bundle: Bundle,
        voices: VoiceIndex,
        prompts: Prompts,
        scheduler: Scheduler,
        phrases: Phrases,
    ) -> None:
        """Raises BundleError, ConfigError."""
        self._voices, self._prompts = voices, prompts
        self._scheduler, self._phrases = scheduler, phrases
        self._residents = Residents(config, bundle)
        self._readers = {key: Reader.of(other) for key, other in self.secondary.items()}
        voices.further = list(self._readers.values())
        self._take(config, bundle, self._speech(config, bundle, bundle.vocabulary()))
        self._log_doubts()

    @property
    def secondary(self) -> Mapping[str, Bundle]:
        """Secondary bundles of the table of languages, by their keys."""
        return self._residents.secondary

    def _take(self, config: Config, bundle: Bundle, speech: Speech) -> None:
        """Use a Speech for new requests."""
        self.config, self.bundle, self.speech = config, bundle, speech

    def _log_doubts(self) -> None:
        """Log the configured languages, and each row of the table that cannot have its full effect."""
        if languages := self.speech.front.languages:
            logger.info("languages: %s", ", ".join(languages))
        else:
            logger.warning("the language is unknown, so numbers are not spoken; set text.language")
        for line in self._residents.doubts(self.config, self.bundle, self._voices):
            logger.warning("%s", line)

    def _speech(self, config: Config, bundle: Bundle, vocabulary: Vocabulary) -> Speech:
        """Speech of a bundle and of the secondary bundles.

        Raises ConfigError for settings that a bundle does not take, and for an unusable table of languages.
        """
        make = partial(
            Speech.of, config, voices=self._voices, scheduler=self._scheduler, phrases=self._phrases
        )
        speech = make(bundle.manifest, vocabulary, self._prompts.reference, words=bundle.words)
        others = {"": speech}
        for key, other in self.secondary.items():
            reference = partial(self._voices.reference, reader=self._readers[key])
            others[key] = make(other.manifest, other.vocabulary(), reference, bundle=key, words=other.words)
        rows, secondary = config.text.languages, dict[str, Speech]()
        for code, row in rows.items():
            if code != base_code(code):
                raise ConfigError(
                    f"text.languages.{code}: must be the first part of a tag, as {base_code(code)}"
                )
            key = self._residents.key_of(code, row, bundle)
            try:
                others[key].front.check_language(code)
            except UnknownLanguage as error:
                raise ConfigError(f"text.languages.{code}: {error}") from None
            if key:
                secondary[code] = others[key]
        return replace(speech, table=LanguageTable(rows) if rows else None, secondary=secondary)

    def reload(self, config: Config) -> list[str]:
        """Apply LIVE_SECTIONS of a configuration. Streams go on."""
        # The watermark belongs to the engine, and to the phrases that the engine has spoken.
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
            logger.warning("reload: the changes in %s need a restart", ", ".join(fixed))
        changed = replace(self.config, **live)
        speech = self._speech(changed, self.bundle, self.speech.planner.vocabulary)
        self._take(changed, self.bundle, speech)
        self._log_doubts()
        self._scheduler.config = changed.scheduler
        logging.getLogger().setLevel(changed.log.level.upper())
        logger.info("reload: configuration read, %d voices", len(self._voices.names()))
        return fixed

    async def swap(self, folder: Path, report: Callable[[str], None]) -> Synthesizer:
        """Load another bundle next to the current one, and give it all new requests.

        Raises BundleError if the bundle cannot be used or has another mel or another reference level;
        ConfigError if it does not know `text.language`; EngineFault, StorageError, Unavailable.
        """
        self._scheduler.check_open()
        try:
            bundle, vocabulary, loaded = await asyncio.to_thread(self._load, folder, report)
        except Interrupted:
            raise Unavailable("the daemon is draining") from None
        try:
            # The test creates the state that a runtime has for each thread. It shows a fault while the old
            # engine still speaks.
            await self.test_engine(loaded)
            # A reload may have changed the configuration since the swap began.
            config, speech = self.config, self._speech(self.config, bundle, vocabulary)

            def switch() -> None:
                generation = self._scheduler.engines.generation
                self._take(config, bundle, replace(speech, generation=generation))

            mark = config.audio.watermark
            engine = that_rests(loaded, bundle, config.engine, speech.usual.nfe_steps, mark)
            self._scheduler.engines.replace(engine, switch)
        except ApplianceError:
            loaded.shutdown()
            raise
        self._log_doubts()
        self._voices.reader = Reader(speech.front.spelling, bundle.manifest.text.languages)
        for line in await asyncio.to_thread(self._voices.misread):
            logger.warning("%s", line)
        logger.info("new requests are spoken from %s on %s", folder, loaded.backend)
        return loaded

    def _load(self, folder: Path, report: Callable[[str], None]) -> tuple[Bundle, Vocabulary, Synthesizer]:
        """Read a bundle, and load its engine while the current one speaks.

        Raises BundleError if voices do not fit.
        """
        config = self.config
        real = Path(os.path.realpath(folder))
        bundle = contract.read(real, verify=config.bundle.verify).up_to(config.engine.longest_s)
        if bundle.manifest.prepares != self.bundle.manifest.prepares:
            raise BundleError(
                f"{folder}: its mel or its rule of references differs from that of the prepared "
                "voices; restart the daemon with it"
            )
        # A configuration that does not fit the bundle fails here, before anything is loaded.
        vocabulary = bundle.vocabulary()
        nfe = self._speech(config, bundle, vocabulary).usual.nfe_steps
        warm_tokens(bundle.manifest.text)
        present = [self.bundle.folder, *(other.folder for other in self.secondary.values())]
        mark = config.audio.watermark
        return bundle, vocabulary, load_beside(bundle, config.engine, nfe, report, mark, present)

    async def test_engine(self, engine: Synthesizer | None = None) -> float:
        """Test an engine (None: the current one) between two calls; return the seconds it took."""
        try:
            return await asyncio.wrap_future(self._scheduler.engines.test(engine))
        except ApplianceError:
            raise
        except Exception as error:
            raise EngineFault(f"the engine failed: {type(error).__name__}: {error}") from error


def warm_tokens(text: Text) -> None:
    if text.tokenizer in ("char", "letters", "simple"):  # no dictionary; the Chinese ones take 84 MB
        return
    try:
        warm(text.tokenizer, text.voice)
    except PhonesMissing as error:  # Chinese works without
        logger.error("%s is refused: %s", "English" if text.tokenizer == "emilia" else "speech", error)
