"""Output of the commands: two-column tables, the conditions of a record, files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.bench import BenchError
from appliance.box.show.streams import plain


def aligned(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(plain(f"{name:<{width}}  {value}") for name, value in rows)


def conditions(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows with the machine, clocks, versions and other processes of a record."""
    machine = record["machine"]
    heat = f"{machine['junction_c']:.0f} °C" if machine["junction_c"] is not None else "no sensor"
    busy = ", ".join(f"{name} {share:.2f} cores" for name, share in record["neighbours"])
    return [
        ("machine", f"{machine['cores']} × {machine['processor']} {machine['model']}".strip()),
        (
            "clocks · mode · heat",
            f"{machine['clocks'] or 'not pinned'} · {machine['mode'] or 'none'} · {heat}",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine["versions"].items())),
        ("neighbours", busy or "none"),
    ]


def show_progress(line: str) -> None:
    """Print a line in place of the previous one, if this is a terminal."""
    if sys.stderr.isatty():
        print(f"\r{line}", end="", file=sys.stderr, flush=True)


def write_json(path: Path | None, record: Mapping[str, Any]) -> None:
    """Write a record, if `path` is not None. Raises BenchError."""
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path | None, text: str) -> None:
    """Write a text, if `path` is not None. Raises BenchError."""
    try:
        if path:
            path.write_text(text, "utf-8")
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
