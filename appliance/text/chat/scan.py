"""Reads a line in one pass: divides the text into spans, each with its words.

Why one pass: each character belongs to exactly one span, so the words of one span are never read again as the
text of another. First the finders take spans that may hold anything, such as links, tags and emotes. These
are masked by _TAKEN, so that no reading runs into them. Then, at each place, the first reading that matches
takes a span, and the pass goes on behind it. The time is linear, and the kind of each span tells the user
what was changed.

The cost: a reading must decide from the written text around its place, because it cannot see what other
readings made of it; and the order of readings in their tables is part of their meaning. The alternative, a
sequence of substitutions that each see the results of earlier ones, is in use only for drawn letters
(letters.py), before this pass.
"""

from __future__ import annotations

import re
import unicodedata

from appliance.text.chat.finders import find
from appliance.text.chat.line import ChatLine
from appliance.text.chat.marks import PRIVATE, TEXT_MARKS
from appliance.text.languages.quantity import CURRENCY
from appliance.text.scripts import HAN, JOINERS, KANA, MARKS
from appliance.text.spans import Kind, Language, Span

_TAKEN = "\ue000"
"""Replaces the characters of a finder's span."""
_SPACE = re.compile(r"[^\S\n]+")
_NEWLINE = re.compile(r"\s*\n\s*")
_NEW_SENTENCE = re.compile(rf"[A-ZÀ-ÖØ-ÞΑ-ΩЀ-Я\d{HAN}{KANA}{_TAKEN}\u0590-\u139f\u1780-\u18af\uac00-\ud7a3]")
"""Matches the beginning of a line that does not continue the sentence before it."""
_CHINESE = re.compile(f"[{HAN}]+")
_LETTERS = rf"(?:(?![{HAN}{KANA}])[^\W\d_][{MARKS}{JOINERS}]*)+"
_WORD = re.compile(rf"{_LETTERS}(?:['’]{_LETTERS})*|[{KANA}]+")
_MARK = re.compile(f"[{TEXT_MARKS}]|{PRIVATE.pattern}")
_NUMERIC = re.compile(rf"[-−+]?(?:{CURRENCY}\s?)?\.?\d")
_PUNCTUATION = re.compile(r"[!?！？]{2,}|\.{2,}|。{2,}|…{2,}|([~～,，、¡¿؟۔،؛।-])\1+")
_GLUED = re.compile(rf"(?<=[^\W_{HAN}{KANA}])(?:[!?]+|…|\.{{2,}})(?=[^\W_{HAN}{KANA}])")
"""Matches the end of a sentence without a space after it: run!1 run."""
_POINT = re.compile(r"(?<=[^\W\d_])\.(?=\d)")
_LAST_WORD = re.compile(r"[^\W\d_]+$")
_RELEASES = frozenset(str.split("rc beta alpha pre dev build preview post patch"))
_SHORT = frozenset(str.split("vol ep ch fig pp pg ver vs lv lvl st no nr art cap tel kap"))
"""Abbreviations before a number. In other places, "no" and others end a sentence."""
_PLURAL = re.compile(r"[A-Z]{2,5}'?s")
_CAPITALS = re.compile("[A-Z]+")
_HAN_DIGIT = "〇零一二三四五六七八九十百千万亿"
_REPEATED_HAN = re.compile(rf"((?![{_HAN_DIGIT}])[{HAN}]|(?![{_HAN_DIGIT}]+\b)[{HAN}]{{2,6}}?)\1{{3,}}")
_REPEATED_LETTER = {least: re.compile(rf"([^\W\d_])\1{{{least - 1},}}") for least in (3, 4)}
_REPEATED_SYLLABLE = re.compile(r"([^\W\d_]{2,3}?)\1{3,}")


def spans(line: ChatLine) -> list[Span]:
    """Spans that cover the line, in order."""
    by_place = find(line)
    masked = list(line.text)
    for span in by_place.values():
        masked[span.start : span.end] = _TAKEN * (span.end - span.start)
    text = "".join(masked)
    result: list[Span] = []
    place, is_item = 0, False
    languages = line.languages()
    end, language = next(languages)
    while place < len(text):
        while place >= end:
            end, language = next(languages)
        if place in by_place:
            span = by_place[place]
            is_item |= span.kind is Kind.LAYOUT
        elif match := _NEWLINE.match(text, place):
            ends = is_item or match[0].count("\n") > 1 or _NEW_SENTENCE.match(text, match.end())
            span, is_item = Span(Kind.SPACE, place, match.end(), _stop(result) if ends else " "), False
        else:
            span = _read(line, text, language, place)
        result.append(span)
        place = span.end
    return result


def _stop(before: list[Span]) -> str:
    """Words of a line break: a full stop if the words before it end with a letter or digit."""
    last = next((span.spoken.rstrip() for span in reversed(before) if span.spoken.strip()), "")[-1:]
    is_word = last.isalnum() or unicodedata.category(last or " ")[0] == "M"
    return ("。" if _CHINESE.match(last) else ". ") if is_word else " "


def _read(line: ChatLine, text: str, language: Language, place: int) -> Span:
    """The span at a place of the masked text."""
    character = text[place]
    if match := _SPACE.match(text, place):
        return Span(Kind.SPACE, place, match.end(), " ")
    if match := _MARK.match(text, place):
        return Span(Kind.MARK, place, match.end(), match[0])
    if _NUMERIC.match(text, place) and (span := language.numbers.at(text, place)):
        return span
    if match := _CHINESE.match(text, place):
        if span := language.signs.at(text, place):
            return span  # 第3
        return _chinese(text, match)
    if character.isalpha():
        if span := language.words.at(text, place):
            return span
        if match := _WORD.match(text, place):
            return _word(line, language, match)
    if span := language.signs.at(text, place):
        return span
    if match := _GLUED.match(text, place):
        return Span(Kind.PUNCTUATION, place, match.end(), f"{_punctuation(match[0])} ")
    if match := _POINT.match(text, place):
        return Span(Kind.PUNCTUATION, place, match.end(), _point(text[:place], language))
    if match := _PUNCTUATION.match(text, place):
        return Span(Kind.REPEAT, place, match.end(), _punctuation(match[0]))
    return Span(Kind.PUNCTUATION, place, place + 1, character)


def _point(earlier: str, language: Language) -> str:
    """Words of a full stop between a word and a digit: rc.1, vol.2, or the end of a sentence."""
    match = _LAST_WORD.search(earlier[-24:])
    word = match[0] if match else ""
    if word.lower() in language.abbreviations or word.lower() in _SHORT:
        return " "
    is_word = len(word) > 2 and word.lower() not in _RELEASES and not word.isupper()
    return ". " if is_word or not language.point else f" {language.point} "


def _chinese(text: str, match: re.Match[str]) -> Span:
    start, end, characters = *match.span(), match[0]
    ordinal = characters.find("第")
    if ordinal > 0:  # the number has a span for itself
        end, characters = start + ordinal, characters[:ordinal]
    short = _REPEATED_HAN.sub(r"\1\1\1", characters) if characters.strip(_HAN_DIGIT) else characters
    return Span(Kind.WORD if short == characters else Kind.REPEAT, start, end, short)


def _word(line: ChatLine, language: Language, match: re.Match[str]) -> Span:
    """The span of a word. Capitals are read by the language; drawn-out words are shortened."""
    word = match[0].replace("’", "'")
    if (
        (len(word) > 1 or line.shouted)
        and (word.isupper() or word.strip("ivx") == "")
        and (pair := language.capitals(match, line.shouted))
    ):
        words = _undrawn(pair[1], language) if pair[0] is Kind.SHOUTING else pair[1]
        return Span(pair[0], *match.span(), words)
    stem = _CAPITALS.match(match.string, match.start()) if _PLURAL.fullmatch(word) else None
    if stem and (pair := language.capitals(stem, line.shouted)) and pair[0] in (Kind.ACRONYM, Kind.ROMAN):
        return Span(pair[0], *match.span(), pair[1] + word[stem.end() - stem.start() :])
    short = word if word.lower() == "www" else _undrawn(word, language)
    return Span(Kind.WORD if short == word else Kind.REPEAT, *match.span(), short)


def _undrawn(word: str, language: Language) -> str:
    """The word with fewer repeated letters and syllables, which draw it out."""
    return _REPEATED_SYLLABLE.sub(r"\1\1\1", _REPEATED_LETTER[language.stretched].sub(_shortened, word))


def _shortened(match: re.Match[str]) -> str:
    """Shorten a run of one letter: noooo → noo."""
    return match[1].lower() * 3 if match[0] == match.string else match[0][:2]


def _punctuation(run: str) -> str:
    if run[0] in "!?！？":
        return next((mark for mark in "？?" if mark in run), run[0])
    return "…" if run[0] in ".。…" else run[0]
