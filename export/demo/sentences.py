"""What the demo voice learns to say: plain English from Debian's fortunes, and a livestream's own lines.

A sentence has letters, spaces and . , ? ! ' - alone; numbers are spelled out. The split is by sentence and
follows from its text, so that every machine makes the same one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from export.demo.spelling import spell

Split = Literal["train", "valid", "test"]

HELD_OUT = 200
"""Sentences in the test split, and as many in the valid split."""
HELD_OUT_WORDS = 9
"""A judge of speech needs context: held-out sentences have at least so many words."""
LIVESTREAM_SHARE = 0.25
"""Of the held-out sentences."""
PER_TEMPLATE = 2
"""Held-out lines of one template at most."""
LIVESTREAM_LINES = 6_000
"""How many lines are drawn from the templates."""
CHAT_LINES = 8_000
"""How many short ones, for training alone."""
WORDS = (3, 24)
CHARACTERS = 150
SHARED_WORDS = 6
"""A training sentence with so many words in a row of a held-out one is left out."""
LIVESTREAM = Path(__file__).with_name("livestream.yaml")

# Debian's files of prose. Not among them: verse and pictures, lists of commands, chat logs full of
# nicknames, and those whose humour is at somebody's expense.
FORTUNES = """
    art computers cookie debian definitions education food fortunes goedel humorists kids law linux
    linuxcookie literature love magic medicine miscellaneous news paradoxum people perl pets platitudes
    politics pratchett riddles science songs-poems sports startrek tao translate-me wisdom work zippy
"""
# Stems of what a demo need not say.
_UNWELCOME = re.compile(
    r"\b(sex|damn|hell\b|bitch|bastard|fuck|shit|piss|whore|slut|rape[ds]?\b|rapist|porn|nude|naked|breast|"
    r"penis|vagina|orgasm|condom|virgin|prostitut|masturbat|nigg|negro|jew|nazi|hitler|fag|queer|lesbian|"
    r"homosex|gay\b|suicid|kill|murder|corpse|ass\b|asses\b|asshole|arse|crap|tits?\b|boob|lingerie|erotic|"
    r"seduc|drunk|cocaine|heroin|marijuana|abortion|castrat|genital|harlot|mistress|lover|bedroom|stupid|"
    r"idiot|retard|cripple|lynch|slave|islam|muslim|christ|jesus|catholic|god\b|gods\b|lord\b|pope\b|fat\b)",
    re.IGNORECASE,
)
_ALLOWED = re.compile(r"[A-Za-z][A-Za-z .,?!'-]*[.?!]")
_ATTRIBUTION = re.compile(r"^\s*--\s*\S", re.MULTILINE)
_PLAIN = {ord("’"): "'", ord("‘"): "'", ord("“"): '"', ord("”"): '"', ord("—"): " -- ", ord("…"): "..."}
_SENTENCE_END = re.compile(r"(?<=[.?!])['\"]*\s+(?=['\"]?[A-Z])")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Sentence:
    """One thing to say."""

    id: str
    """Its source and the start of its hash: "live-…", "chat-…" or "fort-…"."""
    text: str
    split: Split


def collect(fortunes: Path, dictionary: Path | None) -> list[Sentence]:
    """Every sentence in the order in which it is spoken: test, valid, then training by hash.

    `fortunes` is the folder of Debian's files; words outside `dictionary`, where one is given, disqualify.
    Raises OSError where a file is missing.
    """
    known = None if dictionary is None else _words_of(dictionary.read_text("utf-8"))
    quoted = {_key(s): s for s in _fortunes(fortunes) if _usable(s, known)}
    said = {_key(s): (s, template) for s, template in livestream(LIVESTREAM_LINES)}
    held_out = _held_out(
        [key for key in quoted if key not in said],
        {key: template for key, (_, template) in said.items()},
    )
    shared = {run for key in (*held_out, *excluded_lines()) for run in _runs(key)}
    # A template is held out whole: one line of it in the training set would give the others away.
    templates = {said[key][1] for key in held_out if key in said}
    lines = {_key(s): ("chat", s) for s in chat(CHAT_LINES)}
    lines |= {key: ("fort", s) for key, s in quoted.items()}
    lines |= {key: ("live", s) for key, (s, _) in said.items()}
    train = [key for key in lines if key not in held_out and shared.isdisjoint(_runs(key))]
    train = [key for key in train if key not in said or said[key][1] not in templates]
    splits: Iterable[tuple[str, Split]] = itertools.chain(
        ((key, split) for key, split in held_out.items()),
        ((key, "train") for key in sorted(train, key=_digest)),
    )
    return [
        Sentence(f"{source}-{_digest(key)[:10]}", text, split)
        for key, split in splits
        for source, text in (lines[key],)
    ]


def livestream(count: int, path: Path = LIVESTREAM) -> list[tuple[str, str]]:
    """`count` different lines of a livestream, each with the template that it was made from."""
    data: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return _drawn(data["templates"], data["slots"], count)


def chat(count: int) -> list[str]:
    """`count` different short lines, as chat writes and a bot answers them."""
    data: dict[str, Any] = yaml.safe_load(LIVESTREAM.read_text("utf-8"))
    drawn = _drawn(data["chat"]["templates"], {**data["slots"], **data["chat"]["slots"]}, count)
    return [line for line, _ in drawn]


def excluded_lines() -> list[str]:
    """By which the demo is judged besides: no training sentence comes near. Words alone, in small letters."""
    data: dict[str, Any] = yaml.safe_load(LIVESTREAM.read_text("utf-8"))
    return [_key(line) for line in data["unseen"]]


def write(sentences: Iterable[Sentence], path: Path) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(s)) + "\n" for s in sentences), "utf-8")


def read(path: Path) -> list[Sentence]:
    """What `write` wrote. Raises OSError, ValueError."""
    return [Sentence(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def clean(text: str) -> str:
    """Quotation marks dropped, dashes and colons as commas, numbers as words, single spaces."""
    text = text.translate(_PLAIN)
    text = re.sub(r"\s+", " ", spell(text))
    text = re.sub(r"\"|``|''|(?<!\w)'|'(?!\w)", "", text)
    text = re.sub(r"\s*(?:;|:|--+| - |\.\.\.+(?= [a-z]))\s*", ", ", text)
    text = re.sub(r"\.\.+", ".", text)
    text = re.sub(r"[?!]*![?!]*", "!", text)
    text = re.sub(r"\?+", "?", text)
    text = re.sub(r"\s+([.,?!])", r"\1", text)
    text = re.sub(r",+([.?!])", r"\1", re.sub(r"(?:, ?){2,}", ", ", text))
    return re.sub(r"\s+", " ", text).strip(" ,-")


def _drawn(templates: Sequence[str], slots: Mapping[str, Sequence[str]], count: int) -> list[tuple[str, str]]:
    """Every template in turn, its slots filled by chance, until there are `count` different lines."""
    chance = random.Random(0)
    made: dict[str, str] = {template: template for template in templates if not _SLOT.search(template)}
    open_templates = [template for template in templates if template not in made]
    for template in itertools.cycle(open_templates):
        if len(made) >= count:
            break
        line = _SLOT.sub(lambda m: str(chance.choice(slots[m[1]])), template)
        made.setdefault(line[0].upper() + line[1:], template)
    return list(made.items())


def _fortunes(folder: Path) -> Iterator[str]:
    for name in FORTUNES.split():
        for entry in (folder / name).read_text("utf-8", errors="replace").split("\n%\n"):
            yield from _sentences(_ATTRIBUTION.split(entry, maxsplit=1)[0])


def _sentences(entry: str) -> Iterator[str]:
    lines = entry.splitlines()
    # Verse, tables and dialogue of short lines: no sentence can be told from them.
    if len(lines) > 3 and sum(len(line) < 45 for line in lines) > len(lines) / 2:
        return
    if re.search(r"[^\x09-\x7e’‘“”—…]|[|<>{}\\^~=*_@#\[\]]|\S/\S|^\s*\w+[,:]\s+(n|adj|v|adv)\.", entry):
        return
    for sentence in _SENTENCE_END.split(" ".join(line.strip() for line in lines)):
        yield clean(sentence)


def _usable(text: str, known: frozenset[str] | None) -> bool:
    words = text.split()
    return (
        WORDS[0] <= len(words) <= WORDS[1]
        and len(text) <= CHARACTERS
        and bool(_ALLOWED.fullmatch(text))
        and text[0].isupper()
        and not _UNWELCOME.search(text)
        and not re.search(r"\b[A-Z]{2,}\b|\b[A-Z]\b(?<![IA])|[A-Z]\.|[.,?!-]{2}|\w[.,?!]\w|\b[a-z]'", text)
        and (known is None or _words_of(re.sub(r"'s\b", "", text)) <= known)
    )


def _held_out(quoted: Iterable[str], said: Mapping[str, str]) -> dict[str, Split]:
    """Key → split of the held-out sentences, test first. `said` gives the template of each line."""
    by_template: dict[str, list[str]] = {}
    for key, template in said.items():
        if len(key.split()) >= HELD_OUT_WORDS:
            by_template.setdefault(template, []).append(key)
    live = [
        key for template in sorted(by_template, key=_digest) for key in by_template[template][:PER_TEMPLATE]
    ]
    ranked = sorted((key for key in quoted if len(key.split()) >= HELD_OUT_WORDS), key=_digest)
    count = round(HELD_OUT * LIVESTREAM_SHARE)
    rest = HELD_OUT - count
    test = [*live[:count], *ranked[:rest]]
    valid = [*live[count : 2 * count], *ranked[rest : 2 * rest]]
    return {**dict.fromkeys(test, "test"), **dict.fromkeys(valid, "valid")}


def _runs(key: str) -> set[str]:
    words = key.split()
    return {" ".join(words[i : i + SHARED_WORDS]) for i in range(len(words) - SHARED_WORDS + 1)}


def _key(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def _words_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z']+", text.lower()))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
