"""Checks of memory, swap and file systems."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.box.checks.counters import Rise
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.snapshot import Harm, check
from appliance.box.sensors import disk, ram

GIB = 1 << 30
MIB = 1 << 20
MEMORY_WARN, MEMORY_FAIL = 0.15, 0.05
"""Available share of memory for WARN and FAIL."""
LARGE_BLOCKS = 4
PLENTY = 2 * MEMORY_WARN
"""Available share of memory above which the kernel can make large blocks of small ones on demand."""
DISK_WARN, DISK_FAIL = 0.15, 0.05
DISK_WARN_BYTES, DISK_FAIL_BYTES = 5 * GIB, 1 * GIB
SWAP_S = 300.0
SWAP_WARN_PAGES, SWAP_FAIL_PAGES = 1.0, 1000.0
"""Pages swapped in per second: steady swapping, and thrashing."""
FIGURES = ("mount", "free_bytes", "total_bytes", "free_inodes", "read_only")
FEW_INODES = "see where small files are, and remove them: sudo du --inodes -x {mount} | sort -n | tail"


@check("memory", Harm.LATER, 4, lambda now: (ram.memory(now.root),), anywhere=True)
def check_memory(memory: ram.Memory | None) -> Finding:
    """Available memory, which CPU and GPU share."""
    if memory is None:
        return skipped("memory", "/proc/meminfo cannot be read")
    share = memory.available / memory.total
    limit = f"WARN below {MEMORY_WARN:.0%}, FAIL below {MEMORY_FAIL:.0%}"
    value = f"{share:.0%} of {memory.total / GIB:.0f} GiB available"
    figures = {"available_bytes": memory.available, "total_bytes": memory.total}
    level = Level.of(warn=share < MEMORY_WARN, fail=share < MEMORY_FAIL)
    remedy = (
        "stop the desktop, if one runs: sudo systemctl stop display-manager. For good: sudo systemctl "
        "disable display-manager. Stop other programs that use memory or the GPU, which share it"
    )
    return Finding("memory", level, value, limit, remedy, figures)


@check("lfb", Harm.LATER, 5, lambda now: (ram.free_large_blocks(now.root), ram.memory(now.root)))
def check_large_blocks(blocks: int | None, memory: ram.Memory | None) -> Finding:
    """Free blocks of 4 MB. If memory is short and none is free, the GPU cannot load an engine (NvMap error
    12).

    No larger blocks exist: after days, a healthy box has two of them, and 37 GiB free.
    """
    if blocks is None:
        return skipped("lfb", "/proc/buddyinfo cannot be read")
    short = memory is None or memory.available < PLENTY * memory.total
    level = Level.of(warn=blocks < LARGE_BLOCKS and short)
    remedy = (
        "gather free memory: echo 3 | sudo tee /proc/sys/vm/drop_caches. Then: echo 1 | sudo tee "
        "/proc/sys/vm/compact_memory. If that is not enough, restart the box"
    )
    limit = f"at least {LARGE_BLOCKS} if less than {PLENTY:.0%} of memory is available"
    return Finding("lfb", level, f"{blocks} free blocks of 4 MB", limit, remedy, {"blocks": blocks})


@check("swap", Harm.LATER, 6, lambda now: (ram.memory(now.root), now.rise("pswpin", SWAP_S)))
def check_swap(memory: ram.Memory | None, pages: Rise | None) -> Finding:
    """Rate of swapping in. Swapped memory that nobody reads back does no harm."""
    if memory is None or pages is None:
        return skipped("swap", "/proc/meminfo or /proc/vmstat cannot be read")
    rate = pages.count / max(pages.span_s, 1.0)
    limit = f"used, WARN from {SWAP_WARN_PAGES:g} page a second read back, FAIL from {SWAP_FAIL_PAGES:g}"
    value = f"{memory.swap_used / MIB:.0f} MiB used, {rate:.1f} pages a second read back"
    value += "" if pages.recorded else " (mean since boot)"
    figures = {"used_bytes": memory.swap_used, "pages_per_second": round(rate, 3), "recorded": pages.recorded}
    used = memory.swap_used > 0
    level = Level.of(warn=used and rate >= SWAP_WARN_PAGES, fail=used and rate >= SWAP_FAIL_PAGES)
    remedy = (
        "find what fills the memory, and stop it: ps aux --sort -rss | head. Without compressed swap from "
        "the next boot on: sudo systemctl disable nvzramconfig"
    )
    return Finding("swap", level, value, limit, remedy, figures)


@check("disk", Harm.LATER, 3, lambda now: (disk.volumes(now.box),), anywhere=True)
def check_disk(volumes: Sequence[disk.Volume]) -> Finding:
    nothing = skipped("disk", "no file system can be read")
    return max(map(_check_volume, volumes), key=lambda finding: finding.level.rank, default=nothing)


def _check_volume(volume: disk.Volume) -> Finding:
    """Check the space and inodes of a volume, and that it is writable and survives a boot."""
    limit = "WARN below 15 % or 5 GiB, FAIL below 5 % or 1 GiB; inodes the same; writable"
    share = volume.free_bytes / volume.total_bytes if volume.total_bytes else 0.0
    value = f"{volume.mount}: {volume.free_bytes / GIB:.1f} GiB ({share:.0%}) free"
    figures = {name: getattr(volume, name) for name in FIGURES}
    if volume.volatile:
        remedy = (
            "give it a disk of its own, or turn the overlay off: overlayroot= in /etc/overlayroot.conf. It "
            "may be on the kernel's command line too"
        )
        value = f"{volume.mount}: only in memory, so its files are lost at the next boot"
        return Finding("disk", Level.WARN, value, limit, remedy, figures)
    if volume.read_only:
        remedy = (
            "see whether the disk is damaged: sudo journalctl -k -b -g error. If so, save the data and "
            f"replace it. Else: sudo mount -o remount,rw {volume.mount}"
        )
        return Finding("disk", Level.FAIL, f"{volume.mount}: mounted read-only", limit, remedy, figures)
    free = volume.free_bytes
    little, least = share < DISK_WARN or free < DISK_WARN_BYTES, share < DISK_FAIL or free < DISK_FAIL_BYTES
    space = Level.of(warn=little, fail=least)
    free_inodes = volume.free_inodes / volume.inodes if volume.inodes else 1.0
    inodes = Level.of(warn=free_inodes < DISK_WARN, fail=free_inodes < DISK_FAIL)
    if inodes.rank > space.rank:
        value = f"{volume.mount}: {free_inodes:.0%} of inodes free"
        return Finding("disk", inodes, value, limit, FEW_INODES.format(mount=volume.mount), figures)
    remedy = (
        "make room: sudo journalctl --vacuum-size=200M && sudo apt-get clean. List other large folders: "
        f"sudo du -xh {volume.mount} | sort -h | tail"
    )
    return Finding("disk", space, value, limit, remedy, figures)
