"""`appliance bench guard`: the box's speed against its own baseline, with likely causes if it is slower.

exit status  meaning
0            as fast as it was, or nothing to compare with
1            over WARN_AT times the baseline
2            over FAIL_AT times, or it could not be measured
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from appliance import config as configuration
from appliance.access.reach import daemon_address
from appliance.bench import history
from appliance.bench.machine import Neighbours, describe, listener
from appliance.box.checks.finding import Finding, Level, document, exit_code, skipped
from appliance.box.checks.heat import WARM_C
from appliance.box.checks.speed import FAIL_AT, MEASURE, WARN_AT
from appliance.box.show.findings import table
from appliance.box.system import Box
from appliance.client import CallFailed, Client
from appliance.client.sounding import NO_VOICE, speak_anew
from appliance.contract import bundle

TEXT = "Thanks for the follow, and welcome to the stream."
SYNTHESES = 5
SPEAK_S = 60.0
BUSY_MS = 100.0
"""A request that waited longer than this shared the engine."""
BROKEN = 2
"""Exit status of a guard that cannot measure."""


class NotMeasured(Exception):
    """The speed cannot be judged. The message is one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="findings, for machines")
    parser.add_argument("--set-baseline", action="store_true", help="this is how fast it is")


def run(config: configuration.Config, box: Box, options: argparse.Namespace) -> int:
    """Run the command; return its exit status. Does not raise."""
    finding = examine(config, box, set_baseline=options.set_baseline)
    if options.json:
        print(json.dumps(document([finding])))
    else:
        print(table([finding], verbose=True))
    return exit_code([finding])


def examine(config: configuration.Config, box: Box, *, set_baseline: bool = False) -> Finding:
    """Measure, judge, and append to the journal. Does not raise."""
    try:
        entry = measure(config, box)
    except NotMeasured as why:
        return skipped("speed", str(why))
    except Exception as error:
        remedy = "sudo appliance check; where the daemon is down: sudo systemctl restart f5-appliance"
        words = error.explained if isinstance(error, CallFailed) else str(error)
        return Finding("speed", Level.FAIL, f"not measured: {' '.join(words.split())}", "", remedy)
    finding = judge(entry, history.baselines(box))
    try:
        if set_baseline:
            finding = _as_baseline(box, entry)
        history.add(box, {**entry, "level": finding.level.value, "value": finding.value})
    except OSError as error:
        level = Level.FAIL if set_baseline else finding.level
        return replace(finding, level=level, value=f"{finding.value}; not kept: {error}")
    return finding


def measure(config: configuration.Config, box: Box) -> dict[str, Any]:
    """Entry of the journal: medians of SYNTHESES replies, and everything that could explain them.

    Raises NotMeasured, CallFailed, BundleError.
    """
    folder = config.bundle.path
    content = bundle.read(folder, verify=False)
    machine = describe(box)
    name = history.key(bundle.identity(folder), machine["l4t"], machine["mode"])
    before = history.baselines(box).get(name, {})
    address = daemon_address(config.server)
    pid = listener(address)
    with Client(address) as client:
        if client.health() != "SERVING":
            raise NotMeasured("the daemon is not serving")
        voices = list(client.voices())
        if not voices:
            raise NotMeasured(NO_VOICE)
        same = str(before.get("voice", ""))
        voice = next((voice for voice in voices if same and voice.sha256.startswith(same)), voices[0])
        neighbours = Neighbours((pid,) if pid else ())
        replies = [speak_anew(client, TEXT, voice.name, SPEAK_S) for _ in range(SYNTHESES)]
    rtfs = [reply.wall_s / reply.audio_s for reply in replies]
    return {
        "at": round(box.wall(), 3),
        "boot_id": box.boot_id,
        "uptime_s": round(box.uptime(), 3),
        "key": name,
        "rtf": round(statistics.median(rtfs), 4),
        "rtf_least": round(min(rtfs), 4),
        "rtf_most": round(max(rtfs), 4),
        "first_audio_s": round(statistics.median(reply.first_audio_s for reply in replies), 4),
        "waited_ms": round(statistics.median(reply.timings.queue_ms for reply in replies), 1),
        "syntheses": SYNTHESES,
        "voice": voice.sha256[:16],
        "nfe": replies[0].header.nfe_steps,
        "backend": replies[0].header.backend,
        "bundle": f"{content.manifest.family} {content.manifest.precision}",
        "machine": {**machine, "junction_after_c": describe(box)["junction_c"]},
        "neighbours": neighbours.busiest(),
    }


def judge(entry: Mapping[str, Any], baselines: Mapping[str, Any]) -> Finding:
    """Compare an entry with the baseline of its key, else with the newest.

    An entry with unpinned clocks, a hot box or a busy daemon is judged only if it is slower.
    """
    value = f"real-time factor {entry['rtf']:.3f}, first audio {entry['first_audio_s']:.3f} s"
    figures = {name: entry[name] for name in ("key", "rtf", "first_audio_s", "syntheses")}
    baseline = _usable(baselines.get(entry["key"])) or next(
        filter(None, map(_usable, reversed(list(baselines.values())))), None
    )
    if baseline is None:
        why = f"{value}: nothing to compare with; set a baseline with {MEASURE} --set-baseline"
        return Finding("speed", Level.SKIP, why, figures=figures)
    ratio = max(entry[name] / baseline[name] for name in ("rtf", "first_audio_s"))
    reasons = causes(entry, baseline)
    figures |= {"ratio": round(ratio, 3), "causes": reasons}
    limit = f"of the baseline: WARN above {WARN_AT:g}, FAIL above {FAIL_AT:g}"
    value += f": {ratio:.2f} of the baseline"
    if ratio <= WARN_AT:
        if unfit := unfit_for_judgement(entry):
            return Finding("speed", Level.SKIP, f"{value}, not judged: {unfit}", limit, figures=figures)
        if baseline.get("key", entry["key"]) != entry["key"]:
            return Finding("speed", Level.SKIP, f"{value} of another: {reasons[0]}", limit, figures=figures)
        return Finding("speed", Level.PASS, value, limit, figures=figures)
    level = Level.FAIL if ratio > FAIL_AT else Level.WARN
    likely = "; ".join(reasons) or "no cause seen in clocks, heat, versions, bundle and neighbours"
    remedy = (
        f"see to the cause, then measure again: {MEASURE}; where the change was wanted, --set-baseline; "
        "without a cause and again: sudo f5-support-bundle"
    )
    return Finding("speed", level, f"{value}; likely: {likely}", limit, remedy, figures)


def causes(entry: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Differences from the baseline, the likeliest cause of slowness first."""
    now, then = entry["machine"], baseline.get("machine", {})
    reasons = []
    if now["loose"]:
        reasons.append(f"clocks: {'; '.join(now['loose'])}")
    elif now["clocks"] not in ("", "pinned"):
        reasons.append(f"clocks: {now['clocks']}")
    if then and now["mode"] != then["mode"]:
        reasons.append(f"clocks: power mode {then['mode'] or 'none'}, now {now['mode'] or 'none'}")
    hottest = max(filter(None, (now["junction_c"], now["junction_after_c"])), default=None)
    if hottest is not None and hottest >= WARM_C:
        reasons.append(f"heat: {hottest:.0f} °C")
    if baseline.get("key", entry["key"]).split("/")[0] != entry["key"].split("/")[0]:
        reasons.append(f"another bundle: {baseline.get('bundle', 'unknown')}, now {entry['bundle']}")
    for name in ("backend", "nfe", "voice"):
        if name in baseline and baseline[name] != entry[name]:
            reasons.append(f"another {name}: {baseline[name]}, now {entry[name]}")
    if entry["neighbours"]:
        busiest = ", ".join(f"{name} took {share:.2f} of a core" for name, share in entry["neighbours"][:3])
        reasons.append(f"neighbours: {busiest}")
    if entry["waited_ms"] > BUSY_MS:
        reasons.append(f"neighbours: the daemon had other requests, {entry['waited_ms']:.0f} ms of waiting")
    versions, before = now["versions"], then.get("versions", {})
    changed = [
        f"{name} {before.get(name, 'none')}, now {versions.get(name, 'none')}"
        for name in sorted({*versions, *before})
        if then and before.get(name) != versions.get(name)
    ]
    if then and now["l4t"] != then["l4t"]:
        changed.append(f"L4T {then['l4t']}, now {now['l4t']}")
    return [*reasons, *(f"versions: {change}" for change in changed)]


def unfit_for_judgement(entry: Mapping[str, Any]) -> str:
    """Reason why a good speed would prove nothing; "" if it would prove something."""
    machine = entry["machine"]
    if not machine["clocks"]:
        return "the daemon was busy with other requests" if entry["waited_ms"] > BUSY_MS else ""
    if machine["loose"]:
        return f"clocks are loose: {'; '.join(machine['loose'])}"
    if machine["clocks"] != "pinned":
        return f"clocks are not proven to be pinned: {machine['clocks']}"
    if machine["junction_c"] is None:
        return "no temperature can be read"
    if machine["junction_c"] >= WARM_C:
        return f"{machine['junction_c']:.0f} °C; below {WARM_C:g} °C it is"
    return "the daemon was busy with other requests" if entry["waited_ms"] > BUSY_MS else ""


def _usable(baseline: Any) -> Mapping[str, Any] | None:
    try:
        good = float(baseline["rtf"]) > 0 and float(baseline["first_audio_s"]) > 0
    except (KeyError, TypeError, ValueError):
        return None
    return baseline if good else None


def _as_baseline(box: Box, entry: Mapping[str, Any]) -> Finding:
    """Make a measurement the baseline, unless the box was not fit for it."""
    figures = {name: entry[name] for name in ("key", "rtf", "first_audio_s", "syntheses")}
    if unfit := unfit_for_judgement(entry):
        remedy = f"see to the reason, then: {MEASURE} --set-baseline"
        return Finding("speed", Level.FAIL, f"no baseline set: {unfit}", "", remedy, figures)
    history.set_baseline(box, entry)
    value = (
        f"real-time factor {entry['rtf']}, first audio {entry['first_audio_s']} s: baseline of {entry['key']}"
    )
    return Finding("speed", Level.PASS, value, figures=figures)
