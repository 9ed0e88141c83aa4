"""Finds spans that may contain anything: links, tags, markup, directions, emotes, faces, names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.text.chat.directions import is_direction, pause_s
from appliance.text.chat.line import LINK, MAIL, ChatLine
from appliance.text.chat.lists import LISTS
from appliance.text.chat.marks import TEXT_MARKS, Silent
from appliance.text.languages.en.capitals import is_initials
from appliance.text.scripts import HAN, KANA, MARKS
from appliance.text.spans import Kind, Language, Span

Reading = Callable[[ChatLine, re.Match[str]], "str | tuple[Kind, str] | None"]
"""Words of a match, with a kind if it is not the row's; None if the match is not such a span."""


def _link(line: ChatLine, match: re.Match[str]) -> str:
    return f" {line.language_at(match.start()).link} " if line.choices.links == "name" else " "


def _mail(line: ChatLine, match: re.Match[str]) -> str:
    return f" {line.language_at(match.start()).mail} " if line.choices.links == "name" else " "


def _listing(line: ChatLine, match: re.Match[str]) -> str:
    return f" {line.language_at(match.start()).listing} " if line.choices.code == "name" else " "


def _dropped_code(line: ChatLine, match: re.Match[str]) -> str | None:
    return None if line.choices.code == "name" else " "


def _emote(line: ChatLine, match: re.Match[str]) -> str:
    return _emote_named(line, match, match[1])


def _emote_named(line: ChatLine, match: re.Match[str], name: str) -> str:
    return f" {_words(line.language_at(match.start()), name)} " if line.choices.emoji == "name" else " "


def _name(line: ChatLine, match: re.Match[str]) -> str:
    return _words(line.language_at(match.start()), match[1])


def _words(language: Language, name: str) -> str:
    """Words of an identifier: user_name9 → user name nine, catJAM → cat JAM."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub("[_-]", " ", name))
    return " ".join(re.sub(r"[0-9]", lambda digit: language.digit(digit[0]), words).split())


def _phone(line: ChatLine, match: re.Match[str]) -> str | None:
    language = line.language_at(match.start())
    if not language.says_digits:
        return None
    groups = re.findall(r"\d+", match[0])
    digits = language.comma.join(" ".join("".join(map(language.digit, group)).split()) for group in groups)
    return f"{language.alone.get('+', '').lstrip()}{digits}" if match[0][0] == "+" else digits


def _cheer(line: ChatLine, match: re.Match[str]) -> str | None:
    """Read Cheer500."""
    language = line.language_at(match.start())
    if not language.says_digits:
        return None
    name = f"{_words(language, match[1])} {language.number(match[2], False)}"
    return f" {name} " if line.choices.emoji == "name" else " "


def _file(line: ChatLine, match: re.Match[str]) -> str | None:
    """Read report-2026.pdf."""
    language = line.language_at(match.start())
    if not language.says_digits:
        return None
    words = []
    for part in re.findall(r"[^\W\d_]+|\d+|\.", match[1]):
        if not part.isdecimal():
            words.append(language.point if part == "." else part)
        elif len(part) > 4 or part[0] == "0":
            words += [language.digit(digit).strip() for digit in part]
        else:
            words.append(language.number(part, False))
    ending = match[2].upper() if is_initials(re.sub(r"\d", "", match[2]).upper()) else match[2]
    letters = [c if c.isalpha() else language.digit(c).strip() for c in ending]
    words += [language.point, *([" ".join(letters)] if ending.isupper() else [ending])]
    return f" {' '.join(words)} "


def _pause_element(line: ChatLine, match: re.Match[str]) -> str:
    seconds = pause_s(f"pause {match[1] or ''}")
    return f" {line.marks.silent(Silent(pause_s=seconds or 0.0))} "


def _bracketed(line: ChatLine, match: re.Match[str]) -> tuple[Kind, str] | None:
    """Read text in brackets or asterisks: a pause, a stage direction, or an emote."""
    bracket, inside = match[0][0], match[0][1:-1].strip(" /")
    if (seconds := pause_s(inside)) is not None and (bracket != "*" or inside != "beat"):
        return Kind.PAUSE, f" {line.marks.silent(Silent(pause_s=seconds))} "
    bracket = {"（": "(", "<": "["}.get(bracket, bracket)
    if is_direction(inside, bracket, line.text[: match.start()], line.text[match.end() :]):
        if line.choices.directions == "speak":
            return Kind.DIRECTION, f" {inside} "
        return Kind.DIRECTION, f" {line.marks.silent(Silent(direction=inside))} "
    if match[0][0] == "[" and re.fullmatch(r"\w{1,12}", inside) and not inside.isdigit():
        return Kind.EMOTE, _emote_named(line, match, inside)
    return None


def _face(line: ChatLine, match: re.Match[str]) -> str | None:
    if match[0] == "X)" and re.search(r"\([^()]*$", line.text[: match.start()]):
        return None  # (Alfonso X)
    return f" {line.language_at(match.start()).heart} " if match[0][:2] == "<3" else " "


def _tag(line: ChatLine, match: re.Match[str]) -> str | None:
    name, before = match["tag"] or "", line.text[match.start() - 1 : match.start()]
    if len(name) == 1 and before.isalnum() and match[0][1] != "/" and f"</{name}>" not in line.text:
        return None  # a<b>c
    return " "


def _escape(line: ChatLine, match: re.Match[str]) -> str | None:
    path = re.search(r"\S*$", line.text[: match.start()])
    return None if path and re.match(r"[A-Za-z]:|\\\\", path[0]) else "\n"


def _item(line: ChatLine, match: re.Match[str]) -> str | None:
    """Read the number of a list's item. None if it is an ordinal of the text."""
    language = line.language_at(match.start())
    own = language.numbers.at(line.text, match.start())
    if own and own.end > match.end(1):
        return None  # 1. Platz
    if not language.says_digits:
        return match[0]
    return f"{language.number(match[1], False).capitalize()}{language.comma}"


def _direction_tag(line: ChatLine, match: re.Match[str]) -> tuple[Kind, str] | None:
    reading = _bracketed(line, match)
    return reading if reading and reading[0] in (Kind.DIRECTION, Kind.PAUSE) else None


_FACE = (
    r"(?<![^\s\"“„«(])(?:(?:[:;=]['’]?-?[)(DdPpOo3|/\\\]\[*]|[xX]D+|xd|X\)|[xX]-[D)]|8-[)D]|B-\)|<3(?:33+)?|</3|\^_*\^|[Tt]_[Tt]|[oO]_[oO]|-_-+|>_<|>\.<"
    r"|>:[(\[]|[(\[]:|QAQ|QWQ|\\o/|¯\\_\(ツ\)_/¯))(?=$|[\s,.!?，。！？\"”»)])"
    r"|(?<=[a-z])(?:[:;]-?[)(]|<3)(?=$|\s)"
)
_KAOMOJI = (
    rf"[(（](?=[^()（）]*[°□◕‿﹏ω・｡´｀╯╰ಠಥ▽△∀≧≦\u0361])[^()（）A-Za-z0-9{HAN}]{{1,16}}[)）]"
    rf"[^\sA-Za-z0-9{HAN},.!?，。！？{TEXT_MARKS}]*(?:\s?┻[━─]+┻)?"
)
_SECRET = (
    r"(?<![\w+/-])(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{16,}"
    r"|(?=[A-Za-z+/_-]*\d)(?=[a-z0-9+/_-]*[A-Z])(?=[A-Z0-9+/_-]*[a-z])[A-Za-z0-9+/_-]{24,}=*)(?![\w-])"
)
"""Matches identifiers of machines, hashes and keys."""
_CHEERS = "|".join(LISTS["cheers"])
"""Names of Twitch's cheers, which precede the number of bits."""
_ENDINGS = "|".join(LISTS["endings"])
"""Extensions of file names."""
_IN_NAME = rf"(?:-|[^\W{HAN}{KANA}])"
_ATTRIBUTE = r"""\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>=]+)"""
THOUGHTS = "think|thinking|reasoning|analysis|tool_call|function_call"
"""Tags of a language model around text that nobody should hear."""
_FORUM_CODE = (
    r"(?i)\[/?(?:b|i|u|s|url|img|color|size|font|quote|code|spoiler|center|list|inst)(?:=[^\[\]\n]*)?\]"
)
_FILE_NAME = (
    rf"(?i)(?<![^\W{HAN}{KANA}])(?<![.-])([^\W{HAN}{KANA}]{_IN_NAME}*(?:\.{_IN_NAME}+)*)"
    rf"\.({_ENDINGS})(?!{_IN_NAME}|\.\w)"
)
_ELEMENT = (
    r"(?s)<!--.*?-->|<\|\w+\|>|<[@#][!&]?\d+>|<t:\d+(?::\w)?>"
    rf"|</?(?P<tag>[A-Za-z][\w:-]*)(?:=[^\s<>]+)?(?:{_ATTRIBUTE})*\s*/?>"
)
_IN_BRACKETS = (
    r"\[[^\[\]\n]{1,60}\]|(?<![\w*])\*[^*\n]{1,80}\*(?![\w*])|\([^()\n]{1,40}\)"
    r"|（[^（）\n]{1,20}）|【[^【】\n]{1,20}】"
)
_PHONE_NUMBER = r"(?<!\w)(?:\+?\d{1,3}[ -]?)?\(\d{2,4}\)[ .-]?\d{3,5}(?:[ .-]\d{2,4}){0,3}(?!\w)"
_ROWS: tuple[tuple[str, Kind, str, Reading | str], ...] = (
    ("<", Kind.THINKING, rf"(?s)<({THOUGHTS})>.*?</\1>", " "),
    ("<", Kind.MARKUP, r"(?is)<(script|style)\b[^<>]*>.*?</\1>", " "),
    ("`~", Kind.CODE, r"(?ms)^(```|~~~).*?^\1[^\n]*$|```.*?```", _listing),
    ("`", Kind.CODE, r"(?m)^```[^\n]*(?:\n[^\n]+)*|(`{1,2})(?!`)[^\n]{1,300}?(?<!`)\1(?!`)", _dropped_code),
    (">", Kind.QUOTE, r"(?m)^(?!>>>)(?:>+ [^\n]*\n)+(?=[^\s>—–-])", ""),
    ("@", Kind.QUOTE, r"\A[^\n@]{1,40}@([\w.-]+)[:：][^\n]*\n\s*(?=@\1(?!\w))", ""),
    ("@", Kind.DATA, r"\A@[\w-]+=\S* :\S+ PRIVMSG #\w+ :", ""),
    (":", Kind.DATA, r"data:[\w/+.-]*(?:;[\w=-]+)*,[\w+/=%-]*", " "),
    ("0123456789", Kind.CODE, _SECRET, " "),
    ("[", Kind.MARKUP, _FORUM_CODE, " "),
    ("]", Kind.LINK, r"\]\([^()\s]+(?:\s+\"[^\"]*\")?\)", " "),
    ("]", Kind.MARKUP, r"!?\[(?=[^\[\]\n]*\]\([^()\s]+(?:\s+\"[^\"]*\")?\))", " "),
    ("@", Kind.MAIL, f"(?i:{MAIL})", _mail),
    (".:", Kind.LINK, f"(?i:{LINK})", _link),
    ("<", Kind.EMOTE, r"<a?:(\w{2,40}):\d+>", _emote),
    ("[", Kind.EMOTE, r"\[(?:emote|emoji|sticker):(?:\d+:)?([\w-]{0,40})\]", _emote),
    (
        "0123456789",
        Kind.EMOTE,
        rf"(?i)(?<![^\W{HAN}{KANA}])({_CHEERS})(\d{{1,7}})(?![^\W{HAN}{KANA}])",
        _cheer,
    ),
    (".", Kind.CODE, _FILE_NAME, _file),
    ("<", Kind.PAUSE, r"<(?:break|pause)(?:\s+time=[\"']?|[\s:]+)?(\d[\w.]*)?[\"']?\s*/?>", _pause_element),
    ("<", Kind.DIRECTION, r"<[a-z]{3,12}/?>", _direction_tag),
    ("<", Kind.MARKUP, _ELEMENT, _tag),
    ("[", Kind.LAYOUT, r"(?m)^[-*+] \[[ xX]\] (?=\S)", ""),
    ("[*(（【", Kind.DIRECTION, _IN_BRACKETS, _bracketed),
    ("(", Kind.PHONE, _PHONE_NUMBER, _phone),
    (":", Kind.EMOTE, r"(?<!\w):(?=[\d_-]*[a-zA-Z])([a-zA-Z0-9_-]{1,40}):(?!\w)", _emote),
    ("", Kind.EMOTICON, _FACE, _face),
    ("(（", Kind.EMOTICON, _KAOMOJI, " "),
    ("@", Kind.NAME, rf"(?<!\w)@@?([\w{MARKS}]+)", _name),
    ("#", Kind.HASHTAG, rf"(?<!\w)#([^\W\d][\w{MARKS}]*)#?", _name),
    ("#", Kind.LAYOUT, r"(?m)^#{1,6}\s+(?=\S)", ""),
    ("-*_=|", Kind.LAYOUT, r"(?m)^(?:[-*_=]{3,}|[\s|:-]{5,})$", ""),
    ("-*+•>", Kind.LAYOUT, r"(?m)^(?:[-*+•–] |>+ )(?=\S)", ""),
    (".)", Kind.LAYOUT, r"(?m)^(\d{1,2})[.)] (?=\S)", _item),
    ("\\", Kind.MARKUP, r"\\[()\[\]]", " "),
    ("\\", Kind.MARKUP, r"\\r\\n|\\[nrt](?![\\])", _escape),
    ("`", Kind.MARKUP, r"(?<=\w)`(?=\w)", "'"),
    ("`", Kind.MARKUP, "`+", ""),
    ("$", Kind.MARKUP, r"\$\$", " "),
)
"""Characters (the text has one of them), kind, pattern, and words or their reading.

The rows are in order of precedence.
"""
_PATTERNS = [(frozenset(signs), kind, re.compile(pattern), say) for signs, kind, pattern, say in _ROWS]
_PAIRED = (
    re.compile(r"(\*\*\*|\*\*|__|~~|\|\|)(?=\S)(.{1,300}?)(?<=\S)(\1)"),
    re.compile(r"(?<![\w*])(\*)(?=[^\s*])([^*]{1,300})(?<=\S)(\*)(?![\w*])"),
    re.compile(r"(\$)(?=[^\s\d$])([^$\n]{0,80}?[\\^=_][^$\n]{0,80}?)(?<=\S)(\$)(?!\w)"),
    re.compile(r"(?<![\w_])(_)(?=[^\s_])([^_]{1,300})(?<=\S)(_)(?![\w_])"),
)
"""Emphasis and formulas. Only their marks are spans; the text between is read as usual."""


@dataclass
class _Spans:
    """Spans that do not overlap. A later span that would overlap is dropped."""

    taken: bytearray
    spans: dict[int, Span] = field(default_factory=dict)

    def add(self, kind: Kind, start: int, end: int, words: str) -> None:
        if end > start and not any(self.taken[start:end]):
            self.taken[start:end] = b"\1" * (end - start)
            self.spans[start] = Span(kind, start, end, words)


def find(line: ChatLine) -> dict[int, Span]:
    """Spans by their beginning. An earlier row of the table has precedence."""
    text = line.text
    spans, characters = _Spans(bytearray(len(text))), set(text)
    for signs, kind, pattern, say in _PATTERNS:
        if signs and signs.isdisjoint(characters):
            continue
        for match in pattern.finditer(text):
            if spans.taken[match.start()]:
                continue
            words = say if isinstance(say, str) else say(line, match)
            if isinstance(words, str):
                spans.add(kind, *match.span(), words)
            elif words is not None:
                spans.add(words[0], *match.span(), words[1])
    for pattern in () if characters.isdisjoint("*_~|$") else _PAIRED:
        for match in pattern.finditer(text):
            if not (any(spans.taken[slice(*match.span(1))]) or any(spans.taken[slice(*match.span(3))])):
                spans.add(Kind.MARKUP, *match.span(1), "")
                spans.add(Kind.MARKUP, *match.span(3), "")
    return spans.spans
