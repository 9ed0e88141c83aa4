"""A Debian 12 with the package, a fake Jetson's files and GPU, and systemd 252 that boots in namespaces."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.jetson.board import Jetson
from tests.harness.patience import PATIENCE_S, until
from tests.systemd.namespaces import booting

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKOUT = "/srv/checkout"
"""Place of REPOSITORY in the box: a unit may have a private view of REPOSITORY's own path, such as /tmp."""
TOOLS = ("jetson_clocks", "nvpmodel", "tegrastats")
"""NVIDIA's tools; the system supplies the others."""
PYTHON = "/usr/bin/python3"
MASKED = (
    "getty.target", "getty@.service", "console-getty.service", "systemd-networkd.service", "apt-daily.timer",
)  # fmt: skip
BOOT = Path(__file__).with_name("boot.sh").read_text("utf-8")
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "F5_SYSROOT": "/jetson/root",
}
CONFIG = """\
device: {sysroot: /jetson/root}
engine: {lanes: 1, threads: 1, longest_s: 15}
"""


def staged(root: Path) -> Jetson:
    """Lay a factory Jetson's files, tools and GPU into a Debian's folder."""
    jetson = Jetson(root / "jetson", "jp6-0005")
    for tool in TOOLS:
        text = (jetson.bin / tool).read_text().replace(str(root), "").replace(str(REPOSITORY), CHECKOUT)
        program = root / "usr/bin" / tool
        program.write_text(f"#!{PYTHON} -IS\n{text.partition(chr(10))[2]}")
        program.chmod(0o755)
    shutil.copy(jetson.path("/etc/nv_tegra_release"), root / "etc")
    (root / "jetson/build_s").write_text("0")
    packages = root / "usr/lib/python3/dist-packages"
    (packages / "cuda/bindings").mkdir(parents=True)
    text = Path(__file__).with_name("fake_gpu.py").read_text().replace("@CHECKOUT@", CHECKOUT)
    (packages / "f5_fake_gpu.py").write_text(text)
    (packages / "cuda/__init__.py").touch()
    (packages / "cuda/bindings/__init__.py").write_text("from f5_fake_gpu import runtime\n")
    (packages / "tensorrt.py").write_text(
        "import sys, f5_fake_gpu\nsys.modules[__name__] = f5_fake_gpu.trt\n"
    )
    for place, text in (
        ("etc/systemd/system.conf.d/test.conf", "[Manager]\nDefaultEnvironment=F5_SYSROOT=/jetson/root\n"),
        ("etc/dpkg/dpkg.cfg.d/test", "force-confold\n"),
        ("etc/f5-appliance/appliance.yaml", CONFIG),
    ):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    return jetson


@dataclass(frozen=True)
class Line:
    at: float
    """Seconds of the monotonic clock."""
    text: str


class Booted:
    def __init__(self, root: Path, pid: int) -> None:
        self.root, self.pid = root, pid

    def command(self, line: str) -> list[str]:
        """Command that runs a line of the page in a shell of root."""
        inside = ("nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--root")
        given = (f"{key}={value}" for key, value in ENVIRONMENT.items())
        return [*inside, "env", "-i", "--chdir=/root", *given, "sh", "-c", line.removeprefix("sudo ")]

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "timeout": 5 * PATIENCE_S, "cwd": "/"}
        return subprocess.run(self.command(line), capture_output=True, text=True, errors="replace", **given)

    def switch_off(self) -> None:
        """Shut the box down; wait until its last process has ended."""
        self.run("systemctl poweroff")
        until(lambda: not Path(f"/proc/{self.pid}").exists(), lambda: self.run("systemctl list-jobs").stdout)

    def watch(self, line: str) -> tuple[int, list[Line]]:
        """Run a line as typed; return its status, and each printed line with its time."""
        lines = [Line(time.monotonic(), "")]
        with subprocess.Popen(
            self.command(line), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, errors="replace", cwd="/",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            lines += [Line(time.monotonic(), printed.rstrip()) for printed in process.stdout]
        return process.returncode, [*lines, Line(time.monotonic(), "")]


@contextlib.contextmanager
def switched_on(root: Path) -> Iterator[Booted]:
    """Boot the box; at the end of the block, cut its power."""
    with booting(BOOT, root=root, repository=REPOSITORY) as pid:
        box = Booted(root, 0)

        def is_up() -> bool:
            box.pid = pid()
            assert box.pid >= 0, "systemd ended"
            return box.pid > 0 and "=active" in box.run("systemctl show -p ActiveState basic.target").stdout

        until(is_up, lambda: box.run("systemctl list-jobs").stdout)
        yield box
