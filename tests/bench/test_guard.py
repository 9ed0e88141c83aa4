"""The guard's judgement and causes, its journal; then all of it over a real daemon."""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from appliance import cli
from appliance.bench import guard, history
from appliance.bench.machine import Neighbours, cpu_seconds, listener
from appliance.box.checks import speed
from appliance.box.checks.finding import Level
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.client import Client
from tests.harness.daemons import BUNDLE, Shared, write_config
from tests.harness.rows import rows

pytestmark = [pytest.mark.slow, pytest.mark.once]

PASS, WARN, FAIL, SKIP = Level.PASS, Level.WARN, Level.FAIL, Level.SKIP
ORIN = {
    "model": "Jetson", "l4t": "R36.4.3", "mode": "MAXN", "clocks": "pinned", "loose": [], "junction_c": 50.0,
    "junction_after_c": 52.0, "versions": {"onnxruntime": "1.30"},
}  # fmt: skip
ENTRY = {
    "at": 1.7e9, "boot_id": "b", "uptime_s": 100.0, "key": "aa/R36.4.3/MAXN", "rtf": 0.2,
    "first_audio_s": 0.4, "waited_ms": 1.0, "syntheses": 5, "voice": "ab", "nfe": 7,
    "backend": "tensorrt", "bundle": "Base fp16", "machine": ORIN, "neighbours": [],
}  # fmt: skip


def entry(**changes: Any) -> dict[str, Any]:
    """ENTRY with changes; changes of `machine` are merged by key."""
    changed = copy.deepcopy(ENTRY)
    changed["machine"].update(changes.pop("machine", {}))
    return changed | changes


NO_CAUSE = "no cause seen"
SLOW = {"rtf": 0.4}


@pytest.mark.parametrize(("changes", "level", "words"), rows(__file__, "judgements.jsonl"))
def test_a_judgement(changes: dict[str, Any], level: str, words: str) -> None:
    finding = guard.judge(entry(**changes), {ENTRY["key"]: ENTRY})
    assert finding.level.name == level and words in finding.value
    assert (words == NO_CAUSE) == (NO_CAUSE in finding.value)


def test_no_baseline_and_a_baseline_of_an_earlier_release(tmp_path: Path) -> None:
    box = Box(Root(tmp_path))
    assert guard.judge(entry(), history.baselines(box)).level is SKIP
    old = {"schema": 1, "baselines": {ENTRY["key"]: {"rtf": 0.2, "first_audio_s": 0.4, "voice": "ab"}}}
    box.root.replace(history.EARLIER, json.dumps(old))
    assert guard.judge(entry(), history.baselines(box)).level is PASS
    assert guard.judge(entry(rtf=0.5), history.baselines(box)).level is FAIL
    assert guard.judge(entry(), {"aa": {"rtf": "x"}}).level is SKIP


def test_a_journal_is_bounded_and_outlives_a_damaged_line(tmp_path: Path) -> None:
    box = Box(Root(tmp_path))
    lines = [json.dumps({"schema": 1, "number": number}) for number in range(2000)]
    box.root.replace(history.JOURNAL, "\n".join([*lines, "{damaged", "[1]", ""]))
    history.add(box, {"number": -1})
    numbers = [one["number"] for one in history.entries(box)]
    assert numbers == [*range(2000 - history.MOST_ENTRIES + 1, 2000), -1]


def test_health_tells_the_last_entry_of_this_boot(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b\n")
    box = Box(Root(tmp_path), uptime=lambda: 100.0 + 3 * 3600)
    assert speed.last(box).level is SKIP
    history.add(box, {**ENTRY, "level": "WARN", "value": "slow"})
    finding = speed.last(box)
    assert (finding.level, finding.value) == (WARN, "slow (3 h ago)") and finding.remedy
    later = Box(Root(tmp_path), uptime=lambda: 100.0 + 37 * 3600)
    assert speed.last(later).level is SKIP
    history.add(box, {**ENTRY, "boot_id": "other", "level": "WARN", "value": "slow"})
    assert speed.last(box).level is SKIP


def test_neighbours_are_programs_that_used_cpu_time() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        idle = cpu_seconds()
        greedy = {**idle, child.pid: ("sleep", -1.0)}  # a second more than the child has used
        listed = [
            any(f"({child.pid})" in name for name, _ in Neighbours(own, before=before).busiest())
            for own, before in (((), greedy), ((), idle), ((child.pid,), greedy))
        ]
        child.kill()
    assert listed == [True, False, False]


def test_a_guard_over_a_daemon(
    shared_box: Shared, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is no Jetson. The baseline makes it seem far slower, then far faster."""
    monkeypatch.setenv("F5_SYSROOT", str(tmp_path / "box"))
    monkeypatch.setattr(guard, "SYNTHESES", 2)
    box = Box(Root(tmp_path / "box"))
    with Client(shared_box.address) as client:
        client.remove_voice("ann")
    config = shared_box.folder / "config.yaml"

    def outcome(*options: str) -> tuple[int, dict[str, Any]]:
        code = cli.main(["bench", "guard", "--config", str(config), "--json", *options])
        document = json.loads(capsys.readouterr().out)
        assert document["exit"] == code
        return code, document["findings"][0]

    code, silent = outcome()
    assert (code, silent["level"]) == (0, "SKIP") and "no voice is stored" in silent["value"]
    shared_box.add_voice()
    for address in (shared_box.address, f"unix:{shared_box.config['server']['socket']}"):
        assert listener(address) == shared_box.process.pid
    assert outcome()[1]["level"] == "SKIP"
    assert outcome("--set-baseline")[1]["level"] == "PASS"
    [(name, measured)] = history.baselines(box).items()
    assert measured["bundle"].split()[0] in (BUNDLE / "manifest.yaml").read_text()
    for factor, level, expected in ((100.0, "PASS", 0), (0.01, "FAIL", 2)):
        changed = {what: measured[what] * factor for what in ("rtf", "first_audio_s")}
        history.set_baseline(box, {**measured, **changed, "key": name})
        code, judged = outcome()
        assert (code, judged["level"]) == (expected, level), judged
    entries = history.entries(box)
    assert [one["level"] for one in entries] == ["SKIP", "PASS", "PASS", "FAIL"]
    assert entries[-1]["machine"]["versions"]["numpy"]
    config = write_config(tmp_path)  # of a daemon that does not run
    code, broken = outcome()
    assert (code, broken["level"]) == (2, "FAIL") and "not measured" in broken["value"]
