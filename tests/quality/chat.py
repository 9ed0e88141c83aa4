"""Table of the words of chat lines that a recogniser hears wrong: as chat, verbatim, plain, and of sentences.

    python -m tests.quality.chat [--lines 60]

Every voice of the demo speaks English lines of tests/text/chat_lines.jsonl, full of what chat writes; what is
heard is made speakable as the line was, since the recogniser writes "$5" for "five dollars", and compared
with the expected text. `plain` are lines of chat-lines.txt, words as they are said.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from appliance.contract import bundle
from appliance.request import Handling, Segmentation
from appliance.text.sayable import FrontEnd
from export.hearing import Errors, MetricError, Recogniser, word_errors
from tests.quality.mouth import Mouth, references_in

BUNDLE = Path("appliance/demo/bundle")
CHAT = Path("tests/text/chat_lines.jsonl")
PLAIN, SENTENCES = (Path(__file__).with_name(name) for name in ("chat-lines.txt", "lines.txt"))


def chat_lines(count: int) -> list[tuple[str, str]]:
    """Text and expected text of that many English lines with something to say, from all over the file.

    Without those that a vocabulary of plain letters cannot say verbatim.
    """
    lines = [json.loads(line) for line in CHAT.read_text("utf-8").splitlines()]
    pairs = [
        (line["text"], line["spoken"])
        for line in lines
        if line["language"] == "en"
        and line["spoken"]
        and any(map(str.isalnum, line["text"].encode("ascii", "ignore").decode()))
    ]
    return [pairs[n * len(pairs) // count] for n in range(min(count, len(pairs)))]


def wrong_words(
    mouth: Mouth, voices: Iterable[str], front: FrontEnd, pairs: list[tuple[str, str]], judge: Recogniser
) -> Errors:
    found = Errors(0, 0)
    for seed, (spoken, expected) in enumerate(pairs):
        for voice in voices:
            reply = mouth.speak(spoken, voice, seed=seed, segmentation=Segmentation.UPSTREAM)
            heard = judge.transcribe(reply, mouth.rate_hz)
            found += word_errors(expected, front.speakable(heard).text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lines", type=int, default=60)
    options = parser.parse_args()
    try:
        judge = Recogniser()
    except MetricError as error:
        print(error, file=sys.stderr)
        return 1
    front, pairs = (
        FrontEnd(bundle.read(BUNDLE).vocabulary(), languages=("en",)),
        chat_lines(options.lines),
    )
    plain, sentences = (path.read_text("utf-8").splitlines() for path in (PLAIN, SENTENCES))
    rows = {
        "chat": [(front.speakable(text).text, expected) for text, expected in pairs],
        "verbatim": [(front.speakable(text, Handling.VERBATIM).text, expected) for text, expected in pairs],
        "plain": [(text, text) for text in plain[: options.lines]],
        "sentences": [(text, text) for text in sentences],
    }
    references = references_in(BUNDLE.parent / "voices")
    print("text       replies  words  wrong  %")
    with tempfile.TemporaryDirectory() as work, Mouth(BUNDLE, references, Path(work)) as mouth:
        for name, row in rows.items():
            found = wrong_words(mouth, sorted(references), front, row, judge)
            replies = len(row) * len(references)
            print(f"{name:9}  {replies:7}  {found.words:5}  {found.wrong:5}  {100 * found.rate:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
