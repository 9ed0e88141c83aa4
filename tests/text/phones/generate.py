"""Make `golden.jsonl` again: the tokens of hibari's phones for `lines.txt` and our other lines of English.

Needs scripts/requirements/hibari.txt: `python -m tests.text.phones.generate`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from appliance.text.phones import alphabet

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden.jsonl"


def lines() -> Iterator[str]:
    tests = FOLDER.parent.parent
    for file in (FOLDER / "lines.txt", tests / "quality" / "lines.txt", tests / "quality" / "chat-lines.txt"):
        yield from file.read_text("utf-8").splitlines()
    for line in (tests / "text" / "chat_lines.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["language"] == "en":
            yield row["spoken"]


def golden() -> str:
    from hibari.g2p import G2P

    reader = G2P()
    rows = ([line, single("".join(alphabet.tokens(reader(line))))] for line in dict.fromkeys(lines()) if line)
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def single(tokens: str) -> str:
    """Tokens with single spaces, which hibari doubles around a silent sign."""
    return " ".join(tokens.split())


if __name__ == "__main__":
    GOLDEN.write_text(golden(), "utf-8")
