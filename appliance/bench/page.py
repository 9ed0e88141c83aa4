"""The journal as one HTML page with inline SVG. It has no scripts and fetches nothing."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 440, 180, 50, 12, 26
TICKS = 4
LATEST, SLOW = 7, 30
"""Number of newest measurements, and of newest slow ones, in the lists."""
COLOURS = {"PASS": "#2a7d4f", "WARN": "#b26a00", "FAIL": "#c0262d", "SKIP": "#7a7a7a"}
CAPTIONS: Sequence[tuple[str, str, Callable[[Mapping[str, Any]], Any]]] = (
    ("Real-time factor", "wall time per second of audio", lambda entry: entry.get("rtf")),
    ("First audio, s", "from the request to the first sound", lambda entry: entry.get("first_audio_s")),
    ("Junction, °C", "before the measurement", lambda entry: entry.get("machine", {}).get("junction_c")),
    ("Refusals", "since the daemon's last start", lambda entry: entry.get("refused")),
)
STYLE = "\n" + Path(__file__).with_suffix(".css").read_text("utf-8")


def html(entries: Sequence[Mapping[str, Any]]) -> str:
    """Page of all entries. The entries are in order, oldest first."""
    charts = "".join(
        f"<h2>{escape(name)}</h2><p>{escape(about)}</p>{chart(entries, name, value)}"
        for name, about, value in CAPTIONS
    )
    slow = [entry for entry in entries if entry.get("level") in ("WARN", "FAIL")]
    lists = _list("Slow", slow[-SLOW:], "never") + _list("Latest", entries[-LATEST:], "nothing measured yet")
    legend = " · ".join(f'<span style="color:{colour}">● {level}</span>' for level, colour in COLOURS.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Journal of the voice box</title><style>{STYLE}</style></head><body>"
        f"<h1>Journal of the voice box</h1><p>{_about(entries)}</p><p>{legend}</p>"
        f"{charts}{lists}</body></html>\n"
    )


def chart(entries: Sequence[Mapping[str, Any]], name: str, value: Callable[[Mapping[str, Any]], Any]) -> str:
    """SVG with a point for each entry that has the value, in the colour of its level."""
    points = [
        (float(e["at"]), float(number), str(e.get("level", "SKIP")))
        for e in entries
        if (number := value(e)) is not None
    ]
    if not points:
        return "<p>not measured</p>"
    top = _round_up(max(number for _, number, _ in points))
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1.0)
    scaled = [
        (
            LEFT + (WIDTH - LEFT - 8) * (at - first) / (last - first),
            TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - number / top),
            COLOURS.get(level, COLOURS["SKIP"]),
        )
        for at, number, level in points
    ]
    grid = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 5:.1f}" text-anchor="end">'
        f"{round(top - top * tick / TICKS, 9):g}</text>"
        for tick in range(TICKS + 1)
        for y in [TOP + (HEIGHT - BOTTOM - TOP) * tick / TICKS]
    )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in scaled)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y, colour in scaled)
    dates = (
        f'<text x="{LEFT}" y="{HEIGHT - 2}">{_day(first)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 2}" text-anchor="end">{_day(points[-1][0])}</text>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{grid}'
        f'<polyline class="line" points="{line}"/>{dots}{dates}</svg>'
    )


def _list(name: str, entries: Sequence[Mapping[str, Any]], none: str) -> str:
    items = []
    for entry in reversed(entries):
        level = str(entry.get("level", "SKIP"))
        colour, value = COLOURS.get(level, COLOURS["SKIP"]), escape(str(entry.get("value", "")))
        items.append(
            f'<li><b style="color:{colour}">{escape(level)}</b> {_day(float(entry["at"]))} {value}</li>'
        )
    return f"<h2>{name}</h2><ol>{''.join(items) or f'<li>{none}</li>'}</ol>"


def _round_up(value: float) -> float:
    """Smallest of 1, 2, 4, 8 × 10^n above the value; 4 for 0."""
    if value <= 0.0:
        return 4.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 8, 10, 20) if power * step > value)


def _about(entries: Sequence[Mapping[str, Any]]) -> str:
    """Facts about the newest entry: machine, power mode, bundle, backend."""
    if not entries:
        return "No entries."
    newest = entries[-1]
    machine = newest.get("machine", {})
    parts = (
        machine.get("model") or machine.get("processor", ""),
        machine.get("l4t", ""),
        machine.get("mode", ""),
        newest.get("bundle", ""),
        newest.get("backend", ""),
        f"{len(entries)} measurements",
    )
    return escape(" · ".join(filter(None, map(str, parts))))


def _day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y-%m-%d")
