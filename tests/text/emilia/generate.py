"""Regenerate `tokens.txt`, `golden.json` with the token numbers that upstream's tokenizer gives for
`lines.txt`, and the phones in `tongues.jsonl` for lines in the languages of other voices.

Run from the repository root with a checkout of k2-fsa/ZipVoice at 2f7326f, in an environment with its
tokenizer's needs (piper-phonemize 1.1.0, jieba 0.42.1, cn2an 0.5.24, inflect 7.6.0) and this project's
(pypinyin, rjieba, numpy, PyYAML), with libespeak-ng 1.51 installed: `PYTHONPATH=CHECKOUT:. python -m
tests.text.emilia.generate`.
"""

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from appliance.text.tokens.emilia import espeak
from appliance.text.tokens.emilia.marks import joined, single
from appliance.text.tokens.emilia.tokens import Emilia

FOLDER = Path(__file__).parent
LINES = (FOLDER / "lines.txt").read_text("utf-8").splitlines()
PHONES = " !\"'(),-.:;?$%abcdefhijklmnopstuvwxzæçðŋɐɑɔəɚɛɜɡɪɫɬɹɾʃʊʌʒʔˈˌː̩̃θᵻ"
"""Phones of English; upstream's file has the phones of all languages."""


def write_tokens() -> Path:
    """Write a token file in upstream's layout: the phones, then initials and finals of every Chinese
    character."""
    from pypinyin import Style, lazy_pinyin
    from pypinyin.contrib.tone_convert import to_finals_tone3, to_initials

    pinyin = set()
    for code in range(0x4E00, 0x9FA6):
        for tone in lazy_pinyin(chr(code), style=Style.TONE3, neutral_tone_with_five=True):
            if tone[-1:].isdecimal():
                base = tone[:-1]
                for syllable in (f"{base}{number}" for number in range(1, 6)):
                    initial = to_initials(syllable, strict=False)
                    pinyin |= {initial and f"{initial}0"}
                    pinyin |= {to_finals_tone3(syllable, strict=False, neutral_tone_with_five=True)}
    tokens = ["_", *dict.fromkeys(PHONES), *sorted(pinyin - {""})]
    path = FOLDER / "tokens.txt"
    path.write_text("".join(f"{token}\t{number}\n" for number, token in enumerate(tokens)), "utf-8")
    return path


def upstream(tokens: Path) -> list[list[int]]:
    cuts: Any = types.ModuleType("lhotse")
    cuts.CutSet = None  # imported for training
    sys.modules.setdefault(cuts.__name__, cuts)
    from zipvoice.tokenizer.tokenizer import EmiliaTokenizer

    numbers: list[list[int]] = EmiliaTokenizer(str(tokens)).texts_to_token_ids(list(LINES))
    return numbers


def recorded() -> dict[str, list[tuple[str, str]]]:
    """English parts of the lines, and the clauses that espeak reads in them."""
    library = espeak.opened()
    clauses = {}

    def phones(text: str) -> tuple[str, ...]:
        clauses[text] = espeak.clauses(library, single(text))
        return tuple(joined(clauses[text]))

    for line in LINES:
        Emilia(phones)(line)
    return clauses


def write_tongues() -> None:
    """Write the phones of each row's text, as `EspeakTokenizer.g2p` reads it in the row's voice."""
    from piper_phonemize import phonemize_espeak

    path = FOLDER / "tongues.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for row in rows:
        row["phones"] = "".join(p for part in phonemize_espeak(row["text"], row["voice"]) for p in part)
    path.write_text("".join(f"{written(row)}\n" for row in rows), "utf-8")


def written(row: object) -> str:
    return json.dumps(row, ensure_ascii=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    write_tongues()
    golden = {"ids": upstream(write_tokens()), "clauses": list(recorded().items())}
    rows = [f"{json.dumps(k)}: [\n" + ",\n".join(map(written, v)) + "\n]" for k, v in golden.items()]
    (FOLDER / "golden.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
