"""Russian: its numbers and ordinals, in the case and gender that the words around them require."""

from __future__ import annotations

import re

from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.quantity import is_rating, one_of
from appliance.text.languages.readers import digit_table
from appliance.text.languages.ru.numbers import HARD, decimals, form, genitive, moment, oblique, ordinal
from appliance.text.spans import Kind, Say, Table, before

_ENDINGS = {
    "й": "ый", "я": "ая", "е": "ое", "го": "ого", "му": "ому", "м": "ым", "ю": "ую", "х": "ых", "ми": "ыми"
} | {ending: ending for ending in HARD}  # fmt: skip
_YEAR = r"(1[1-9]\d\d|20\d\d)"
_ENDS = r"(?![\w%°]|[.,:/]\d)"


class Grammar(BaseGrammar):
    def ordinal(self, number: int, ending: str = "") -> str:
        return ordinal(number, ending)

    def form(self, number: str) -> int:
        return form(number)

    def decimals(self, whole: str, part: str) -> str:
        return decimals(whole, part)

    def year(self, number: int) -> str:
        return ordinal(number, "ого")

    def regnal(self, number: int, gender: str) -> str:
        return ordinal(number, "ая" if gender == "f" else "").capitalize()

    def day(self, number: int, match: re.Match[str]) -> str:
        """The day's ordinal: nominative in a title and after some words, else genitive, for "on that day"."""
        after = match.string[match.end() :]
        goes_on = re.match(r"\s[а-яё]+\s[а-яё\d]" if match[0].isdigit() else r"\s[а-яё]", after)
        is_start = not re.search("[А-яЁё]", match.string[: match.start()])
        is_title = not goes_on if is_start else self.is_after("nominative", match)
        if self.is_after("to", match):
            return ordinal(number, "ому")
        return ordinal(number, "ое" if is_title else "ого")

    def followed(self, match: re.Match[str]) -> str:
        """Gender of the noun after a number. The singular shows it after one, the genitive after two."""
        after = re.match(r"\s([а-яё]+)(?:\s([а-яё]+))?", match.string[match.end() : match.end() + 64].lower())
        if not after or re.fullmatch(self.numbers.no_noun, after[1]) or self.is_after("label", match):
            return ""
        groups = match.groupdict()
        number = self.plain(groups.get("number") or groups.get("number_b") or "0").partition(".")[0]
        word = after[2] or after[1] if re.search("[ыи][хе]$", after[1]) else after[1]
        return self._gender(word, form(number))

    def _gender(self, word: str, at: int) -> str:
        """Gender of a noun by its ending, in the form with index `at`."""
        if at:
            return "f" if re.search("[ыи]$|ой$", word) else "m"
        if re.search("[ую]ю$|[ую]$", word):
            return "a"
        if re.search("[оеё]$|мя$", word):
            return "n"
        return "f" if re.search("[ая]$|(?:ост|зн|ч|щ|част|смерт|двер|запис|рол|модел|цел)ь$", word) else "m"

    def between(self, first: str, word: str, second: str) -> str:
        return f"{first}-{second}" if word == "-" else super().between(first, word, second)

    def in_case(self, table: Table) -> Table:
        """Each reading, put into the genitive, dative or instrumental if the words around it require that."""
        others = digit_table(_Genitive(self.code, self.words))
        return [
            (kind, pattern, self._in_case(nominative, genitive))
            for (kind, pattern, nominative), (_, _, genitive) in zip(table, others, strict=True)
        ]

    def _in_case(self, nominative: Say, in_genitive: Say) -> Say:
        """Put words into the case that the preposition before or the noun after requires."""

        def read(match: re.Match[str]) -> str | tuple[Kind, str] | None:
            if (usual := nominative(match)) is None:
                return None
            noun = self.words.patterns["plural"].match(match.string, match.end())
            number = re.sub(r"\D", "", match.groupdict().get("number") or "")
            if number and form(number) == 0:
                noun = None
            if not noun and before(match, 2).strip().isdecimal():
                return usual
            is_to = match[0].isdigit() and self.is_after("to", match)
            is_since = self.is_after("from", match) and self.is_before("hours", match)
            if not (noun or is_to or is_since or self.is_after("genitive", match)):
                return usual
            words, ending = in_genitive(match), noun["case"][-1] if noun else "м" if is_to else ""
            return oblique(words, ending) if isinstance(words, str) and ending in ("м", "и") else words

        return read

    def digit_rules(self) -> Table:
        two_days = rf"(\d{{1,2}})(?=\s?(?:на|по|до|и|-|–)\s?\d{{1,2}}\s(?:{'|'.join(self.months)}))"
        not_money = r"(?!\s?(?:[%$€₽]|млн|тыс|руб))"
        suffixed = rf"(?i)(\d{{1,6}})-?({one_of(_ENDINGS)}|ти)(?!\w)"
        year = rf"(?i){_YEAR}(?:\s?(год(?:а|у|ом|ы|ов|ах)?|г\.?))?(?!\w|[.,:/]\d)"
        self._numbered = {
            noun: ending for ending in ("ый", "ая", "ое") for noun in self.lists[f"numbered {ending}"]
        }
        return (
            (Kind.TIME, r"(\d{1,2}):([0-5]\d)\s?[-–—]\s?(\d{1,2}):([0-5]\d)(?![\d:])", self._hours),
            (Kind.TIME, r"(\d{1,2}):([0-5]\d)(?![\d:])", self._clock_in_case),
            (Kind.DATE, two_days, lambda m: self.day(int(m[1]), m) if int(m[1]) < 32 else None),
            (Kind.YEAR, rf"{_YEAR}[-–—]{_YEAR}(?:\s?(?:гг?\.?|год\w*))?(?!\w|[-.,:/]\d)", self._years),
            (Kind.DATE, rf"(\d{{1,2}})\.(0[1-9]|1[0-2]){_ENDS}{not_money}", self._short_day),
            (Kind.YEAR, r"(\d{1,4})\s?г(?:\.|од[ау]?)?(?=\s?(?:до\s)?н\.?\s?э)", self._year_of_era),
            (Kind.YEAR, r"(\d\d)\s(год[ау])(?!\w)", self._short_year),
            (Kind.YEAR, year, self._year),
            (Kind.NUMBER, suffixed, self._suffixed),
            (
                Kind.NUMBER,
                rf"(\d{{1,3}})-?((?:{self.words.patterns['compound'].pattern})[а-яё]+)",
                self._compound,
            ),
            (Kind.FRACTION, rf"(\d+(?:[.,]\d+)?)/(5|10|20|100){_ENDS}", self._out_of),
            (Kind.RANGE, r"(\d{1,3})[-–](\d{1,3})(?=\s([а-яё]+))", self._places),
            (Kind.NUMBER, r"(\d{1,3})(?=\s([а-яё]+))", self._place),
        )

    def letter_rules(self) -> Table:
        return ((Kind.WORD, r"г(?:\.|ода?)?(?!\w)", self._written_year),)

    def sign_rules(self) -> Table:
        return ((Kind.SIGN, r"\.(?=\s?[а-яё,)])", self._full_stop), (Kind.EMOTICON, r"\)+", self._smile))

    def _place(self, match: re.Match[str]) -> str | None:
        """Read 5 место, 3 сезон, на 3 карте as ordinals, because the noun is singular."""
        number, noun = int(match[1]), match[2].lower()
        if form(match[1]) and (ending := self._numbered.get(noun)):
            return ordinal(number, ending)
        if not self.is_after("locative", match) or not re.search("(?<![иы])е$|ии$|части$|ночи$", noun):
            return None
        if re.fullmatch("уже|же|где|вс[её]|тоже|вообще|не|мне|тебе|себе|даже|более|менее|кайфе", noun):
            return None
        return ordinal(number, "ой" if self.words.patterns["feminine place"].fullmatch(noun) else "ом")

    def _places(self, match: re.Match[str]) -> str | None:
        """Read 2-3 место."""
        ending = self._numbered.get(match[3].lower())
        return f"{ordinal(int(match[1]), ending)}-{ordinal(int(match[2]), ending)}" if ending else None

    def _short_day(self, match: re.Match[str]) -> str | None:
        """Read 24.12."""
        if int(match[1]) > 31:
            return None
        return f"{self.day(int(match[1]), match)} {self.months[int(match[2]) - 1]}"

    def _clock_in_case(self, match: re.Match[str]) -> str | None:
        is_led = any(self.is_after(name, match) for name in ("genitive", "from", "to"))
        if int(match[1]) > 24 or not is_led:
            return None
        words = moment(match[1], match[2])
        return oblique(words, "м") if self.is_after("to", match) else words

    def _hours(self, match: re.Match[str]) -> str | None:
        """Read 19:00-21:00."""
        if max(int(match[1]), int(match[3])) > 24:
            return None
        words = f"{moment(match[1], match[2])} до {moment(match[3], match[4])}"
        return words if self.is_after("from", match) else f"с {words}"

    def _year_of_era(self, match: re.Match[str]) -> str:
        """Read 44 г. до н.э."""
        ending, word = ("ом", "году") if self.is_after("locative", match) else ("", "год")
        return f"{ordinal(int(match[1]), ending)} {word}"

    def _short_year(self, match: re.Match[str]) -> str | None:
        """Read 98 года, в 98 году. None for 22 года, which are years, not a year."""
        is_age = self.is_after("genitive", match) and match[1][1] == "1" and match[1] < "70"
        is_count = match[2] == "года" and (form(match[1]) == 1 or is_age)
        if is_count:
            return None
        return f"{ordinal(int(match[1]), 'ого' if match[2] == 'года' else 'ом')} {match[2]}"

    def _years(self, match: re.Match[str]) -> str:
        """Read 2024-2026."""
        first, last = int(match[1]), int(match[2])
        if self.is_after("locative", match):
            return f"{ordinal(first, 'ом')} и {ordinal(last, 'ом')} годах"
        words = f"{ordinal(first, 'ого')} по {ordinal(last)} год"
        return words if self.is_after("from", match) else f"с {words}"

    def _year(self, match: re.Match[str]) -> str | None:
        """Read a year. Its case is the case of the word after it (2026 году), or of the words before it."""
        word, earlier = (match[2] or "").lower(), before(match)
        is_dated = self.is_after("month", match)
        if not word and not is_dated:
            is_end = re.match(r"\s?(?:[,.!?)]|$|по\s\d{4}|[^а-яё\d])", match.string[match.end() :])
            ending = (
                "ом" if self.is_after("locative", match) else "ого" if self.is_after("from", match) else ""
            )
            ending = "ый" if re.search(r"(?i)с \d{4} по $", earlier) else ending
            return ordinal(int(match[1]), ending) if is_end and ending and match[1] != "2000" else None
        if word in ("", "г", "г."):
            word = "году" if self.is_after("locative", match) and not is_dated else "года"
            if not is_dated and not any(self.is_after(p, match) for p in ("locative", "genitive", "from")):
                word = "год"
        endings = {"год": "ый", "года": "ого", "годом": "ым", "годы": "ые", "годов": "ых", "годах": "ых"}
        ending = endings.get(word, "ому" if self.is_after("to", match) else "ом")
        return f"{ordinal(int(match[1]), ending)} {word}"

    def _written_year(self, match: re.Match[str]) -> str | None:
        """Leave out г. in 24.12.2026 г., because the words of the date have it already."""
        if not self.is_after("date", match):
            return None
        return "." * (match[0][-1] == "." and not match.string[match.end() :].strip())

    def _suffixed(self, match: re.Match[str]) -> str | None:
        """Read 1-й, 2-я, 90-е as ordinals, 2-х, 5-ти as cardinals. 2М is two million, 2м is two metres."""
        number, suffix, after = int(match[1]), match[2].lower(), match.string[match.end() :]
        if match[2] in ("м", "М") and "-" not in match[0]:
            is_place = self.is_after("locative", match) and re.match(r"\s(?!\w+(?:ше|же)\b)[а-яё]+е\b", after)
            return ordinal(number, "ом") if is_place else None
        if suffix == "ти" or (suffix == "х" and 2 <= number <= 4):
            return genitive(self.cardinal(number))
        ending = _ENDINGS[suffix]
        if suffix == "е" and number and number % 10 == 0 and not self.is_before("neuter", match):
            ending = "ые"
        elif suffix == "м" and self.is_after("locative", match):
            ending = "ом"
        elif suffix == "й" and re.match(r"\s[а-яё]+[еиы]\b", after):
            ending = "ой"
        return ordinal(number, ending)

    def _compound(self, match: re.Match[str]) -> str:
        """Read 10-летний, 100-процентный."""
        words = genitive(self.cardinal(int(match[1]))).replace("одного", "одно").replace(" ", "")
        return re.sub("^ста(?!м)", "сто", words).replace("девяноста", "девяносто") + match[2]

    def _out_of(self, match: re.Match[str]) -> str | None:
        whole, most = self.plain(match[1]), match[2]
        return (
            f"{self.spoken(whole)} из {genitive(self.cardinal(int(most)))}"
            if is_rating(whole, most)
            else None
        )

    def _full_stop(self, match: re.Match[str]) -> str | None:
        """Drop the full stop of руб. and other abbreviations within a sentence."""
        return "" if self.is_after("short unit", match) else None

    def _smile(self, match: re.Match[str]) -> str | None:
        """Drop a closing bracket without its opening one, which is a smile."""
        earlier = match.string[: match.start()]
        return " " if earlier.count("(") <= earlier.count(")") else None


class _Genitive(Grammar):
    """Numbers in the genitive. `oblique` turns the genitive into the dative or instrumental."""

    def cardinal(self, number: int, gender: str = "") -> str:
        return genitive(super().cardinal(number, gender))

    def form(self, number: str) -> int:
        """Index of the noun's form: рубля 1, рублей 2."""
        return 1 if "." in number or form(number) == 0 else 2

    def decimals(self, whole: str, part: str) -> str:
        return genitive(decimals(whole, part))

    def _gender(self, word: str, at: int) -> str:
        return super()._gender(word, 1)
