"""Chat → text that can be read aloud, in English and Chinese: links, emoji, names, repeats, shouting."""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal

import emoji

from appliance.text import english, mandarin
from appliance.text.marks import SAID
from appliance.text.normalise import normalise
from appliance.text.rewrite import Rewriting

HAN = r"\u3400-\u9fff"
_TLDS = "com|net|org|io|tv|gg|cn|me|co|uk|de|jp|fm|ly|be|dev|app|xyz|info|live|link"
_LINK_END = r"(?<![.,!?;:)\]'\"])"  # the sentence's, not the link's
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
"""A face between brackets, with its arms and its table."""
_SKIN = (
    r"\s?:?\s?(?:light|medium-light|medium|medium-dark|dark) skin tone"
    r"|[:：]?(?:较浅|较深|浅|深|中等)肤色|[:：]"
)
MOST_EMOJI = 3
"""Different emoji of one run that are named."""
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
    """Choices for input that has more than one reading."""

    links: Literal["name", "drop"] = "name"
    emoji: Literal["name", "drop"] = "name"
    language: Literal["en", "zh"] = "en"
    """Language of lines without a word, such as "666"."""


def rewrite(text: Rewriting, manners: Manners, *, chinese: bool = True) -> None:
    """Make a chat line speakable, where not `chinese` in English words alone."""
    whole = chinese and is_chinese(text.text, manners.language)
    # Before the joiners go that make one emoji of several.
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
    text.sub("name", r"(?<!\w)@(\w+)", lambda m: _digits(_words(m[1]), whole))
    text.sub("hashtag", r"(?<!\w)#([^\W\d]\w*)#?", lambda m: _words(m[1]))
    _shorten(text)
    _calm(text)
    clauses = re.split(r"(?<=[，。！？；!?;])|(?<=[,.])(?=\s\D)", text.text)
    text.text = "".join(_spoken(text, clause, whole, chinese) for clause in clauses)
    text.text = tidied(text.text)


def tidied(text: str) -> str:
    """Remove doubled or leading punctuation, and spaces before it."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(rf"(?<=[{HAN}，。！？：；、]) (?=[{HAN}，。！？：；、])", "", text)
    text = re.sub(r"(?<=[a-z]) -(?=[A-Z])", "-", text)
    text = re.sub(r"\s+([,.!?;:，。！？、…)])|(\()\s+", r"\1\2", text)
    text = re.sub(r"([,，、])(?:[,，、]\s?)+", r"\1", text)
    text = re.sub(r"[,，、:：]\s?([.!?。！？])", r"\1", text)
    text = re.sub(r"([.!?。！？])\s?[,，]", r"\1", text)
    return re.sub(rf"^[\s,.;:，。、：!?！？…-]+(?=[\w({SAID}])", "", text).strip()


def is_chinese(text: str, default: str = "en") -> bool:
    """True if a text is read in Chinese: half as many Chinese characters as words in letters are enough."""
    text = re.sub(f"{MAIL}|{LINK}", "", text)
    han, words = len(re.findall(rf"[{HAN}]", text)), len(re.findall(r"[A-Za-z]{2,}", text))
    return 2 * han >= words if han or words else default == "zh"


def _spoken(text: Rewriting, clause: str, whole: bool, chinese: bool) -> str:
    """A clause with its numbers in words, in the language of the clause, else of the whole."""
    if not chinese:  # which will be left out, and its characters are no part of a number's word
        clause = re.sub(rf"(?<=[{HAN}])(?=\d)|(?<=\d)(?=[{HAN}])", " ", clause)
    chinese = chinese and is_chinese(clause, "zh" if whole else "en")
    part = Rewriting(clause, text.changes)
    (mandarin if chinese else english).speak(part)
    return part.text


def _plain_letter(character: str) -> str:
    """A letter or digit of another width or style as the plain one: Ａ, 𝕳, ①; ½ and ℃ as they are typed."""
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


def _digits(name: str, chinese: bool) -> str:
    """A name with its digits one by one."""
    spell = mandarin.digit if chinese else english.digit
    return " ".join(re.sub(r"\d", lambda m: spell(m[0]), name).split())


def _named(name: str, manners: Manners) -> str:
    return f" {name} " if manners.emoji == "name" else " "


def _name_emoji(text: Rewriting, manners: Manners, language: str) -> None:
    """Each run of emoji is named once, or dropped."""
    found = emoji.emoji_list(text.text)
    if not found:
        return
    given, spoken, at = text.text, "", 0
    runs: list[list[Any]] = []
    for one in found:
        if runs and not given[int(runs[-1][-1]["match_end"]) : int(one["match_start"])].strip():
            runs[-1].append(one)
        else:
            runs.append([one])
    named: set[str] = set()
    for run in runs:
        start, end = int(run[0]["match_start"]), int(run[-1]["match_end"])
        names = list(dict.fromkeys(_emoji_name(str(one["emoji"]), language) for one in run))
        new = [name for name in names if name and name not in named][:MOST_EMOJI]
        named.update(new)
        mark = "，" if language == "zh" else ", "
        said = mark.join(new) if manners.emoji == "name" else ""
        before = given[at:start].rstrip()
        joint = mark if said and before and before[-1] not in ",.!?;:，。！？；：" else " "
        spoken += before + (joint + said if said else "")
        after = given[end:].lstrip()[:1]
        spoken += mark if said and after and after not in ",.!?;:，。！？；：" else " "
        text.note("emoji", given[start:end], said)
        at = end
    text.text = spoken + given[at:].lstrip()


def _emoji_name(character: str, language: str) -> str:
    name = emoji.demojize(character, language=language, delimiters=("", ""), version=None)
    if name == character:
        return ""
    words = name.replace("_", " ")
    return re.sub(_SKIN, "", words).strip()


def _shorten(text: Rewriting) -> None:
    """Runs of characters and words, as a person would say them."""
    text.sub("repeat", r"([!！])[!！]+", r"\1")
    text.sub("repeat", r"([?？])[?？]+", r"\1")
    text.sub("repeat", r"[!?！？]{2,}", lambda m: "？" if "？" in m[0] else "?" if "?" in m[0] else "!")
    text.sub("repeat", r"\.{2,}|。{2,}|…{2,}", lambda m: "…")
    text.sub("repeat", r"([~～,，、-])\1+", r"\1")
    text.sub("repeat", rf"([{HAN}])\1{{3,}}", r"\1\1\1")
    text.sub("repeat", rf"([{HAN}]{{2,6}}?)\1{{3,}}", r"\1\1\1")
    text.sub("repeat", r"([a-z])\1{2,}", _letters)
    text.sub("repeat", r"([a-z]{2,3}?)\1{3,}", r"\1\1\1")
    text.sub("repeat", rf"(?<!\S)([{SAID}]|\S{{2,40}})(?:\s+\1){{3,}}(?!\S)", r"\1 \1 \1")


def _letters(match: re.Match[str]) -> str | None:
    letter, text = match[1], match.string
    alone = not (
        text[match.start() - 1 : match.start()].isalpha() or text[match.end() : match.end() + 1].isalpha()
    )
    if alone:
        return letter.lower() * 3
    if match[0].lower() == "www":
        return None
    return letter if match[0].isupper() else match[0][:2]


def _calm(text: Rewriting) -> None:
    """Shouting in lower case: words of four letters and more, and the short ones beside them."""
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
