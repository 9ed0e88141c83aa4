"""systemd that boots in namespaces, below a private control group."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.patience import until

SYSTEMD = Path("/usr/lib/systemd/systemd")
CGROUPS = next((p for p in map(Path, ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup")) if p.is_dir()), None)
NEEDS_SYSTEMD = [
    pytest.mark.once,
    pytest.mark.packaging,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (SYSTEMD.exists() and CGROUPS and shutil.which("unshare")),
        reason="needs root, systemd, cgroups and unshare",
    ),
]


@contextlib.contextmanager
def booting(script: str, **places: object) -> Iterator[Callable[[], int]]:
    """Run a script that ends as systemd in private namespaces; at the end of the block, kill all of it at
    once.

    `script`: text with `{cgroup}`, `{cgroups}` and the names of `places`. Yields a function that returns the
    process id of systemd: 0 before it starts, −1 after its end.
    """
    assert CGROUPS is not None
    cgroup = CGROUPS / f"f5-test-{os.getpid()}"
    cgroup.mkdir()
    text = script.format(cgroup=cgroup, cgroups=CGROUPS, **places)
    process = subprocess.Popen(["sh", "-ec", text], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def pid() -> int:
        if process.poll() is not None:
            return -1
        with contextlib.suppress(OSError):
            inside = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return int(inside[0]) if inside else 0
        return 0

    try:
        yield pid
    finally:
        process.kill()
        process.wait()
        until(lambda: not _left(cgroup), lambda: "processes of the test are still there")


def _left(cgroup: Path) -> bool:
    """Try to remove a control group; True if it still exists, because its processes need a moment to end."""
    for folder in (*sorted(cgroup.rglob("*/"), reverse=True), cgroup):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return cgroup.exists()
