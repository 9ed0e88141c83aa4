"""Sources of the files by which the product judges clocks on an AGX Orin devkit with L4T 39.2, JetPack 7.2.

The profile is jp7-0005. A file without a public source is GUESSED. A test damages the guessed files: they may
make a state `unknown`, never `pinned` or `unpinned`.
"""

from tests.harness.rows import rows

SOURCES: dict[str, str] = dict(rows(__file__, "sources.jsonl"))
GUESSED = "guessed"
GPU = "/sys/class/devfreq/17000000.gpu"
BWMGR = "/sys/class/devfreq/bwmgr"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
TPC_MASK = "/sys/devices/platform/gpu.0/tpc_pg_mask"
FILES: dict[str, str] = dict(rows(__file__, "judged.jsonl"))
"""File → key of SOURCES; {} is each core's number."""
