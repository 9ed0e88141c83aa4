"""README's table of speed, made from the record of `appliance bench run`.

python -m tests.benchmarks.table            prints it
python -m tests.benchmarks.table --write    puts it into README.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD = ROOT / "tests" / "records" / "bench-run.json"
README = ROOT / "README.md"
MARKS = "<!-- python -m tests.benchmarks.table --write -->\n", "<!-- end -->\n"


def table(record: Mapping[str, Any]) -> str:
    """Markdown: the ratios first, then what they came from, and the machine."""
    rows = [
        "| demo voice, NFE | RTF (least–most) | first audio of whole | steps of whole | audio | wall |",
        "|---|---|---|---|---|---|",
    ]
    for cell in record["cells"]:
        rtf, wall_s = cell["rtf"], cell["wall_s"]["median"]
        rows.append(
            f"| {cell['words']} words, {cell['language']}, {cell['nfe']} "
            f"| {rtf['median']:.2f} ({rtf['least']:.2f}–{rtf['most']:.2f}) "
            f"| {cell['first_audio_s']['median'] / wall_s:.0%} | {cell['stages_share']['steps']:.0%} "
            f"| {cell['audio_s']['median']:.1f} s | {wall_s:.2f} s |"
        )
    machine = record["machine"]
    versions = machine["versions"]
    rows.append(
        f"\n{machine['cores']} cores of {machine['processor']}, {record['backend']}, "
        f"ONNX Runtime {versions['onnxruntime']}, {record['repeats']} replies of each, {record['at'][:10]}; "
        f"{'other programs ran beside it' if record['neighbours'] else 'nothing else ran'}.\n"
    )
    return "\n".join(rows)


def written(page: str, record: Mapping[str, Any]) -> str:
    """The page with the table between its marks."""
    begin, end = map(re.escape, MARKS)
    made, count = re.subn(f"{begin}.*?{end}", lambda _: table(record).join(MARKS), page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{README}: the marks are there {count} times, not once")
    return made


def main() -> None:
    """Print, or write."""
    record = json.loads(RECORD.read_text("utf-8"))
    if "--write" in sys.argv[1:]:
        README.write_text(written(README.read_text("utf-8"), record), "utf-8")
    else:
        print(table(record))


if __name__ == "__main__":
    main()
