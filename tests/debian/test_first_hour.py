"""A box's first hour, upgrade and evenings, typed from the technician's page, under a systemd that boots.

The package is real. tests/fakes supply the Jetson's files, tools, GPU and TensorRT; each engine takes
F5_BUILD_S seconds.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.box.following import PERIOD_S
from appliance.engine.cases import FEMALE
from tests.debian.booted import Booted, staged, switched_on
from tests.debian.made import NEEDS_DEBIAN, built, debian, repacked
from tests.harness.patience import SLOWNESS, until
from tests.systemd.namespaces import NEEDS_SYSTEMD
from tests.systemd.page import INSTALL, UPGRADE, in_blocks, opening

MULTIPROCESSORS = 16
BUILD_S = float(os.environ.get("F5_BUILD_S", "2"))
LONGEST_SILENCE_S = 30.0
LATER_S = 70 * 60
SETUP = "sudo f5-setup"
METRICS = "http://127.0.0.1:9464"

pytestmark = [*NEEDS_SYSTEMD, *NEEDS_DEBIAN]


class Place:
    """A flashed box with two packages in root's home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jetson = staged(root)
        (root / "jetson/build_s").write_text(str(BUILD_S))
        deb = built("--python", "3.11", "--arch", "amd64")
        shutil.copy(deb, root / "root" / Path(INSTALL).name)
        with repacked(deb, "9", root / "root" / Path(UPGRADE).name) as later:
            # Engines have another format, so that the daemon builds all of them again.
            source = later / "usr/lib/f5-appliance/appliance/engine/tensorrt/build.py"
            source.write_text(source.read_text().replace("\nFORMAT = ", "\nFORMAT = 1"))
        with repacked(root / "root" / Path(UPGRADE).name, "99", root / "root/broken.deb") as broken:
            (broken / "usr/lib/f5-appliance/appliance/serve/daemon.py").write_text("raise SystemExit(70)\n")

    @property
    def builds(self) -> list[tuple[float, int]]:
        """Time and multiprocessors of each engine that was built."""
        record = self.root / "var/cache/f5-appliance/builds"
        lines = record.read_text().splitlines() if record.exists() else ()
        return [(float(line.split()[0]), int(line.split()[1])) for line in lines]

    @property
    def engines(self) -> list[Path]:
        return list((self.root / "var/cache/f5-appliance").rglob("*.engine"))

    def boots(self) -> list[dict[str, object]]:
        record: list[dict[str, object]] = json.loads(self.jetson.read("/var/lib/f5-appliance/boots.json"))[
            "boots"
        ]
        return record


WATCH = f"""\
import time, urllib.request
while True:
    try:
        ready = urllib.request.urlopen("{METRICS}/readyz", timeout=5).status == 200
    except OSError:
        ready = False
    print(time.time(), int(ready), flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(debian(tmp_path / "debian"))


def typed(box: Booted, line: str) -> tuple[int, str]:
    """Type a line of the page; the program may print nothing for at most LONGEST_SILENCE_S."""
    assert line in in_blocks()
    # A loaded machine delays a program's line after its wait.
    allowed_s = PERIOD_S + (LONGEST_SILENCE_S - PERIOD_S) * SLOWNESS
    code, lines = box.watch(f"yes | {line[5:]}" if line == INSTALL else line)
    for before, after in itertools.pairwise(lines):
        assert after.at - before.at <= allowed_s, (before, after)
    return code, "\n".join(printed.text for printed in lines)


def test_the_first_hour_and_an_upgrade(place: Place) -> None:
    with switched_on(place.root) as box:
        code, printed = typed(box, INSTALL)
        assert code == 0 and SETUP in printed, printed
        until(lambda: "tensorrt" in told(box).get("passed_over", {}), lambda: str(told(box)))
        assert "takes effect at a reboot" in told(box)["passed_over"]["tensorrt"]
        code, printed = typed(box, SETUP)
        assert (code, place.jetson.reboots) == (3, 1), printed
        assert place.builds == [], "none before the mode is the final one"
        box.switch_off()
    place.jetson.boot()
    with switched_on(place.root) as box:
        code, printed = typed(box, SETUP)
        assert code == 0 and printed.splitlines()[-1].startswith("ready: "), printed
        count = len(place.engines)
        assert f"1 of {count}: " in printed and f"{count} of {count}: " in printed
        assert [units for _, units in place.builds] == [MULTIPROCESSORS] * count, "each is built once"
        heard = box.run(f'appliance say "Hello, chat." --voice {FEMALE} --out hello.wav --table')
        assert heard.returncode == 0 and "tensorrt" in heard.stdout, heard
        open_to_the_network(box)
        begun, count = time.time(), len(place.builds)
        with silences(box, place) as silent:
            code, printed = typed(box, UPGRADE)
        assert code == 0 and "runs and speaks" in printed, printed
        assert len(place.builds) == 2 * count
        assert len(silent) == 1, silent
        [(off, _)] = silent
        # The engines were built while the daemon spoke: only the restart is silent.
        assert all(begun < at < off for at, _ in place.builds[count:]), (silent, place.builds)
        rolled_back = box.run("f5-upgrade broken.deb")
        assert rolled_back.returncode == 1 and "is installed again and speaks" in rolled_back.stderr, (
            rolled_back
        )
        assert opening()[1] in box.run("cat /etc/f5-appliance/appliance.yaml").stdout
        assert box.run(SETUP).stdout.splitlines()[-1].startswith("ready: ")
        box.switch_off()


def open_to_the_network(box: Booted) -> None:
    """Follow the page, then check that the box is healthy and open to callers with a token."""
    commands, settings = opening()
    box.run(f"cat >> /etc/f5-appliance/appliance.yaml <<'E'\n{settings}E")
    opened = box.run(f"set -e\n{commands}")
    assert opened.returncode == 0, opened
    until(lambda: told(box).get("state") == "running")
    found = {one["check"]: one for one in json.loads(box.run("f5-health --json --speak").stdout)["findings"]}
    assert not [one for one in found.values() if one["level"] == "FAIL"], found
    assert "0.0.0.0:50051, beyond loopback, as " in found["listening"]["value"]
    token = next(word for word in opened.stdout.split() if word.startswith("f5_"))
    by_name = "--address 192.168.1.10:50051 --authority /etc/f5-appliance/tls.crt"
    assert FEMALE in box.run(f"APPLIANCE_TOKEN={token} appliance voices list {by_name}").stdout
    assert FEMALE in box.run("appliance voices list").stdout


def test_evenings(place: Place) -> None:
    """A hot start and a plug pulled after 70 minutes are no power losses; a plug pulled soon after a pin is
    one."""
    place.jetson.set_mode("MAXN")
    with switched_on(place.root) as box:
        assert box.run(f"yes | {INSTALL[5:]}").returncode == 0
        # The test needs no speech.
        box.run("systemctl mask --now f5-appliance f5-gateway f5-health.timer f5-clocks-check.timer")
        box.switch_off()
    for evening in ("hot", "hot", "hot", "long", "long", "long", "cut off"):
        place.jetson.boot()
        if evening == "hot":
            place.jetson.fault("thermal_throttle", degrees=99.5, cap_khz=1190400)
        with switched_on(place.root) as box:
            settle(box)
            if evening == "hot":
                place.jetson.heal("thermal_throttle")
            box.run("systemctl start f5-clocks-check")
            assert "pinned" in box.run("f5-clock-lock status").stdout
            if evening == "long":
                # Let the program's clock be seventy minutes later.
                late = box.run(f"unshare --time --boottime {LATER_S} f5-clock-lock watch --once")
                assert late.returncode == 0, late
            if evening == "hot":
                box.switch_off()
    place.jetson.boot()
    with switched_on(place.root) as box:
        settle(box)
        [found] = json.loads(box.run("f5-health --json --only boots").stdout)["findings"]
        assert (found["level"], found["figures"]["lost"]) == ("PASS", 1), found


def settle(box: Booted) -> None:
    until(lambda: "=activat" not in box.run("systemctl show -p ActiveState f5-clocks").stdout)


def told(box: Booted) -> dict[str, Any]:
    """State that the daemon reports; empty if the daemon does not answer."""
    fetch = f"import urllib.request as u; print(u.urlopen('{METRICS}/state', timeout=5).read().decode())"
    ran = box.run(f'python3 -c "{fetch}"')
    return json.loads(ran.stdout) if ran.returncode == 0 else {}


@contextlib.contextmanager
def silences(box: Booted, place: Place) -> Iterator[list[tuple[float, float]]]:
    """List, at the end of the block, the Unix times from and to which the daemon was not ready."""
    found: list[tuple[float, float]] = []
    (place.root / "root/watch.py").write_text(WATCH)
    process = subprocess.Popen(box.command("exec python3 watch.py > ready"), cwd="/")
    try:
        yield found
    finally:
        process.kill()
        process.wait()
        lines = [line.split() for line in (place.root / "root/ready").read_text().splitlines()]
        for ready, span in itertools.groupby(lines, key=lambda line: line[1]):
            times = [float(at) for at, _ in span]
            found += [(times[0], times[-1])] if ready == "0" else []
