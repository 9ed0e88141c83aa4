"""Chat → speakable text, in English and Chinese: links, markup, emoji, names, repeats, shouting, numbers."""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal

import emoji

from appliance.text import english, mandarin
from appliance.text.marks import TEXT_MARKS
from appliance.text.normalise import normalise
from appliance.text.rewrite import Rewriting

HAN = r"\u3400-\u9fff"
_TLDS = "com|net|org|io|tv|gg|cn|me|co|uk|de|jp|fm|ly|be|dev|app|xyz|info|live|link"
_LINK_END = r"(?<![.,!?;:)\]'\"])"  # punctuation at the end is the sentence's
LINK = (
    rf"(?:https?://|www\.)[^\s{HAN}，。！？、]+{_LINK_END}"
    rf"|(?<![\w@.])[\w-]+(?:\.[\w-]+)*\.(?:{_TLDS})(?:/[^\s{HAN}，。！？]*{_LINK_END})?(?!\w|\.\w)"
)
MAIL = r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_EMOTICON = (
    r"(?<!\S)(?:[:;=8xX]'?-?[)(DdPpOo3|/\\\]\[*]|<3|</3|\^_*\^|[Tt]_[Tt]|[oO]_[oO]|-_-+|>_<|QAQ|\\o/"
    r"|¯\\_\(ツ\)_/¯)(?!\S)"
)
_KAOMOJI = (
    rf"[(（](?=[^()（）]*[°□◕‿﹏ω・｡´｀╯╰ಠಥ▽△∀≧≦\u0361])[^()（）A-Za-z0-9{HAN}]{{1,16}}[)）]"
    rf"[^\sA-Za-z0-9{HAN},.!?，。！？]*(?:\s?┻[━─]+┻)?"
)
"""A face in brackets, with arms and a table."""
_SKIN = (
    r"\s?:?\s?(?:light|medium-light|medium|medium-dark|dark) skin tone"
    r"|[:：]?(?:较浅|较深|浅|深|中等)肤色|[:：]"
)
MOST_EMOJI = 3
"""Most emoji named in one run."""
_ACRONYMS = frozenset(
    str.split(
        "GG WP LOL LMAO ROFL OMG WTF AFK BRB IDK IMO TBH FYI DIY ASAP TTS OBS PC UK USA EU UN AI TV DJ "
        "FPS RPG NPC MMO RTS DPS HP MVP VIP CEO NASA NATO FIFA UEFA ESPN BBC CNN HTML HTTP JSON API CPU "
        "GPU USB SSD RAM RGB HDR PNG GIF PDF NVIDIA VRAM AMD ID OK DLC PVP PVE MOBA MOD BGM UP RIP DM PM "
        "AM ETA GLHF EZ POG RTX GTX PS XP RNG KDA"
    )
)
_SHORT_WORDS = frozenset(
    str.split(
        "A AN AND ARE AT BE BUT BY CAN DID DO FOR GET GO GOT HAS HE HER HIM HIS HOW IF IN IS IT ITS LET "
        "ME MY NEW NO NOT NOW OF OFF OH OLD ON ONE OUR OUT SHE SO THE TO TOO TOP TWO WAS WE WHO WHY WIN "
        "WON WAY YES YOU ALL BIG BAD SAY SEE"
    )
)


@dataclass(frozen=True)
class Manners:
    """The configuration's choices for input with more than one reading."""

    links: Literal["name", "drop"] = "name"
    emoji: Literal["name", "drop"] = "name"
    language: Literal["en", "zh"] = "en"
    """Language of lines without a word, such as "666"."""


def rewrite(text: Rewriting, manners: Manners, *, chinese: bool = True) -> None:
    """Make a chat line speakable; without `chinese` in English words only."""
    whole = chinese and is_chinese(text.text, manners.language)
    # Before `normalise` removes the joiners within an emoji.
    _name_emoji(text, manners, "zh" if whole else "en")
    text.text = normalise(text.text)
    text.sub("width", r"[^\x00-\x7f]+", lambda m: "".join(map(_plain_letter, m[0])))
    text.sub("markup", r"</?[a-z][^<>]{0,80}>", "")
    text.sub("markup", r"`{1,3}([^`]*)`{1,3}", r"\1")
    text.sub("markup", r"(\*\*|__|~~|\|\|)(?=\S)(.{1,300}?)(?<=\S)\1", r"\2")
    text.sub("markup", r"(?<![\w*])\*(?=[^\s*])([^*]{1,300})(?<=\S)\*(?![\w*])", r"\1")
    text.sub("markup", r"&(?:amp|lt|gt|quot|apos|nbsp|#39);", lambda m: html.unescape(m[0]))
    link, mail = ("链接", "邮箱") if whole else ("link", "email address")
    text.sub("mail", MAIL, f" {mail} " if manners.links == "name" else " ")
    text.sub("link", LINK, f" {link} " if manners.links == "name" else " ")
    text.sub("emote", r"(?<!\w):([a-z][a-z0-9_]{1,40}):(?!\w)", lambda m: _named(_words(m[1]), manners))
    text.sub("emote", rf"\[([\w{HAN}]{{1,12}})\]", lambda m: _named(_words(m[1]), manners))
    text.sub("emoticon", _EMOTICON, lambda m: " heart " if m[0] == "<3" and not whole else " ")
    text.sub("emoticon", _KAOMOJI, " ")
    digit = mandarin.digit if whole else english.digit
    text.sub(
        "name",
        r"(?<!\w)@(\w+)",
        lambda m: " ".join(re.sub(r"\d", lambda d: digit(d[0]), _words(m[1])).split()),
    )
    text.sub("hashtag", r"(?<!\w)#([^\W\d]\w*)#?", lambda m: _words(m[1]))
    _shorten_repeats(text)
    _lower_shouting(text)
    clauses = re.split(r"(?<=[，。！？；!?;])|(?<=[,.])(?=\s\D)", text.text)
    text.text = "".join(_numbers_in_words(text, clause, whole, chinese) for clause in clauses)
    text.text = tidied(text.text)


def tidied(text: str) -> str:
    """Remove doubled and leading punctuation, and spaces before punctuation."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(rf"(?<=[{HAN}，。！？：；、]) (?=[{HAN}，。！？：；、])", "", text)
    text = re.sub(r"(?<=[a-z]) -(?=[A-Z])", "-", text)
    text = re.sub(r"\s+([,.!?;:，。！？、…)])|(\()\s+", r"\1\2", text)
    text = re.sub(r"([,，、])(?:[,，、]\s?)+", r"\1", text)
    text = re.sub(r"[,，、:：]\s?([.!?。！？])", r"\1", text)
    text = re.sub(r"([.!?。！？])\s?[,，]", r"\1", text)
    return re.sub(rf"^[\s,.;:，。、：!?！？…-]+(?=[\w({TEXT_MARKS}])", "", text).strip()


def is_chinese(text: str, default: str = "en") -> bool:
    """True with at least half as many Chinese characters as words in letters; `default` without either."""
    text = re.sub(f"{MAIL}|{LINK}", "", text)
    han, words = len(re.findall(rf"[{HAN}]", text)), len(re.findall(r"[A-Za-z]{2,}", text))
    return 2 * han >= words if han or words else default == "zh"


def _numbers_in_words(text: Rewriting, clause: str, whole: bool, chinese: bool) -> str:
    """A clause with its numbers in words of its own language, else of the whole line's."""
    if not chinese:  # Chinese characters will be dropped, and do not join a number
        clause = re.sub(rf"(?<=[{HAN}])(?=\d)|(?<=\d)(?=[{HAN}])", " ", clause)
    chinese = chinese and is_chinese(clause, "zh" if whole else "en")
    part = Rewriting(clause, text.changes)
    (mandarin if chinese else english).speak(part)
    return part.text


def _plain_letter(character: str) -> str:
    """Ａ, 𝕳, ① → A, H, 1; ½ and ℃ → 1/2 and °C; other characters unchanged."""
    plain = unicodedata.normalize("NFKC", character)
    if character in "℃℉":
        return plain
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind == "<fraction>":
        return " " + plain.replace("\u2044", "/")
    if kind == "<super>" and plain.isdigit():
        return character if character in "²³" else f" {plain}"
    return plain if plain.isascii() and plain.isalnum() else character


def _words(name: str) -> str:
    """user_name → user name, catJAM → cat JAM."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace("_", " "))
    return " ".join(name.split())


def _named(name: str, manners: Manners) -> str:
    return f" {name} " if manners.emoji == "name" else " "


def _name_emoji(text: Rewriting, manners: Manners, language: str) -> None:
    """Replace each run of emoji by their names, each emoji of the line once, or drop them."""
    found = emoji.emoji_list(text.text)
    if not found:
        return
    original, rewritten, at = text.text, "", 0
    runs: list[list[Any]] = []
    for match in found:
        if runs and not original[int(runs[-1][-1]["match_end"]) : int(match["match_start"])].strip():
            runs[-1].append(match)
        else:
            runs.append([match])
    named: set[str] = set()
    comma = "，" if language == "zh" else ", "
    for run in runs:
        start, end = int(run[0]["match_start"]), int(run[-1]["match_end"])
        names = list(dict.fromkeys(_emoji_name(str(match["emoji"]), language) for match in run))
        new = [name for name in names if name and name not in named][:MOST_EMOJI]
        named.update(new)
        words = comma.join(new) if manners.emoji == "name" else ""
        before = original[at:start].rstrip()
        joint = comma if words and before and before[-1] not in ",.!?;:，。！？；：" else " "
        rewritten += before + (joint + words if words else "")
        after = original[end:].lstrip()[:1]
        rewritten += comma if words and after and after not in ",.!?;:，。！？；：" else " "
        text.note("emoji", original[start:end], words)
        at = end
    text.text = rewritten + original[at:].lstrip()


def _emoji_name(character: str, language: str) -> str:
    """Name without its skin tone; empty for a character without a name."""
    name = emoji.demojize(character, language=language, delimiters=("", ""), version=None)
    return "" if name == character else re.sub(_SKIN, "", name.replace("_", " ")).strip()


def _shorten_repeats(text: Rewriting) -> None:
    """Keep at most three of a repeated character or word."""
    text.sub("repeat", r"([!！])[!！]+", r"\1")
    text.sub("repeat", r"([?？])[?？]+", r"\1")
    text.sub("repeat", r"[!?！？]{2,}", lambda m: "？" if "？" in m[0] else "?" if "?" in m[0] else "!")
    text.sub("repeat", r"\.{2,}|。{2,}|…{2,}", lambda m: "…")
    text.sub("repeat", r"([~～,，、-])\1+", r"\1")
    text.sub("repeat", rf"([{HAN}])\1{{3,}}", r"\1\1\1")
    text.sub("repeat", rf"([{HAN}]{{2,6}}?)\1{{3,}}", r"\1\1\1")
    text.sub("repeat", r"([a-z])\1{2,}", _shortened_letters)
    text.sub("repeat", r"([a-z]{2,3}?)\1{3,}", r"\1\1\1")
    text.sub("repeat", rf"(?<!\S)([{TEXT_MARKS}]|\S{{2,40}})(?:\s+\1){{3,}}(?!\S)", r"\1 \1 \1")


def _shortened_letters(match: re.Match[str]) -> str | None:
    """LOOOL → LOL, noooo → noo; three of a letter that stands alone."""
    letter, text = match[1], match.string
    alone = not (
        text[match.start() - 1 : match.start()].isalpha() or text[match.end() : match.end() + 1].isalpha()
    )
    if alone:
        return letter.lower() * 3
    if match[0].lower() == "www":
        return None
    return letter if match[0].isupper() else match[0][:2]


def _lower_shouting(text: Rewriting) -> None:
    """Lower the case of shouted words: from four letters on, common short ones, all in a shouted line."""
    letters = [c for c in text.text if c.isascii() and c.isalpha()]
    shouted = len(letters) >= 5 and sum(c.isupper() for c in letters) > 0.6 * len(letters)

    def lower(match: re.Match[str]) -> str | None:
        word = match[0]
        if not word.isupper() or word in _ACRONYMS or word == "I":
            return None
        if len(word) >= 4 or (word in _SHORT_WORDS and word != "A") or shouted:
            first = match.start() == 0 or match.string[: match.start()].rstrip()[-1:] in ".!?"
            return word.capitalize() if first else word.lower()
        return None

    text.sub("shouting", r"(?<![\w])[a-z]+(?:'[a-z]+)?(?![\w])", lower)
