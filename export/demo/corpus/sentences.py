"""Sentences of the corpus: prose from Debian's fortunes, livestream and chat lines from templates, rare and
short ones.

A sentence consists of letters, spaces and . , ? ! ' -; numbers are in the device's words. The split is a hash
of the text, so every machine makes the same one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from export.heard import spelled

HELD_OUT = 200
"""Size of the test split."""
HELD_OUT_WORDS = 9
"""Shortest held-out sentence in words: speech recognisers need context."""
LIVESTREAM_SHARE = 0.25
"""Share of livestream lines in the held-out sentences."""
PER_TEMPLATE = 2
"""Most held-out lines of one template."""
LIVESTREAM_LINES = 6_000
CHAT_LINES = 8_000
"""Number of short chat lines, for training only."""
RARE_LINES, RARE_WORDS, RARE_BELOW = 3_000, (3, 7), 4
"""Number of lines of words that other training sentences have fewer times, and range of their words."""
BRIEF_LINES, BRIEF_WORDS = 2_000, (1, 5)
"""Number of short texts, parts of other training sentences, and range of their words."""
WORDS = (3, 24)
CHARACTERS = 150
SHARED_WORDS = 6
"""Training sentences that share this many consecutive words with a held-out one are left out."""
UNSEEN = "thanks for the follow welcome to the stream"
"""By which the demo is judged besides."""
LIVESTREAM = Path(__file__).with_name("livestream.yaml")

# Debian's files of prose, without verse, pictures, commands, chat logs and offensive humour.
FORTUNES = """
    art computers cookie debian definitions education food fortunes goedel humorists kids law linux
    linuxcookie literature love magic medicine miscellaneous news paradoxum people perl pets platitudes
    politics pratchett riddles science songs-poems sports startrek tao translate-me wisdom work zippy
"""
# Stems of words unsuitable for a demo.
_UNWELCOME = re.compile(
    r"\b(sex|damn|hell\b|bitch|bastard|fuck|shit|piss|whore|slut|rape[ds]?\b|rapist|porn|nude|naked|breast|"
    r"penis|vagina|orgasm|condom|virgin|prostitut|masturbat|nigg|negro|jew|nazi|hitler|fag|queer|lesbian|"
    r"homosex|gay\b|suicid|kill|murder|corpse|ass\b|asses\b|asshole|arse|crap|tits?\b|boob|lingerie|erotic|"
    r"seduc|drunk|cocaine|heroin|marijuana|abortion|castrat|genital|harlot|mistress|lover|bedroom|stupid|"
    r"idiot|retard|cripple|lynch|slave|islam|muslim|christ|jesus|catholic|god\b|gods\b|lord\b|pope\b|fat\b)",
    re.IGNORECASE,
)
_ALLOWED = re.compile(r"[A-Za-z][A-Za-z .,?!'-]*[.?!]")
# Shouts, letters that stand alone, abbreviations, marks in a row or within a word.
_ODD = re.compile(
    r"\b[A-Z]{2,}\b|\b[A-Z]\b(?<![IA])|[A-Z]\.|\. [a-z]|\b(?:Mrs?|Ms|Dr|Prof|St|etc|vs)\."
    r"|[.,?!-]{2}|\w[.,?!]\w|\b[a-z]'"
)
_ATTRIBUTION = re.compile(r"^\s*--\s*\S", re.MULTILINE)
_PLAIN = {ord("’"): "'", ord("‘"): "'", ord("“"): '"', ord("”"): '"', ord("—"): " -- ", ord("…"): "..."}
_SENTENCE_END = re.compile(r"(?<=[.?!])['\"]*\s+(?=['\"]?[A-Z])")
_PLAIN_WORD = re.compile(r"[A-Z]?[a-z]{3,12}")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Sentence:
    id: str
    """Source and start of its hash: "live-…", "chat-…", "fort-…", "rare-…" or "mini-…"."""
    text: str
    split: str
    """"test" or "train"."""


def collect(fortunes: Path, dictionary: Path | None) -> list[Sentence]:
    """All sentences: test, then training by hash.

    `fortunes` is the folder of Debian's files; quotations with words outside `dictionary`, whose rare words
    are spoken too, are left out. Raises OSError if a file is missing.
    """
    words = None if dictionary is None else dictionary.read_text("utf-8").split()
    known = None if words is None else frozenset(_key(" ".join(words)).split())
    quoted = {_key(s): s for s in _fortunes(fortunes) if _usable(s, known)}
    said = {_key(s): (s, template) for s, template in livestream(LIVESTREAM_LINES)}
    test = _held_out(quoted.keys() - said.keys(), {key: template for key, (_, template) in said.items()})
    shared = {run for key in (*test, UNSEEN) for run in _runs(key)}
    # A template is held out whole: its lines are too similar to split.
    templates = {said[key][1] for key in test if key in said}
    lines = {_key(s): ("chat", s) for s in chat(CHAT_LINES)}
    lines |= {key: ("fort", s) for key, s in quoted.items()}
    lines |= {key: ("live", s) for key, (s, _) in said.items()}
    train = [key for key in lines.keys() - set(test) if shared.isdisjoint(_runs(key))]
    train = [key for key in train if key not in said or said[key][1] not in templates]
    texts = [lines[key][1] for key in train]
    more = {_key(line): ("rare", line) for line in rare(words or (), texts)}
    more |= {_key(line): ("mini", line) for line in brief(texts)}
    lines |= (more := {key: line for key, line in more.items() if key not in lines})
    train += more
    splits = [*((key, "test") for key in test), *((key, "train") for key in sorted(train, key=_digest))]
    return [Sentence(f"{lines[key][0]}-{_digest(key)[:10]}", lines[key][1], split) for key, split in splits]


def rare(dictionary: Iterable[str], others: Iterable[str]) -> list[str]:
    """Draw lines of words of the dictionary that the other sentences hardly have."""
    counts = Counter(word for text in others for word in _key(text).split())
    some = [
        word
        for word in dictionary
        if counts[word.lower()] < RARE_BELOW and _PLAIN_WORD.fullmatch(word) and not _UNWELCOME.search(word)
    ]
    chance = random.Random(0)
    chance.shuffle(some)
    lines: list[str] = []
    at = 0
    while some and len(lines) < RARE_LINES:
        count = chance.randint(*RARE_WORDS)
        drawn = [some[(at + n) % len(some)] for n in range(count)]
        marks = [chance.choice(("", "", ", ", " and ")) or " " for _ in drawn[1:]]
        line = drawn[0] + "".join(mark + word for mark, word in zip(marks, drawn[1:], strict=True))
        lines.append(line[0].upper() + line[1:] + ".")
        at += count
    return lines


def brief(others: Iterable[str]) -> list[str]:
    """Draw short texts: sentences' beginnings or ends up to a mark, and single words."""
    chance = random.Random(0)
    least, most = BRIEF_WORDS
    parts = {
        part.strip()
        for text in sorted(others)  # each draws
        for part in (*re.split(r"[.,?!]", text), chance.choice(text.rstrip(".?!").split()))
        if least <= len(part.split()) <= most
    }
    by_words: dict[int, list[str]] = defaultdict(list)
    for part in sorted(parts, key=_digest):
        by_words[len(part.split())].append(part.strip(" -'"))
    drawn = [part for n in range(least, most + 1) for part in by_words[n][: BRIEF_LINES // most]]
    return [part[0].upper() + part[1:] + chance.choice(".....!?") for part in drawn if part]


def livestream(count: int) -> list[tuple[str, str]]:
    """Draw `count` distinct livestream lines, each with its template."""
    ours: dict[str, Any] = yaml.safe_load(LIVESTREAM.read_text("utf-8"))
    return _drawn(ours["templates"], ours["slots"], count)


def chat(count: int) -> list[str]:
    """Draw `count` distinct short lines of chat messages and bot replies."""
    ours: dict[str, Any] = yaml.safe_load(LIVESTREAM.read_text("utf-8"))
    drawn = _drawn(ours["chat"]["templates"], ours["slots"] | ours["chat"]["slots"], count)
    return [line for line, _ in drawn]


def write(sentences: Iterable[Sentence], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(s)) + "\n" for s in sentences), "utf-8")


def read(path: Path) -> list[Sentence]:
    """Read the file of `write`. Raises OSError, ValueError."""
    return [Sentence(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def clean(text: str) -> str:
    """Normalise text: drop quotation marks, turn dashes and colons into commas, spell numbers."""
    text = re.sub(r"\s+", " ", spelled(text.translate(_PLAIN)))
    text = re.sub(r"\"|``|''|(?<!\w)'|'(?!\w)", "", text)
    text = re.sub(r"\s*(?:;|:|--+| - |\.\.\.+(?= [a-z]))\s*", ", ", text)
    text = re.sub(r"\.\.+", ".", text)
    text = re.sub(r"[?!]*![?!]*", "!", text)
    text = re.sub(r"\?+", "?", text)
    text = re.sub(r"\s+([.,?!])", r"\1", text)
    text = re.sub(r",+([.?!])", r"\1", re.sub(r"(?:, ?){2,}", ", ", text))
    return re.sub(r"\s+", " ", text).strip(" ,-")


def _drawn(templates: Sequence[str], slots: Mapping[str, Sequence[str]], count: int) -> list[tuple[str, str]]:
    """Fill slots at random, cycling through the templates, until there are `count` distinct lines."""
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
    # Verse, tables and dialogue of short lines have no detectable sentences.
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
        and not _ODD.search(text)
        and (known is None or known.issuperset(_key(re.sub(r"'s\b", "", text)).split()))
    )


def _held_out(quoted: Iterable[str], said: Mapping[str, str]) -> list[str]:
    """Keys of the test split, own lines first. `said` maps lines to templates."""
    by_template: dict[str, list[str]] = defaultdict(list)
    for key, template in said.items():
        if len(key.split()) >= HELD_OUT_WORDS:
            by_template[template].append(key)
    live = [line for name in sorted(by_template, key=_digest) for line in by_template[name][:PER_TEMPLATE]]
    ranked = sorted((key for key in quoted if len(key.split()) >= HELD_OUT_WORDS), key=_digest)
    count = round(HELD_OUT * LIVESTREAM_SHARE)
    return [*live[:count], *ranked[: HELD_OUT - count]]


def _runs(key: str) -> set[str]:
    words = key.split()
    return {" ".join(words[i : i + SHARED_WORDS]) for i in range(len(words) - SHARED_WORDS + 1)}


def _key(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
