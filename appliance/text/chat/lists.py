"""Lists of words of chat, by the names of the paragraphs in lists.txt."""

from __future__ import annotations

from pathlib import Path

LISTS = {
    kind: words.split()
    for paragraph in Path(__file__).with_suffix(".txt").read_text("utf-8").split("\n\n")
    for kind, words in [paragraph.split(":", 1)]
}
