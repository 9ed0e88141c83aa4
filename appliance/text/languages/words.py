"""Reads a language's file of words: a tab-separated table that a native speaker can correct.

Any error is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from appliance.text.languages import facets
from appliance.text.languages.facets import FACETS, Noun, Scale
from appliance.text.languages.numerals import NAMES, Numeral
from appliance.text.spans import Kind

COLUMNS = ("table", "written", "spoken", "also")


class WordsError(ValueError):
    """A file of words is invalid. The message names the file, row and column."""


class Rule(NamedTuple):
    kind: Kind
    pattern: str
    spoken: str
    earlier: str
    """Pattern of words that must precede; "" for any."""
    is_without: bool
    """True if the words in `earlier` must not precede."""


class WordRow(NamedTuple):
    place: str
    """File and row, for messages."""
    table: str
    written: str
    spoken: str = ""
    also: str = ""

    def error(self, column: str, message: str) -> WordsError:
        return WordsError(f"{self.place}, column {column}: {message}")


class Words(NamedTuple):
    numbers: facets.Numbers
    money: facets.Money
    units: facets.Units
    dates: facets.Dates
    times: facets.Times
    signs: facets.Signs
    chat: facets.Chat
    writing: facets.Writing
    numerals: Mapping[str, Mapping[int, Numeral]]
    """Table → its rows of number words."""
    lists: Mapping[str, list[str]]
    """Name of a list → its words."""
    patterns: Mapping[str, re.Pattern[str]]
    """Name → a pattern for the language's Grammar."""
    rules: Mapping[str, list[Rule]]
    """Table → its rules: "at digit", "at letter" or "at sign", by the character that they begin with."""


def _noun(text: str) -> Noun:
    """A noun from "hora/horas" (forms) or "f:hora/horas" (with gender)."""
    gender, colon, forms = text.rpartition(":")
    return Noun(tuple(forms.split("/")), gender if colon else "m")


def _scale(row: WordRow) -> Scale:
    if not re.fullmatch(r"\d*", row.also):
        raise row.error("also", f"{row.also!r} is no number")
    return Scale(int(row.also or 0), _noun(row.spoken) if row.spoken else None)


def _gender(row: WordRow) -> str:
    if row.spoken not in ("m", "f", "n"):
        raise row.error("spoken", f"{row.spoken!r} is no gender; m, f and n are")
    return row.spoken


def _month(row: WordRow) -> str:
    if not row.written.isdecimal() or not 1 <= int(row.written) <= 12:
        raise row.error("written", f"{row.written!r} is no month; 1 to 12 are")
    return row.spoken


def _spoken(row: WordRow) -> str:
    return row.spoken


def _as_noun(row: WordRow) -> Noun:
    return _noun(row.spoken)


_TABLES: Mapping[str, tuple[str, str, Callable[[WordRow], Any]]] = {
    "unit": ("units", "nouns", _as_noun),
    "cased": ("units", "cased", _as_noun),
    "per": ("units", "per", _spoken),
    "currency": (
        "money",
        "currencies",
        lambda row: (_noun(row.spoken), _noun(row.also) if row.also else None),
    ),
    "scale": ("money", "scales", _scale),
    "month": ("dates", "months", _month),
    "weekday": ("dates", "weekdays", lambda row: (row.spoken, row.also or row.spoken)),
    "sign": ("signs", "words", _spoken),
    "limit": ("signs", "limits", _spoken),
    "symbol": ("signs", "symbols", _spoken),
    "fraction": ("signs", "fractions", _spoken),
    "short": ("chat", "short", _spoken),
    "abbreviation": ("chat", "abbreviations", _spoken),
    "label": ("chat", "labels", _spoken),
    "noun": ("numbers", "nouns", _gender),
}
"""Tables of words: their facet, its field, and the function that makes a row's value."""
_FORMATS: Mapping[str, Sequence[str]] = {
    **{"date": ("day", "month"), "dated": ("day", "month", "year"), "with_seconds": ("clock", "seconds")},
    **{"cents": ("whole", "part", "noun"), "of": ("",), "of_vowel": ("",), "per_word": ("",)},
    "weekday_range": ("",),
}
"""Settings that are formats, and the names allowed in their braces."""
_NUMERALS = ("cardinal", "ordinal", "part", "year", "day", "half", "regnal", "clock")
"""Tables of number words. A form may follow after a space: cardinal f."""
_RULES = ("at digit", "at letter", "at sign")
_ALL_TABLES = (*FACETS, *_TABLES, *_NUMERALS, "list", "pattern", *_RULES)
_MAY_BE_SILENT = {"abbreviation", "scale", *_RULES, *FACETS}


@cache
def own(path: Path) -> Words:
    """The words of a language's own file, cached."""
    return read(path)


def read(*paths: Path) -> Words:
    """The words of some files. Rows of a later file replace those with the same key. Raises WordsError."""
    rows: dict[tuple[str, str], WordRow] = {}
    for path in paths:
        rows |= _rows(path)
    settings: dict[str, dict[str, Any]] = {name: {} for name in FACETS}
    numerals: dict[str, dict[int, Numeral]] = {}
    lists: dict[str, list[str]] = {}
    patterns: dict[str, re.Pattern[str]] = {}
    rules: dict[str, list[Rule]] = {name: [] for name in _RULES}
    for row in rows.values():
        if row.table in FACETS:
            settings[row.table][row.written] = _setting(row)
        elif row.table in _TABLES:
            facet, name, value = _TABLES[row.table]
            settings[facet].setdefault(name, {})[row.written] = value(row)
        elif row.table.partition(" ")[0] in _NUMERALS:
            numerals.setdefault(row.table, {}).update(_numerals(row))
        elif row.table == "list":
            lists[row.written] = row.spoken.split()
        elif row.table == "pattern":
            patterns[row.written] = _compiled(row, "spoken", row.spoken)
        else:
            rules[row.table].append(_rule(row))
    return Words(
        **{name: facet(**settings[name]) for name, facet in FACETS.items()},
        numerals=numerals,
        lists=lists,
        patterns=patterns,
        rules=rules,
    )


def _rows(path: Path) -> dict[tuple[str, str], WordRow]:
    """Read and check the rows of a file. Raises WordsError."""
    rows: dict[tuple[str, str], WordRow] = {}
    name = f"{path.parent.name}/{path.name}"
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WordsError(f"{name}: {error}") from None
    if lines[:1] != ["\t".join(COLUMNS)]:
        raise WordsError(f"{name}, row 1: must be the columns {', '.join(COLUMNS)}, with tabs between")
    for number, line in enumerate(lines[1:], 2):
        cells, place = line.split("\t"), f"{name}, row {number}"
        if not 2 <= len(cells) <= len(COLUMNS):
            raise WordsError(f"{place}: has {len(cells)} columns; {', '.join(COLUMNS)} are allowed")
        row = WordRow(place, *cells)
        _check(row)
        if same := rows.get((row.table, row.written)):
            raise row.error("written", f"{row.written!r} is in {same.place} too")
        rows[row.table, row.written] = row
    return rows


def _check(row: WordRow) -> None:
    for column in COLUMNS:
        if (cell := getattr(row, column)) != cell.strip():
            raise row.error(column, f"{cell!r} has a space at an end")
    if row.table not in _ALL_TABLES and row.table.partition(" ")[0] not in _NUMERALS:
        raise row.error("table", f"{row.table!r} is not known; {', '.join(_ALL_TABLES)} are")
    if not row.written or not (row.spoken or row.table in _MAY_BE_SILENT):
        raise row.error("spoken" if row.written else "written", "is empty")


def _setting(row: WordRow) -> str | bool | int:
    """Value of a setting, by the type of its default. Raises WordsError."""
    defaults = FACETS[row.table]._field_defaults
    plain = {name: default for name, default in defaults.items() if isinstance(default, (str, int))}
    if row.written not in plain:
        raise row.error("written", f"{row.written!r} is not known; {', '.join(plain)} are")
    default = plain[row.written]
    if isinstance(default, bool):
        if row.spoken not in ("yes", "no"):
            raise row.error("spoken", "must be yes or no")
        return row.spoken == "yes"
    if isinstance(default, int):
        if not row.spoken.isdecimal():
            raise row.error("spoken", f"{row.spoken!r} is no number")
        return int(row.spoken)
    if default == "(?!)":
        _compiled(row, "spoken", row.spoken)
    if names := _FORMATS.get(row.written):
        _check_format(row, names)
    return row.spoken


def _numerals(row: WordRow) -> dict[int, Numeral]:
    """Rows of a single number, or of each number in a range."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?(?:/(\d+))?", row.written)
    if not match:
        raise row.error("written", f"{row.written!r} is no number; 7, 20-90 and 1100/100 are")
    words = row.spoken.split() if match[2] else [row.spoken]
    first, last = int(match[1]), int(match[2] or match[1])
    step = (last - first) // max(len(words) - 1, 1)
    if first + step * (len(words) - 1) != last:
        raise row.error("spoken", f"has {len(words)} words, which are not those of {row.written}")
    rows = {}
    for number, word in enumerate(words):
        base, pattern = first + step * number, (row.also or "{word}").replace("{word}", word)
        for name in re.findall(r"\{([^:{}/]*)[^{}/]*\}", pattern):
            if name not in NAMES:
                raise row.error("spoken", f"{{{name}}} is not known; {{{'}, {'.join(NAMES)}}} are")
        rows[base] = Numeral(int(match[3] or 10 ** (len(str(base)) - 1)), pattern)
    return rows


def _rule(row: WordRow) -> Rule:
    kinds = {kind.value: kind for kind in Kind}
    if row.also not in kinds:
        raise row.error("also", f"{row.also!r} is no kind of change; {', '.join(kinds)} are")
    earlier, _, pattern = row.written.rpartition(" … ")
    groups = _compiled(row, "written", pattern).groups
    _compiled(row, "written", earlier)
    _check_format(row, [str(group) for group in range(groups + 1)])
    words = earlier.removeprefix("not ")
    return Rule(kinds[row.also], pattern, row.spoken, words, words != earlier)


def _check_format(row: WordRow, names: Sequence[str]) -> None:
    try:
        used = [name for _, name, _, _ in Formatter().parse(row.spoken) if name is not None]
    except ValueError as error:
        raise row.error("spoken", str(error)) from None
    if unknown := [name for name in used if name not in names]:
        raise row.error("spoken", f"{{{unknown[0]}}} is not known; {{{'}, {'.join(names)}}} are")


def _compiled(row: WordRow, column: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise row.error(column, f"is no pattern: {error}") from None
