"""Makes a line of chat speakable: plain letters, then spans with their words, then the words joined."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import emoji

from appliance.config import TextConfig
from appliance.text.chat import letters, scan
from appliance.text.chat.line import ChatLine, Languages
from appliance.text.chat.lists import LISTS
from appliance.text.chat.marks import TEXT_MARKS, Marks
from appliance.text.chat.rewrite import Rewriting
from appliance.text.normalise import normalise
from appliance.text.scripts import HAN, KANA, MARKS
from appliance.text.spans import Kind, Language, Span

_SKIN = re.compile("[\U0001f3fb-\U0001f3ff]")
_DRAWN = ["\u200d".join(drawn) for drawn in LISTS["couples"]]
_COUPLES = dict(zip(_DRAWN[::2], _DRAWN[1::2], strict=True))
"""Emoji that exist only with two skin tones → the emoji without them."""
_ASIDE = re.compile(r"\s?\([^()]*\)|[:：]")
"""Matches a remark in an emoji's name: künstler(in), O button (blood type)."""
PICTURE = "[\u2600-\u2bff\U0001f200-\U0001faff]"
"""Matches emoji that are not letters or digits."""
MOST_EMOJI = 3
MOST_REPEATS = 3
_REPEATED = (Kind.WORD, Kind.MARK, Kind.EMOTE, Kind.NAME, Kind.ACRONYM, Kind.SHOUTING, Kind.REPEAT)
_HAN_DIGITS = frozenset("零一二三四五六七八九十百千万亿")
_MARK = re.compile(f"[{MARKS}]")
_POINTS = ",.!?;:，。！？；：।॥؟۔،؛"
_UNSPACED = re.compile(f"[{HAN}{KANA}]")


def rewrite(
    text: Rewriting, choices: TextConfig, marks: Marks, languages: Languages, can_say: Callable[[str], bool]
) -> None:
    """Make a line of chat speakable, in the words of `languages`. Accents stay if the vocabulary has them."""
    letters.plain(text, can_say)
    # `normalise` removes the joiners within an emoji, so emoji come first.
    if emojis := [] if text.text.isascii() else emoji.emoji_list(text.text):
        _name_emoji(text, emojis, choices, marks, languages.of(text.text))
    text.text = normalise(text.text, lines=True)
    line = ChatLine(text.text, choices, marks, languages)
    spans = scan.spans(line)
    for span in spans:
        _note(text, line, span)
    text.text = tidied(_joined(_without_repeats(text, line, spans)))


_UNTIDY = [
    (re.compile(rf"(?<=[{HAN}，。！？：；、]) (?=[{HAN}，。！？：；、])"), ""),
    (re.compile(r" ([,.!?;:，。！？、،؛؟…)])|(\() "), r"\1\2"),
    (re.compile(r"([,，、])(?: ?[,，、])+"), r"\1"),
    (re.compile(r"[,，、:：] ?([.!?。！？])"), r"\1"),
    (re.compile(r"([.!?。！？]) ?[,，]"), r"\1"),
    (re.compile(r"([.!?])(?: ?\.)+(?!\d)"), r"\1"),
    (re.compile(rf"^(?:[\s,.;:，。、：!?！？…]|-(?!\d))+(?=-?[\w({TEXT_MARKS}])"), ""),
]
"""Patterns in a text with single spaces, and their replacements."""


def tidied(text: str) -> str:
    text = " ".join(text.split())
    for pattern, tidy in _UNTIDY:
        text = pattern.sub(tidy, text)
    return text.strip()


def _note(text: Rewriting, line: ChatLine, span: Span) -> None:
    """Note the change that a span makes."""
    if span.kind is Kind.SPACE:
        return
    written, spoken = line.text[span.start : span.end], span.spoken.strip()
    if span.kind in (Kind.PAUSE, Kind.DIRECTION):
        text.note(span.kind.value, written, "" if not spoken or not spoken[0].isascii() else spoken)
    elif spoken != written.strip():
        text.note(span.kind.value, written, spoken)


def _joined(spans: list[Span]) -> str:
    """Words of spans, with spaces between them. Chinese characters need none."""
    parts: list[str] = []
    last = before = ""
    is_word = False
    for span in spans:
        if not span.spoken:
            continue
        if is_word and _is_letter(span.spoken[0]):
            parts.append(" ")
        elif last == " " and before in _HAN_DIGITS and span.spoken[0] in _HAN_DIGITS:
            parts.append("，")  # 三 十五 is not 三十五
        parts.append(span.spoken)
        last = span.spoken[-1]
        is_word = _is_letter(last) or (span.kind is not Kind.PUNCTUATION and bool(_MARK.match(last)))
        before = span.spoken.rstrip()[-1:] or before
    return "".join(parts)


def _is_letter(character: str) -> bool:
    return character.isalnum() and not _UNSPACED.match(character)


def _without_repeats(text: Rewriting, line: ChatLine, spans: list[Span]) -> list[Span]:
    """Shorten runs of a word to MOST_REPEATS words. Digits that are written as words stay."""
    result: list[Span] = []
    run: list[Span] = []

    def close() -> None:
        if len(run) > MOST_REPEATS:
            repeated, digit = run[0].spoken.strip(), line.language_at(run[0].start).digit
            if repeated.lower() not in (digit(each).strip() for each in "0123456789"):
                written = line.text[run[0].start : run[-1].end]
                text.note(Kind.REPEAT.value, written, " ".join([repeated] * MOST_REPEATS))
                del result[result.index(run[MOST_REPEATS]) :]
        run.clear()

    for span in spans:
        word = span.spoken.strip().lower()
        if span.kind is Kind.SPACE and span.spoken == " ":
            result.append(span)
            continue
        is_word = span.kind in _REPEATED and (len(word) > 1 or span.kind is Kind.MARK)
        if not is_word or (run and word != run[0].spoken.strip().lower()):
            close()
        if is_word:
            run.append(span)
        result.append(span)
    close()
    return result


def _name_emoji(
    text: Rewriting, emojis: list[Any], choices: TextConfig, marks: Marks, language: Language
) -> None:
    """Replace each run of emoji by a mark for their names. Each emoji of the line is named once."""
    original, rewritten, at = text.text, "", 0
    runs: list[list[Any]] = []
    for match in emojis:
        if runs and not original[int(runs[-1][-1]["match_end"]) : int(match["match_start"])].strip():
            runs[-1].append(match)
        else:
            runs.append([match])
    named: set[str] = set()
    for run in runs:
        start, end = int(run[0]["match_start"]), int(run[-1]["match_end"])
        names = list(dict.fromkeys(_emoji_name(str(match["emoji"]), language) for match in run))
        new = [name for name in names if name and name not in named][:MOST_EMOJI]
        named.update(new)
        words = language.comma.join(new) if choices.emoji == "name" else ""
        before = original[at:start].rstrip()
        joint = language.comma if words and before and before[-1] not in _POINTS else " "
        rewritten += before + (joint + marks.text(words) if words else "")
        after = original[end:].lstrip()[:1]
        rewritten += language.comma if words and after and after not in _POINTS else " "
        text.note(Kind.EMOJI.value, original[start:end], words)
        at = end
    text.text = rewritten + original[at:].lstrip()


def unnamed(text: str, named: set[str]) -> str:
    """The text without emoji that are in `named`. The other emoji are added to it."""

    def once(emoji_: str, _: object) -> str:
        bare = _SKIN.sub("", emoji_)
        is_named = bare in named and re.match(PICTURE, bare)
        named.add(bare)
        return " " if is_named else emoji_

    return emoji.replace_emoji(text, once) if re.search(PICTURE, text) else text


def _emoji_name(character: str, language: Language) -> str:
    """Name of an emoji, without its skin tone; "" if `emoji` lacks the language."""
    if language.code not in emoji.LANGUAGES:
        return ""
    bare = _SKIN.sub("", character)
    bare = _COUPLES.get(bare.replace("\ufe0f", ""), bare)
    name = emoji.demojize(bare, language=language.code, delimiters=("", ""), version=None)
    if name == bare:  # also for a skin tone alone
        return ""
    name = _ASIDE.sub("", name.replace("_", " ")).strip()
    return re.sub(r"\d+\w*", lambda m: span.spoken if (span := language.numbers.at(m[0], 0)) else m[0], name)
