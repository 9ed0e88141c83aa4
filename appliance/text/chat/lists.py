"""Lists of words in chat: name of a paragraph in lists.txt → its words."""

from __future__ import annotations

from pathlib import Path

LISTS = {
    kind: words.split()
    for paragraph in Path(__file__).with_suffix(".txt").read_text("utf-8").split("\n\n")
    for kind, words in [paragraph.split(":", 1)]
}
