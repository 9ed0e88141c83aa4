"""SVG plot of a training log, one panel per value; needs no plotting library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 720, 150, 46
POSITIONS = ("step", "frames", "seconds")
MOST_POINTS = 400


def draw(log: Path, out: Path) -> None:
    """Plot every value of the log against frames, or against steps if the log has no frames."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    axis = "frames" if any("frames" in line for line in lines) else "step"
    names = dict.fromkeys(
        name
        for line in lines
        for name, value in line.items()
        if name not in POSITIONS and isinstance(value, float)
    )
    panels = [
        _panel(name, [(line[axis], line[name]) for line in lines if name in line], i)
        for i, name in enumerate(names)
    ]
    height = len(panels) * HEIGHT + MARGIN
    caption = f'<text x="{WIDTH // 2}" y="{height - 12}" text-anchor="middle">{axis}</text>'
    size = f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    out.write_text(
        "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *panels, caption, "</svg>"])
    )


def _panel(name: str, points: Sequence[tuple[float, float]], number: int) -> str:
    points = points[:: max(len(points) // MOST_POINTS, 1)]
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(max(ys), min(ys) + 1e-9)
    right, top = max(xs), number * HEIGHT + 18
    inner, tall = WIDTH - 2 * MARGIN, HEIGHT - 40

    def place(x: float, y: float) -> str:
        return f"{MARGIN + inner * x / max(right, 1):.1f},{top + tall * (1 - (y - low) / (high - low)):.1f}"

    line = " ".join(place(x, y) for x, y in points)
    frame = f'<rect x="{MARGIN}" y="{top}" width="{inner}" height="{tall}" fill="none" stroke="#bbb"/>'
    labels = f'<text x="{MARGIN}" y="{top - 5}">{name}, last {ys[-1]:.3g}</text>' + "".join(
        f'<text x="{MARGIN - 4}" y="{top + at}" text-anchor="end">{value:.3g}</text>'
        for value, at in ((high, 9), (low, tall))
    )
    end = f'<text x="{WIDTH - MARGIN}" y="{top + tall + 13}" text-anchor="end">{right:,.0f}</text>'
    return f'{frame}{labels}{end}<polyline points="{line}" fill="none" stroke="#06c" stroke-width="1.5"/>'
