"""Files of words: refused files and their messages, rows of a bundle, and no language in the shared code."""

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
from tests.harness.rows import rows

pytestmark = pytest.mark.once

HEAD = "\t".join(COLUMNS)


def written(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "words-de.tsv"
    path.write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return path


@pytest.mark.parametrize(("row", "message"), rows(__file__, "refused_words.jsonl"))
def test_an_error_names_file_row_and_column(tmp_path: Path, row: str, message: str) -> None:
    (folder := tmp_path / "words").mkdir()
    with pytest.raises(WordsError) as caught:
        read(written(folder, *row.split("\n")))
    assert str(caught.value).startswith(f"words/words-de.tsv, {message}")


def test_a_bundles_rows_replace_the_languages_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "unit\tkg\tKilo", "short\tkA\tkeine Ahnung")
    vocabulary = Vocabulary((" ", *"abcdefghijklmnopqrstuvwxyzäöüßABCDEFGHIJKLMNOPQRSTUVWXYZ.,"), "char")
    spoken = FrontEnd(vocabulary, languages=("de",), words={"de": path}).speakable("ka, 5 kg und 3 m").text
    assert spoken == "keine Ahnung, fünf Kilo und drei Meter"
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
    str.split(
        "are cardinal cents clock code count day gbit half kbit mbit min minus month not noun number ordinal "
        "part points rest sec seconds year"
    )
)
"""Names in the code and signs of units; the messages of words.py are English too."""


def _spoken(code: str) -> set[str]:
    """Words of three or more letters in a language's file, without its patterns and lists."""
    rows = LANGUAGES[code].read_text("utf-8").splitlines()[1:]
    others = ("at ", "list", "pattern", "writing", "numbers")
    cells = (row.split("\t") for row in rows if not row.startswith(others))
    return set(re.findall(r"[^\W\d_]{3,}", " ".join(cell[2] for cell in cells if len(cell) > 2).lower()))
