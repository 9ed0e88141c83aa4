"""The support bundle: its contents, and above all the secrets that it leaves out, whatever is on the box."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import typing
from pathlib import Path
from typing import Any, Literal

import pytest

from appliance.box import paths
from appliance.box.checks.application import Application
from appliance.box.support import archive, redact
from appliance.config import Config
from tests.fakes.jetson.board import TOOLS, Jetson
from tests.harness.boxes import lay, process, quick, well
from tests.harness.daemons import ROOT
from tests.harness.rows import rows

pytestmark = [pytest.mark.slow, pytest.mark.once]

NOBODY = Application("/nowhere/python", "/nowhere")

PLANTED = Path(__file__).with_name("support")
CONFIGURATION = (PLANTED / "appliance.yaml").read_text("utf-8")
SAID = "Please read out the xyzzy sentence of the viewer Wilhelmina, who paid 471147."
TRANSCRIPT = "Grandmother tells of the xyzzytranscript winter."
GLAD = "Grandfather was glad of the warm summer."
JOURNAL = [tuple(row) for row in rows(__file__, "support/journal.jsonl")]
CRASH = [
    ("f5-appliance", "python",
     "INFO appliance.serve.daemon: the engine failed: RuntimeError: CUDA error 801"),
    ("f5-appliance", "systemd", "f5-appliance.service: Main process exited, code=exited, status=70/SOFTWARE"),
    ("nvpmodel", "nvpmodel", "NVPM ERROR: Error writing 128 to /sys/devices/platform/gpu.0/tpc_pg_mask: 16"),
]  # fmt: skip
KERNEL = (PLANTED / "kernel.txt").read_text("utf-8").splitlines()
SECRETS = (
    *("xyzzy", "wilhelmina", "grandmother", "grandfather", "ward-7-box", "1423622012345", "48:b0:2d", "tech"),
    *("198.51.100.9", "203.0.113.77", "fe80::", "example.org", "/home/", "some call me", "3f2b9b0e"),
    *("user.slice", "471147"),  # long enough not to be a part of another figure by chance
)


TOOLS_SAY = """$real "$@"; echo 'NVPM ERROR: token=xyzzy' 'NV Power Mode: of Wilhelmina, xyzzy'
echo 'GPU MinFreq=xyzzy MaxFreq=1 xyzzy' 'Error: xyzzy' """


def log(jetson: Jetson, lines: list[tuple[str, str, str]]) -> None:
    for unit, identifier, message in lines:
        jetson.journal(message, identifier=identifier, unit=f"{unit}.service")


def plant(jetson: Jetson) -> None:
    """Plant secrets, texts and voices in all places of a real box."""
    jetson.write("/etc/f5-appliance/appliance.yaml", CONFIGURATION)
    jetson.write("/etc/machine-id", "xyzzy0123456789abcdef0123456789a\n")
    voices = "/var/lib/f5-appliance/voices"
    record = f"name: wilhelmina-voice\ntranscript: {TRANSCRIPT}\nconsent_note: Wilhelmina agreed\n"
    jetson.write(f"{voices}/wilhelmina-voice/voice.yaml", record)
    jetson.write(f"{voices}/wilhelmina-voice/audio", "RIFF xyzzyaudio")
    style = f"{voices}/wilhelmina-voice/styles/happy"
    jetson.write(f"{style}/style.yaml", f"name: happy\ntranscript: {GLAD}\nconsent_note: by her sister\n")
    jetson.write(f"{style}/audio", "RIFF xyzzyhappy")
    bundle = "/var/lib/f5-appliance/bundle"
    jetson.write(f"{bundle}/manifest.yaml", "licence: {note: xyzzy-licence}\n")
    jetson.write(f"{bundle}/step.onnx", "x" * 321)
    jetson.write(f"{bundle}/xyzzy-notes.txt", "xyzzy")
    for tool in ("nvpmodel", "jetson_clocks"):
        lay(jetson, tool, TOOLS_SAY)
    jetson.write("/etc/f5-appliance/tokens.json", '{"xyzzy": "xyzzy"}')
    jetson.write("/etc/f5-appliance/tls.key", "xyzzy")
    jetson.write(paths.USERS, f"{jetson.read(paths.USERS)}\nxyzzyuser:x:1001:1001::/home/x:/bin/sh\n")
    log(jetson, JOURNAL)
    for message in KERNEL:
        jetson.journal(message)
    clocks = json.loads(jetson.read("/run/f5-appliance/clocks.json"))
    who = ["wilhelmina ran: sudo nvpmodel -m 2 --xyzzy", "nvpmodel.service ran again"]
    clocks |= {"repins": 1, "last_unpin": {"at": 5.0, "what": ["gpu: free"], "who": who}}
    jetson.write("/run/f5-appliance/clocks.json", json.dumps(clocks))
    installed = json.loads(jetson.read(paths.INSTALLED))
    installed |= {"token": "xyzzy", "python": "/home/wilhelmina/xyzzy/python", "files": {"xyzzy": "0"}}
    jetson.write(paths.INSTALLED, json.dumps(installed))
    speed = {"level": "WARN", "value": SAID, "rtf": 1.0, "first_audio_s": 1.0, "uptime_s": 1.0}
    speed["boot_id"] = jetson.box().boot_id
    jetson.write("/var/lib/f5-appliance/journal/measurements.jsonl", json.dumps(speed))


def support_bundle(
    jetson: Jetson, *options: str, python: str = "/nowhere/python", cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return process(jetson, "support-bundle", "--python", python, *options, cwd=cwd)


def collected(jetson: Jetson, user: int = 0) -> dict[str, archive.Part]:
    """The bundle's parts without an application."""
    return {part.name: part for part in archive.collect(quick(jetson, user=lambda: user), NOBODY)}


def told(parts: dict[str, archive.Part]) -> list[str]:
    """The planted secrets that the parts contain."""
    text = "".join(part.text + part.problem for part in parts.values()).lower()
    return [secret for secret in SECRETS if secret in text]


def contents(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        files = {}
        for member in tar.getmembers():
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            stream = tar.extractfile(member)
            assert stream is not None
            files[member.name.removeprefix("f5-support/")] = stream.read().decode()
    return files


@pytest.fixture(scope="module")
def jetson(tmp_path_factory: pytest.TempPathFactory) -> Jetson:
    """A box with secrets, after a crash of the daemon."""
    jetson = well(tmp_path_factory.mktemp("planted") / "box")
    plant(jetson)
    log(jetson, CRASH)
    jetson.journal("soctherm: OC ALARM 0x00000001")
    jetson.journal("Out of memory: Killed process 812 (python) total-vm:1kB")
    failed = {"ActiveState": "failed", "Result": "watchdog", "NRestarts": 4, "ExecMainStatus": 70}
    jetson.unit("f5-appliance.service", **failed, StatusText="loading xyzzy for Wilhelmina")
    return jetson


@pytest.fixture(scope="module")
def files(jetson: Jetson) -> dict[str, str]:
    """Contents of the archive that the script writes on this box."""
    out = jetson.root.parent / "support.tar.gz"
    # The application is real and quotes the configuration in its findings.
    ran = support_bundle(jetson, "--out", str(out), python=sys.executable)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert out.stat().st_mode & 0o777 == 0o600
    files = contents(out.read_bytes())
    assert ran.stdout == files["INDEX"] + f"{out}\n"
    return files


def without_answers(jetson: Jetson, *tools: str) -> Jetson:
    """The box with programs that fail. They are not removed, because PATH could then find this machine's
    programs."""
    for tool in tools or TOOLS:
        (jetson.bin / tool).write_text("#!/bin/sh\nexit 3\n")
    return jetson


def test_nothing_that_was_planted_is_in_it(jetson: Jetson, files: dict[str, str]) -> None:
    lines = [(name, line) for name, text in files.items() for line in text.splitlines()]
    found = {(secret, name): line for name, line in lines for secret in SECRETS if secret in line.lower()}
    assert found == {}
    lines = [*JOURNAL, *jetson.snapshot().items(), *enumerate([*KERNEL, *[TOOLS_SAY] * 2])]
    assert sum(str(line).lower().count("xyzzy") for line in lines) > 70
    missing = [line for line in files["INDEX"].splitlines() if line.startswith("MISSING")]
    assert all("the journal may lack the previous boot" in line for line in missing), missing
    [config] = [f for f in json.loads(files["health.json"])["findings"] if f["check"] == "config"]
    assert config["level"] == "FAIL"


IN_IT = dict(rows(__file__, "support/kept.jsonl"))


def test_the_bundle_has_what_support_needs(jetson: Jetson, files: dict[str, str]) -> None:
    missing = [(name, word) for name, all_of in IN_IT.items() for word in all_of if word not in files[name]]
    assert missing == []
    assert json.loads(files["units.json"])["f5-appliance.service"]["Result"] == "watchdog"
    who = ["… sudo nvpmodel …", "nvpmodel.service …"]
    assert json.loads(files["clocks.json"])["last_unpin"] == {"at": 5.0, "what": ["gpu: free"], "who": who}
    assert json.loads(files["clock-status.json"])["state"] == "pinned"
    assert files["nv_tegra_release.txt"] == jetson.read("/etc/nv_tegra_release") + "\n"
    assert json.loads(files["installed.json"])["module"] == "p3701-0005"
    held = json.loads(files["contents.json"])
    assert held["bundle"] == {"files": {"manifest.yaml": 31, "step.onnx": 321}, "others": 1}
    if os.geteuid():
        assert held["voices"] == {"problem": "needs root"}
    else:
        assert held["voices"] == {"count": 1, "files": 4, "bytes": held["voices"]["bytes"]}


@pytest.mark.parametrize("user", [0, 1000])
def test_the_boot_before_is_in_it_and_what_reset_the_box(user: int, tmp_path: Path) -> None:
    """A user who is not root gets no count of the voices."""
    jetson = well(tmp_path / "box")
    plant(jetson)
    jetson.journal("nvgpu: 17000000.gpu hangs", at=50.0)
    jetson.boot()
    jetson.write("/sys/devices/platform/bus@0/c360000.pmc/reset_reason", "BCCPLEXWDT\n")
    jetson.journal("NVRM: after the reset")
    parts = collected(jetson, user)
    assert "nvgpu: 17000000.gpu hangs" in parts["previous-boot/kernel.txt"].text
    assert "hangs" not in parts["kernel.txt"].text
    assert "NVRM" not in parts["previous-boot/kernel.txt"].text
    assert "request failed" in parts["previous-boot/journal-f5-appliance.txt"].text
    reset, before, now = parts["boots.txt"].text.splitlines()
    assert reset == "reset: BCCPLEXWDT" and before.startswith("-1 ") and now.startswith("0 ")
    assert "nvidia-l4t-core 36.4.3-20250107174145 hold ok installed\n" in parts["packages.txt"].text
    assert (json.loads(parts["contents.json"].text)["voices"] == {"problem": "needs root"}) is (user > 0)
    assert not parts["health.json"].problem
    assert told(parts) == []


def test_boots_are_listed_in_every_zone(tmp_path: Path) -> None:
    """tzdata has no letters for many zones, such as São Paulo, Dubai and Kathmandu. systemd 249 prints a dash
    for them, 255 blanks."""
    jetson = well(tmp_path / "box")
    zones, between = ("UTC", "CEST", "ChST", "-03", "+04", "+0545"), ("—", " ", "  ")
    times = [f"Thu 2026-11-26 21:03:11 {z}{b}Fri 2026-11-27 04:55:02 {z}" for z in zones for b in between]
    rows = "\n".join(f"{number:3} {'0123456789abcdef' * 2} {time}" for number, time in enumerate(times, -17))
    lay(jetson, "journalctl", f"cat <<END\nIDX BOOT ID FIRST ENTRY LAST ENTRY\n{rows}\nEND")
    shown = collected(jetson)["boots.txt"].text.splitlines()
    assert shown == ["reset: MAINSWRST", *(f"{number} {time}" for number, time in enumerate(times, -17))]


def test_a_failing_tool_is_a_line_and_the_rest_is_complete(tmp_path: Path) -> None:
    jetson = well(tmp_path / "box")
    without_answers(jetson, "nvpmodel", "jetson_clocks", "journalctl")
    jetson.path("/etc/nv_tegra_release").unlink()
    jetson.write("/run/f5-appliance/clocks.json", "{ Wilhelmina")
    parts = collected(jetson)
    missing = {name for name, part in parts.items() if part.problem}
    assert missing >= {"nvpmodel.txt", "jetson_clocks.txt", "kernel.txt", "clocks.json"}
    assert missing >= {"nv_tegra_release.txt", "configuration.yaml", "versions.txt"}
    assert {"health.json", "units.json", "contents.json", "installed.json"} & missing == set()
    index = archive.index(parts.values())
    assert "MISSING  nvpmodel.txt: nvpmodel ended with 3" in index
    assert "MISSING  configuration.yaml: No such file or directory" in index
    assert "Wilhelmina" not in index


def test_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    jetson = without_answers(Jetson(tmp_path / "box", "jp6-0005"))
    ran = support_bundle(jetson, "--out", "/nowhere/x.tar.gz")
    assert (ran.returncode, ran.stdout) == (1, "")
    told = "/nowhere/x.tar.gz: No such file or directory; choose another place with --out"
    assert ran.stderr == f"f5-support-bundle: {told}\n"


@pytest.mark.parametrize("out", ["folder", None])
def test_a_folder_gets_it_under_its_own_name(out: str | None, tmp_path: Path) -> None:
    jetson = without_answers(Jetson(tmp_path / "box", "jp6-0005"))
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    ran = support_bundle(jetson, *(() if out is None else ("--out", out)), cwd=here)
    assert (ran.returncode, ran.stderr) == (0, "")
    [written] = (here / (out or ".")).glob("f5-support-*.tar.gz")
    assert ran.stdout.endswith(f"{written}\n")


def test_the_name_of_the_archive_does_not_identify_the_box() -> None:
    assert archive.default_name(0.0) == "f5-support-19700101-000000.tar.gz"


@pytest.mark.parametrize(("message", "shown"), rows(__file__, "support/shown.jsonl"))
def test_an_outline_keeps_the_words_of_the_trade(message: str, shown: str) -> None:
    assert redact.outline(message) == shown


def test_the_defaults_appear(root: Path) -> None:
    shown = redact.configuration((root / "configs" / "appliance.yaml").read_text())
    assert redact.WITHHELD not in shown
    assert "  path: /var/lib/f5-appliance/bundle\n" in shown


def test_every_choice_of_the_configuration_appears() -> None:
    hints = {
        (section.name, name): hint
        for section in dataclasses.fields(Config)
        for name, hint in typing.get_type_hints(typing.cast(Any, section.default_factory)).items()
    }
    choices = {key: typing.get_args(of) for key, of in hints.items() if typing.get_origin(of) is Literal}
    assert ("engine", "backend") in choices
    for (section, name), values in choices.items():
        for value in values:
            text = f"{section}:\n  {name}: {value}\n"
            assert redact.configuration(text) == text
