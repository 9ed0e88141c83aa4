"""Front end: text of a request → text that the bundle's vocabulary can say, and the changes."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from appliance.config import TextConfig
from appliance.contract.tokens import Vocabulary
from appliance.errors import ConfigError, InvalidRequest
from appliance.request import Change, Direction, Handling, Pause, SpokenText, Switch
from appliance.text import ssml
from appliance.text.chat.chat import rewrite, tidied
from appliance.text.chat.line import Languages
from appliance.text.chat.marks import PRIVATE, Marks, Silent
from appliance.text.chat.rewrite import Rewriting, shortened
from appliance.text.languages import UnknownLanguage, base_code, muted, resolve
from appliance.text.languages import language as registered
from appliance.text.languages.words import WordsError
from appliance.text.normalise import normalise
from appliance.text.pronounce import pronounce
from appliance.text.scripts import HAN, JOINERS, KANA
from appliance.text.spans import Language
from appliance.text.spelling import Spelling
from appliance.text.styles import NEUTRAL, Others, Voiced, mark_styles, mark_voices, nobody

_SPACED = re.compile(rf"(?:(?![{HAN}{KANA}])[^\W\d_])+")
"""Letters of scripts with spaces between words."""


class FrontEnd:
    """Rewrites texts for one vocabulary. Thread-safe."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        choices: TextConfig | None = None,
        languages: Sequence[str] = (),
        words: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        """`languages` are the bundle's. `words`: language → the bundle's own file of words.

        Raises ConfigError for an unknown language in the configuration, and for a file that cannot be read.
        """
        self.choices = choices or TextConfig()
        self._bundles = tuple(map(base_code, languages))
        self.spelling = Spelling(vocabulary)
        self._can_say = self.spelling.can_say
        self._languages = lru_cache(maxsize=64)(self._active_languages)
        try:
            self._corrected = {code: registered(code, path) for code, path in words.items()}
            self._languages("")
        except UnknownLanguage as error:
            raise ConfigError(f"text.language: {error}") from None
        except WordsError as error:
            raise ConfigError(str(error)) from None

    def speakable(
        self,
        text: str,
        handling: Handling = Handling.CHAT,
        words: Mapping[str, str] = MappingProxyType({}),
        language: str = "",
        styles: Collection[str] = (),
        others: Others | None = None,
        begin: str = "",
    ) -> SpokenText:
        """Rewrite a text. It begins in the voice `begin` ("": the request's), with the voice's `words` and
        `styles`.

        `words` are pronunciations. `language` has precedence over the configured language and the bundle's.
        Unless the text is VERBATIM, tags switch to a style or to a voice of `others`, and the text of each
        voice is rewritten alone. Raises InvalidRequest for bad SSML and an unknown language.
        """
        try:
            languages = self._languages(language)
        except UnknownLanguage as error:
            raise InvalidRequest("language_code", str(error)) from None
        marks, changed, others = Marks(), Rewriting(PRIVATE.sub(" ", text)), others or nobody
        if handling is Handling.VERBATIM:
            pronounce(changed, words, marks)
            changed.text = normalise(changed.text)
            return self._spoken(changed, marks, languages, begin, 0.0)
        # A line of chat may contain many pauses that its listeners did not ask for.
        pauses_s = ssml.MAX_BREAK_S
        if handling is Handling.SSML:
            self._read_ssml(changed, marks, languages, others)
            pauses_s = math.inf
        mark_voices(changed, others, marks)
        whole = ""
        for mark, voice, part in marks.by_voice(changed.text):
            own = Voiced(words, styles) if voice is None else others(voice)
            assert own is not None
            rewritten = replace(changed, text=part)
            self._rewrite(rewritten, own, marks, languages)
            whole += f"{mark}{rewritten.text}"
        return self._spoken(replace(changed, text=whole), marks, languages, begin, pauses_s)

    def _rewrite(self, text: Rewriting, own: Voiced, marks: Marks, languages: Languages) -> None:
        """Rewrite the text of one voice."""
        mark_styles(text, own.styles, marks)
        pronounce(text, own.words, marks)
        rewrite(text, self.choices, marks, languages, self._can_say)

    def _spoken(
        self, text: Rewriting, marks: Marks, languages: Languages, begin: str, left_s: float
    ) -> SpokenText:
        """Text within the vocabulary, and the meaning of its marks.

        All pauses together last at most `left_s`.
        """
        spoken, speaker = "", begin
        pauses: dict[int, float] = {}
        directions: list[Direction] = []
        switches: dict[int, Switch] = {}
        for piece, silent in marks.parts(text.text):
            own = replace(text, text=marks.restored(piece))
            sayable = self._within_vocabulary(own, languages).strip()
            if any(map(str.isalnum, sayable)):
                spoken += f" {tidied(sayable)}" if spoken else sayable
            after = len(spoken)
            if silent.direction:
                directions.append(Direction(after, silent.direction))
            if silent.voice is not None:
                speaker = silent.voice
                switches[after] = Switch(after, "" if speaker else None, speaker)
            if silent.style:
                switches[after] = Switch(after, "" if silent.style == NEUTRAL else silent.style, speaker)
            if spoken and (pause_s := min(silent.pause_s, left_s)):
                left_s -= pause_s
                pauses[after] = pauses.get(after, 0.0) + pause_s
        changes = tuple(
            Change(c.kind, shortened(marks.restored(c.before)), shortened(marks.restored(c.after)))
            for c in text.changes
        )
        silences = tuple(Pause(after, seconds) for after, seconds in pauses.items())
        return SpokenText(spoken, changes, silences, tuple(directions), tuple(switches.values()))

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages for a request that names none."""
        return self._languages("").codes

    def check_language(self, code: str) -> None:
        """Raise UnknownLanguage for a code that is neither registered nor the bundle's."""
        self._languages(code)

    def language_of(self, text: str) -> str:
        """Code of the language of most letters; "" if that language is not configured."""
        return self._languages("").of(text).code

    def _active_languages(self, requested: str) -> Languages:
        """The request's, the configured and the bundle's languages, if the vocabulary can say them.

        Raises UnknownLanguage for a code that is neither registered nor the bundle's.
        """
        chosen = [base_code(code) for code in (requested, self.choices.language) if code.strip()]
        languages = []
        for code in dict.fromkeys((*chosen, *self._bundles)):
            language_of = resolve if code in self._bundles else registered
            language = self._corrected.get(code) or language_of(code)
            if self._says(language):
                languages.append(language)
            elif code in chosen:
                # Clauses of a chosen language stay in it: the next language's words are not put into them.
                languages.append(muted(language))
        return Languages(languages, self.spelling.scripts)

    def _says(self, language: Language) -> bool:
        """True if the vocabulary has the letters of the language's numbers."""
        if not language.says_digits:
            return True
        words = [*map(language.digit, "123"), language.number("123", False), *language.sample]
        letters = self.spelling.fitted(" ".join(words))
        return all(self._substitute(character, language) is not None for character in letters)

    def _read_ssml(self, text: Rewriting, marks: Marks, languages: Languages, others: Others) -> None:
        """Replace SSML by its text: pauses and voices become marks, `say-as` and `sub` become their words."""
        pieces = ssml.parse(text.text)
        plain = "".join(piece for piece in pieces if isinstance(piece, str))
        language = languages.of(plain)
        text.text = ""
        for piece in pieces:
            if isinstance(piece, ssml.BreakTag):
                text.text += f" {marks.silent(Silent(pause_s=piece.seconds))} "
            elif isinstance(piece, ssml.VoiceTag) and others(piece.name) is not None:
                text.text += f" {marks.silent(Silent(voice=piece.name))} "
            elif isinstance(piece, ssml.VoiceTag) and not piece.tag:
                continue
            elif isinstance(piece, (ssml.Ignored, ssml.VoiceTag)):
                text.note("ssml", piece.tag, "")
            elif isinstance(piece, ssml.SayAs):
                reading = tidied(normalise(ssml.spelt(piece, language.digit, language.number)))
                text.note(piece.how, piece.written, reading)
                text.text += marks.text(reading)
            else:
                text.text += piece

    def _within_vocabulary(self, text: Rewriting, languages: Languages) -> str:
        """Drop and note characters without a substitute."""
        if all(map(self._can_say, set(text.text))):
            return text.text
        text.text = self.spelling.fitted(text.text)
        parts: list[str] = []
        dropped, place = "", 0
        for end, language in languages.clauses(text.text)[1]:
            for character in text.text[place:end]:
                substitute = self._substitute(character, language)
                if substitute is None:
                    if unicodedata.category(character)[0] == "M":
                        text.note("letter", character, "")
                    elif character not in JOINERS:
                        dropped += character
                    continue
                if dropped and not character.isspace():
                    text.note("unsayable", dropped, "")
                    parts.append("" if _is_within_word(parts, dropped, character) else " ")
                    dropped = ""
                if substitute != character and any(map(str.isalnum, character + substitute)):
                    text.note("letter" if character.isalnum() else "sign", character, substitute)
                parts.append(substitute)
            place = end
        if dropped:
            text.note("unsayable", dropped, "")
        return tidied("".join(parts))

    def _substitute(self, character: str, language: Language) -> str | None:
        """Text that the vocabulary can say instead; None if there is no such text."""
        if self._can_say(character):
            return character
        if character.isdecimal() and language.says_digits:
            return self.spelling.within(self.spelling.fitted(language.digit(str(int(character)))))
        if character in language.alone:
            return self.spelling.within(self.spelling.fitted(language.alone[character]))
        return self.spelling.nearest(character)


def _is_within_word(parts: list[str], dropped: str, after: str) -> bool:
    """True if letters were dropped from a word whose rest stays together."""
    return bool(parts) and parts[-1][-1:].isalpha() and after.isalpha() and bool(_SPACED.fullmatch(dropped))
