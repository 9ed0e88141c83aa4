"""Check of the wear of the module's eMMC, as the eMMC itself estimates it.

The estimate is in life_time and pre_eol_info (Linux: Documentation/driver-api/mmc/mmc-dev-attrs.rst), with
the values of JEDEC's eMMC 5.0: life used in tenths, 0x0B for more than all, 0 for unknown. NVMe disks report
theirs only by ioctl.
"""

from __future__ import annotations

import re

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.snapshot import Harm, check
from appliance.box.root import Root

WARN_AT, SPENT = 0x09, 0x0B
NEAR_ITS_END, AT_ITS_END = 0x02, 0x03
"""Values of pre_eol_info: "warning" (80 % of the spare blocks used) and "urgent"."""
LIMIT = "WARN from 80 % of its life or four fifths of its spare blocks, FAIL beyond"
REMEDY = "save its data: sudo f5-backup box.tar.gz. Then replace the module or its disk"


@check("wear", Harm.LATER, 12, lambda now: (now.root,))
def check_wear(root: Root) -> Finding:
    disks = (disk for disk in root.names(paths.DISKS) if re.fullmatch(r"mmcblk[0-9]+", disk))
    findings = [_check_disk(root, disk) for disk in disks]
    nothing = skipped("wear", "no eMMC reports its life; for an NVMe disk: sudo nvme smart-log /dev/nvme0")
    return max(filter(None, findings), key=lambda finding: finding.level.rank, default=nothing)


def _check_disk(root: Root, disk: str) -> Finding | None:
    """Check the share of a disk's life that is used; None if the disk does not report it."""
    folder = f"{paths.DISKS}/{disk}/device"
    spent = max(_numbers(root.text(f"{folder}/life_time")), default=0)
    end = max(_numbers(root.text(f"{folder}/pre_eol_info")), default=0)
    if not spent and not end:
        return None
    value = f"{disk}: " + (f"{10 * (spent - 1)} to {10 * spent} % of its life" if spent else "life unknown")
    value = f"{disk}: beyond its life" if spent >= SPENT else value
    value += ", few spare blocks" if end >= NEAR_ITS_END else ""
    figures = {"life_tenths": spent, "pre_eol": end}
    worn, gone = spent >= WARN_AT or end >= NEAR_ITS_END, spent >= SPENT or end >= AT_ITS_END
    level = Level.of(warn=worn, fail=gone)
    return Finding("wear", level, value, LIMIT, REMEDY, figures)


def _numbers(text: str | None) -> list[int]:
    """Numbers of a text: "0x01 0x02" → 1, 2."""
    return [int(word, 16) for word in (text or "").split() if re.fullmatch(r"0x[0-9a-fA-F]{1,2}", word)]
