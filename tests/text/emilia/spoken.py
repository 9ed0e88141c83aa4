"""Contents of the golden files."""

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.contract.tokens import Vocabulary
from appliance.text.tokens.emilia import espeak
from appliance.text.tokens.emilia.marks import joined

try:
    espeak.opened()
    LIBRARY = True
except OSError:
    LIBRARY = False
needs_library = pytest.mark.skipif(not LIBRARY, reason="libespeak-ng1 is not installed")

FOLDER = Path(__file__).parent
TOKENS = FOLDER / "tokens.txt"
TONGUES = FOLDER / "tongues.jsonl"
LINES = (FOLDER / "lines.txt").read_text("utf-8").splitlines()
GOLDEN: dict[str, Any] = json.loads((FOLDER / "golden.json").read_text("utf-8"))
NUMBERS = {
    token: int(number)
    for token, _, number in (line.rpartition("\t") for line in TOKENS.read_text("utf-8").splitlines())
}
VOCABULARY = Vocabulary((" ", *(token for token in NUMBERS if token not in (" ", "_"))), "emilia")
CLAUSES = {text: clauses for text, clauses in GOLDEN["clauses"]}


def recorded(text: str) -> tuple[str, ...]:
    """Phones of a text, recorded when the golden files were generated."""
    return tuple(joined(CLAUSES[text]))
