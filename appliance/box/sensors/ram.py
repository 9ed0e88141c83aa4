"""Memory, which CPU and GPU share: free, free in large blocks, swapped."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.root import Root

LARGE_BLOCK_BYTES = 4 << 20
"""Size of the blocks that tegrastats counts and NvMap prefers."""


@dataclass(frozen=True)
class Memory:
    """Sizes in bytes."""

    total: int
    available: int
    swap_total: int
    swap_used: int


def memory(root: Root) -> Memory | None:
    """Memory of the machine; None if /proc/meminfo lacks a value."""
    text = root.text(paths.MEMORY) or ""
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+([0-9]{1,18}) kB$", text, re.MULTILINE)}
    if not kib.get("MemTotal") or "MemAvailable" not in kib:
        return None
    swap = kib.get("SwapTotal", 0)
    sizes = (kib["MemTotal"], kib["MemAvailable"], swap, swap - kib.get("SwapFree", swap))
    return Memory(*(size << 10 for size in sizes))


def swapped_in_pages(root: Root) -> int | None:
    """Pages swapped in since boot; None if /proc/vmstat lacks the count."""
    match = re.search(r"^pswpin ([0-9]{1,18})$", root.text(paths.PAGING) or "", re.MULTILINE)
    return int(match[1]) if match else None


def free_large_blocks(root: Root, page_bytes: int = mmap.PAGESIZE) -> int | None:
    """Number of free blocks of 4 MiB over all zones; None if /proc/buddyinfo cannot be parsed.

    Its column n counts free blocks of 2ⁿ pages. A larger block counts as often as it contains 4 MiB.
    """
    text = root.text(paths.FREE_PIECES) or ""
    zones = re.findall(r"^Node \d+, zone\s+\w+((?:\s+[0-9]{1,18})+)$", text, re.MULTILINE)
    if not zones:
        return None
    counts = [(order, int(count)) for zone in zones for order, count in enumerate(zone.split())]
    return sum(count * ((page_bytes << order) // LARGE_BLOCK_BYTES) for order, count in counts)
