"""Files of words: what is refused and how, rows that a bundle brings, and no language in the shared code."""

import ast
import re
from pathlib import Path

import pytest

from appliance.contract.tokens import Vocabulary
from appliance.errors import ConfigError
from appliance.text import languages
from appliance.text.languages import LANGUAGES
from appliance.text.languages.words import COLUMNS, WordsError, read
from appliance.text.sayable import FrontEnd

pytestmark = pytest.mark.once

HEAD = "\t".join(COLUMNS)


def written(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "words-de.tsv"
    path.write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(("row", "message"), [
    ("untis\tkg\tKilo", "row 2, column table: 'untis' is not known; numbers, money, units, "),
    ("unit\tkg", "row 2, column spoken: is empty"), ("unit\t\tKilo", "row 2, column written: is empty"),
    ("unit\tkg \tKilo", "row 2, column written: 'kg ' has a space at an end"),
    ("unit\tkg\tKilo\t\t", "row 2: has 5 columns; table, written, spoken, also are allowed"),
    ("unit", "row 2: has 1 columns; "),
    ("unit\tkg\tKilo\nunit\tkg\tKilos", "row 3, column written: 'kg' is in words/words-de.tsv, row 2 too"),
    ("month\t13\tSmarch", "row 2, column written: '13' is no month; 1 to 12 are"),
    ("noun\tHaus\tx", "row 2, column spoken: 'x' is no gender; m, f and n are"),
    ("scale\tk\tKilo\tmany", "row 2, column also: 'many' is no number"),
    ("signs\tplsu\tplus", "row 2, column written: 'plsu' is not known; to, score, "),
    ("numbers\tpairs\tmaybe", "row 2, column spoken: must be yes or no"),
    ("writing\tstretched\tlong", "row 2, column spoken: 'long' is no number"),
    ("numbers\tlabels\t(level", "row 2, column spoken: is no pattern: missing )"),
    ("dates\tdate\t{tag}", "row 2, column spoken: {tag} is not known; {day}, {month} are"),
    ("at digit\t1(\tone\tnumber", "row 2, column written: is no pattern: missing )"),
    ("at digit\t1\tone\tnumbre", "row 2, column also: 'numbre' is no kind of change; "),
    ("at digit\t(1)\t{2}\tnumber", "row 2, column spoken: {2} is not known; {0}, {1} are"),
    ("at digit\t1\t{1\tnumber", "row 2, column spoken: expected '}' before end of string"),
])  # fmt: skip
def test_an_error_names_file_row_and_column(tmp_path: Path, row: str, message: str) -> None:
    (folder := tmp_path / "words").mkdir()
    with pytest.raises(WordsError) as caught:
        read(written(folder, *row.split("\n")))
    assert str(caught.value).startswith(f"words/words-de.tsv, {message}")


def test_a_bundles_rows_replace_those_of_a_language(tmp_path: Path) -> None:
    path = written(tmp_path, "unit\tkg\tKilo", "short\tkA\tkeine Ahnung")
    vocabulary = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyzäöüßABCDEFGHIJKLMNOPQRSTUVWXYZ.,"), "char")
    said = FrontEnd(vocabulary, languages=("de",), words={"de": path}).speakable("ka, 5 kg und 3 m").text
    assert said == "keine Ahnung, fünf Kilo und drei Meter"
    assert FrontEnd(vocabulary, languages=("de",)).speakable("5 kg").text == "fünf Kilogramm"
    with pytest.raises(ConfigError, match=r"words-de\.tsv, row 1: must be the columns table, written, "):
        FrontEnd(vocabulary, languages=("de",), words={"de": written(tmp_path, head="unit\tkg\tKilo")})


def test_the_shared_code_has_no_word_of_any_language() -> None:
    own = {word for code in LANGUAGES for word in _spoken(code)} - ENGLISH
    folder = Path(languages.__file__).parent
    for path in {*folder.glob("*.py"), *folder.glob("readers/*.py")} - {folder / "words.py"}:
        tree = ast.parse(path.read_text("utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                strings = set(re.findall(r"[^\W\d_]{3,}", node.value.lower()))
                assert not strings & own, (path.name, node.lineno, strings & own)


ENGLISH = frozenset(
    str.split("cents clock code day gbit kbit mbit min minus month not noun number points sec seconds year")
)
"""Names in the code and signs of units; the messages of words.py are English too."""


def _spoken(code: str) -> set[str]:
    """Words of three and more letters of a language's file, but for the patterns of its rules."""
    rows = LANGUAGES[code].read_text("utf-8").splitlines()[1:]
    cells = (row.split("\t") for row in rows if not row.startswith(("at ", "writing", "numbers")))
    return set(re.findall(r"[^\W\d_]{3,}", " ".join(cell[2] for cell in cells if len(cell) > 2).lower()))
