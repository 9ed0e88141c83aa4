"""README's tables of speed, made from the records of `appliance bench run` and scripts/bench-upstream.

python -m tests.measure.table            prints them
python -m tests.measure.table --write    puts them into README.md
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD = ROOT / "tests" / "records" / "bench-run.json"
UPSTREAM = ROOT / "tests" / "records" / "bench-upstream.json"
README = ROOT / "README.md"
MARKS = {
    "run": ("<!-- python -m tests.measure.table --write -->\n", "<!-- end -->\n"),
    "upstream": ("<!-- scripts/bench-upstream -->\n", "<!-- end of it -->\n"),
}
"""Lines around the table of a record, by the record's `kind`."""


def table(record: Mapping[str, Any]) -> str:
    """Markdown: the ratios first, then the absolute figures and the machine."""
    rows = [
        "| demo voice, NFE | RTF (least–most) | first audio of whole | steps of whole | audio | wall |",
        "|---|---|---|---|---|---|",
    ]
    for cell in record["cells"]:
        rtf, wall_s = cell["rtf"], cell["wall_s"]["median"]
        rows.append(
            f"| {cell['words']} words, {cell['nfe']} "
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


def upstream_table(record: Mapping[str, Any]) -> str:
    """Markdown: our figures divided by upstream's, then the absolute figures and the machine."""
    latency, clients, memory = record["latency"], record["clients"], record["memory_mb"]
    long_s = f"{latency['long whole']['file']['audio_s']['median']:.0f} s"
    short_s = f"{latency['short whole']['file']['audio_s']['median']:.0f} s"
    rows = [
        "| ours ÷ upstream's | as shipped | computing the same | upstream | as shipped |",
        "|---|---|---|---|---|",
    ]
    for what, way, theirs, against, key in (
        (f"whole reply of {short_s}", "short whole", "file", "short whole", "wall_s"),
        (f"whole reply of {long_s}", "long whole", "file", "long whole", "wall_s"),
        (f"first audio of {long_s}, `infer_process`", "long stream", "file", "long whole", "first_audio_s"),
        (f"first audio of {long_s}, `socket_server`", "long stream", "socket", "long whole", "first_audio_s"),
    ):
        seconds = {name: cell[key]["median"] for name, cell in latency[way].items()}
        rows.append(_ratios(what, seconds, latency[against][theirs][key]["median"], "{:.2f} s"))
    counts = list(clients["socket"])
    for count in (counts[0], counts[-1]):
        rates = {name: cells[count]["per_minute"]["median"] for name, cells in clients.items()}
        rows.append(_ratios(f"requests a minute, clients: {count}", rates, rates["socket"], "{:.0f}"))
    waits = {name: cells[count]["first_audio_s"]["median"] for name, cells in clients.items()}
    rows.append(_ratios(f"first audio, clients: {count}", waits, waits["socket"], "{:.2f} s"))
    rows.append(_ratios("peak memory", memory, memory["socket"], "{:.0f} MB"))
    if "vox" in memory:
        costs = {name: cell["cpu_s_per_audio_s"] for name, cell in latency["long whole"].items()}
        first = {name: cell["first_audio_s"]["median"] for name, cell in latency["long stream"].items()}
        for what, ours, form in (
            (f"CPU for a second of {long_s}", costs, "{:.3f} s"),
            (f"first audio of {long_s}", first, "{:.2f} s"),
            ("peak memory", memory, "{:.0f} MB"),
            ("CPU until ready", record["start_cpu_s"], "{:.2f} s"),
        ):
            rows.append(_ratios(f"{what}, vox-tts", ours, ours["vox"], form))
    machine, versions, load = record["machine"], record["upstream_versions"], record["load"]
    rows.append(
        f"\n{machine['cores']} cores of {machine['processor']}, threads of each server: {record['threads']}, "
        f"float32, NFE {record['nfe']}, f5-tts {versions['f5-tts']} on torch {versions['torch']}, "
        f"ONNX Runtime {machine['versions']['onnxruntime']}, {record['at'][:10]}; "
        f"other programs took {load['during']['cores']:.1f} cores. From the same noise the log-mels of both "
        f"differ by {record['equal']['log_mel_error']:.2%}.\n"
    )
    return "\n".join(rows)


def _ratios(what: str, ours: Mapping[str, float], theirs: float, form: str) -> str:
    shipped, exact = ours["shipped"] / theirs, ours["exact"] / theirs
    return (
        f"| {what} | {shipped:.2f} | {exact:.2f} | {form.format(theirs)} | {form.format(ours['shipped'])} |"
    )


TABLES = {"run": table, "upstream": upstream_table}


def written(page: str, record: Mapping[str, Any]) -> str:
    marks = MARKS[record["kind"]]
    table = TABLES[record["kind"]](record).join(marks)
    old = "{}.*?{}".format(*map(re.escape, marks))
    made, count = re.subn(old, lambda _: table, page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{README}: the marks are there {count} times, not once")
    return made


def main() -> None:
    for path in (RECORD, UPSTREAM):
        record = json.loads(path.read_text("utf-8"))
        if "--write" in sys.argv[1:]:
            README.write_text(written(README.read_text("utf-8"), record), "utf-8")
        else:
            print(TABLES[record["kind"]](record))


if __name__ == "__main__":
    main()
