"""`appliance check`: the box's checks (box/checks), and the checks of config, bundle, voices and speech.

exit status  meaning
0            nothing is wrong
1            something should be seen to
2            something is broken
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from appliance.access.reach import NEEDS_ROOT, daemon_address
from appliance.box import dpkg, platform
from appliance.box.checks import readiness, runner
from appliance.box.checks.finding import Finding, Level, document, exit_code, passed, skipped
from appliance.box.clocks.modes import POWER_MODE_LINE, power_mode
from appliance.box.show.findings import table
from appliance.box.system import Box, open_box
from appliance.cli import listening
from appliance.cli.options import print_line
from appliance.client import CallFailed, Client
from appliance.client.sounding import NO_VOICE, peak, speak_anew
from appliance.config import Config, load
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from appliance.errors import ApplianceError, BundleError, ConfigError, PhonesMissing
from appliance.request import Request, Segmentation
from appliance.rpc.appliance_pb2 import UtteranceState

SPEAK_S = 60.0
SENTENCE = "Ready."
MEASURED = "Thanks for the follow, and welcome to the stream."
SEED = 1
EXACT_BACKEND: Final = "ort-cpu"


def run(options: argparse.Namespace) -> int:
    """Run the checks and print the findings. The worst finding decides the exit status."""
    only = {name.strip() for name in options.only.split(",") if name.strip()}
    if unknown := only - {*runner.CHECKS, *CHECKS, "application"}:
        print_line(f"appliance check: no check is called {', '.join(sorted(unknown))}", sys.stderr)
        return 2
    inspection = Inspection(options, os.environ)
    findings = [*_box_findings(inspection.box, only), *_application_findings(inspection, only)]
    if options.json:
        print(json.dumps(document(findings)))
    else:
        print(table(findings, verbose=True))
    return exit_code(findings)


def _box_findings(box: Box, only: set[str]) -> Iterator[Finding]:
    application = set(CHECKS) if only else set(CHECKS) - set(ON_DEMAND)
    selected = (only or set(runner.CHECKS)) & set(runner.CHECKS) - application
    if selected:
        yield from runner.run_checks(box, only=selected)


def _application_findings(inspection: Inspection, only: set[str]) -> list[Finding]:
    """Findings of the application's checks; only `config` if that one fails."""
    every = not only or "application" in only
    selected = {name for name in CHECKS if name in only or (every and name not in ON_DEMAND)}
    if inspection.options.no_speak:
        selected -= {"synthesis"}
    if not selected:
        return []
    config = inspection.config_finding
    if config.level is Level.FAIL:
        return [config]
    findings = [config] if every or "config" in only else []
    packages = dpkg.packages(inspection.box.root)
    for name, check in CHECKS.items():
        if name in selected - {"config"}:
            finding = _run_check(name, check, inspection)
            findings.append(replace(finding, remedy=dpkg.pin(finding.remedy, packages)))
    return findings


class Inspection:
    """Inputs of the checks: options, configuration, box and bundle."""

    def __init__(self, options: argparse.Namespace, environment: Mapping[str, str]) -> None:
        self.options = options
        self.config = Config()
        self.config_finding = self._load()
        sysroot = environment.get("F5_SYSROOT") or str(self.config.device.sysroot)
        self.box = open_box(sysroot, environment.get("F5_TOOLS", ""))

    def _load(self) -> Finding:
        """Load the configuration, and warn about settings that a newer version removed."""
        path: Path | None = self.options.config
        removed: list[str] = []
        try:
            self.config = load(path, self.options.set, removed.append)
            if path is not None:
                _compare_power_mode(path)
        except ApplianceError as error:
            if _is_forbidden(error):
                return Finding("config", Level.SKIP, NEEDS_ROOT)
            remedy = "correct the line that it names. configs/appliance.yaml has every key with its default"
            if path is not None and not path.exists():
                remedy = "name an existing file: --config /etc/f5-appliance/appliance.yaml is the package's"
            return Finding("config", Level.FAIL, str(error), "only known keys, each of its kind", remedy)
        if removed:
            remedy = "change the lines that it names: a later version may refuse them"
            return Finding("config", Level.WARN, "; ".join(removed), "no setting that was removed", remedy)
        return Finding("config", Level.PASS, str(path or "defaults"))

    @cached_property
    def is_jetson(self) -> bool:
        return platform.identify(self.box.root).is_jetson

    @cached_property
    def serving(self) -> str:
        """Health of the whole daemon. Raises ConfigError, CallFailed."""
        with Client(self.address) as client:
            return client.health()

    @cached_property
    def address(self) -> str:
        """Address at which this box reaches the daemon. Raises ConfigError."""
        return daemon_address(self.config.server)


def _compare_power_mode(path: Path) -> None:
    """Raise ConfigError if root's commands, which have no YAML parser, would read another power mode."""
    try:
        same = power_mode(path.read_text("utf-8")) == (load(path).device.power_mode or "")
    except ValueError:
        same = False
    if not same:
        raise ConfigError(f"{path}: device.power_mode: must be written as {POWER_MODE_LINE}")


def _run_check(name: str, check: Callable[[Inspection], Finding], inspection: Inspection) -> Finding:
    try:
        return check(inspection)
    except (CallFailed, ApplianceError) as error:
        if _is_forbidden(error):
            return Finding(name, Level.SKIP, NEEDS_ROOT)
        why = error.explained if isinstance(error, CallFailed) else str(error)
        return Finding(name, Level.FAIL, why, LIMITS.get(name, ""), REMEDIES.get(name, ""))
    except Exception as error:
        return runner.crashed(name, error)


def _is_forbidden(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, PermissionError):
            return True
        error = error.__cause__
    return False


# The checks.


def _of_each_bundle(inspection: Inspection, check: Callable[[Bundle], Finding]) -> Finding:
    """First finding that does not pass, else the first one, with the values of all bundles in use."""
    from appliance.speech import resident

    all_ = resident.bundles_of(inspection.config)
    findings = [check(each) for each in all_]
    summary = next((finding for finding in findings if finding.level is not Level.PASS), findings[0])
    if len(findings) == 1:
        return summary
    value = "; ".join(f"{each.folder}: {finding.value}" for each, finding in zip(all_, findings, strict=True))
    return replace(summary, value=value)


def _bundle(inspection: Inspection) -> Finding:
    return _of_each_bundle(inspection, partial(_check_bundle, quick=inspection.options.quick))


def _check_bundle(bundle: Bundle, *, quick: bool) -> Finding:
    """Check the bundle's files (`quick`: only their sizes), and espeak-ng if the bundle needs it."""
    from appliance.contract.tokens import BY_ESPEAK
    from appliance.text.tokens.emilia import espeak, phones

    if not quick:
        contract.verify_files(bundle)
    manifest = bundle.manifest
    for name, file in manifest.files.items():
        path = bundle.folder / name
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            raise BundleError(f"{path}: missing, or not {file.size_bytes} bytes long")
    summary = f"{manifest.family} {manifest.precision}, weights {manifest.licence.weights}"
    figures = {"family": manifest.family, "precision": manifest.precision}
    if manifest.text.durations:
        summary += f", lengths by {manifest.text.lengths}"
    text = manifest.text
    if text.tokenizer in BY_ESPEAK:
        what = "English" if text.tokenizer == "emilia" else f"text in {text.voice}"
        try:
            phones.SHARED.phones("", text.voice or espeak.VOICE)
            summary += f", {what} read by espeak-ng {phones.SHARED.version}"
        except PhonesMissing as error:
            limit = f"espeak-ng, through which the bundle reads {what}"
            return Finding("bundle", Level.FAIL, str(error), limit, phones.REMEDY, figures)
    return passed("bundle", summary, LIMITS["bundle"], figures)


def _voices(inspection: Inspection) -> Finding:
    """Check that each voice is readable, has a transcript that the bundle can read, and has its bundle."""
    from appliance.speech import resident
    from appliance.voices.index import open_index

    try:
        bundle = contract.read(inspection.config.bundle.path, verify=False)
    except BundleError as error:
        return skipped("voices", NEEDS_ROOT if _is_forbidden(error) else "not without the bundle")
    voices = open_index(inspection.config.voices, bundle)
    problems, count = voices.check(), len(voices.names())
    figures = {"voices": count, "unusable": len(problems)}
    if problems:
        value = "; ".join(problems)
        return Finding("voices", Level.FAIL, value, LIMITS["voices"], REMEDIES["voices"], figures)
    misread = voices.misread()
    if wrong := [*misread, *resident.missing_voices(inspection.config, voices)]:
        remedy = (
            "give each a transcript in the bundle's letters, and a bundle of its language. Let "
            "text.languages name stored voices"
        )
        figures["misread"] = len(misread)
        return Finding("voices", Level.WARN, "; ".join(wrong), LIMITS["voices"], remedy, figures)
    return passed("voices", f"{count} readable", LIMITS["voices"], figures)


def _daemon(inspection: Inspection) -> Finding:
    server = inspection.config.server
    value = f"{inspection.address}: {inspection.serving}"
    state = readiness.read_state(server.metrics) if server.metrics else readiness.SILENT
    if state.state == "starting":
        value += f", starting for {state.for_s:.0f} s: {state.step}"
        return Finding("daemon", Level.WARN, value, LIMITS["daemon"], readiness.WAIT)
    if inspection.serving != "SERVING":
        return Finding("daemon", Level.FAIL, value, LIMITS["daemon"], REMEDIES["daemon"])
    if inspection.is_jetson and state.on_cpu:
        value += f" on {state.on_cpu}"
        return Finding("daemon", Level.FAIL, value, readiness.ON_ITS_GPU, readiness.GPU_REMEDY)
    return passed("daemon", value)


def _synthesis(inspection: Inspection) -> Finding:
    """Let the daemon speak a sentence. SKIP if it is busy. FAIL if a Jetson speaks on its CPU."""
    if inspection.serving != "SERVING":
        return skipped("synthesis", "the daemon is not serving")
    with Client(inspection.address) as client:
        voice = next(client.voices(), None)
        if voice is None:
            return skipped("synthesis", NO_VOICE)
        queue = client.queue()
        active = (u for u in queue.utterances if u.state != UtteranceState.HELD)
        if busy := sum(utterance.channel not in queue.paused for utterance in active):
            return skipped("synthesis", f"not disturbed: it speaks, {busy} waiting or heard now")
        try:
            reply = speak_anew(client, SENTENCE, voice.name, SPEAK_S)
        except CallFailed as error:
            if error.status != "RESOURCE_EXHAUSTED":
                raise
            remedy = "wait, then look again"
            return Finding("synthesis", Level.WARN, "the daemon is too busy", LIMITS["synthesis"], remedy)
    figures: dict[str, Any] = {
        "audio_s": round(reply.audio_s, 3),
        "wall_s": round(reply.wall_s, 3),
        "peak": peak(reply.audio),
        "backend": reply.header.backend,
        "passed_over": {one.backend: one.reason for one in reply.header.passed_over},
    }
    spoken = f"{reply.audio_s:.1f} s of audio in {reply.wall_s:.2f} s on"
    if inspection.is_jetson and (cpu := readiness.on_cpu(reply.header.backend, figures["passed_over"])):
        return Finding(
            "synthesis", Level.FAIL, f"{spoken} {cpu}", readiness.ON_ITS_GPU, readiness.GPU_REMEDY, figures
        )
    others = (f"{name} passed over: {why}" for name, why in figures["passed_over"].items())
    value = "; ".join((f"{spoken} {reply.header.backend}", *others))
    return passed("synthesis", value, LIMITS["synthesis"], figures)


def _precision(inspection: Inspection) -> Finding:
    """Measure the distance between the backend and EXACT_BACKEND on one segment."""
    from appliance.engine import loading
    from appliance.engine.engine import Synthesizer
    from appliance.engine.ort import check_integers
    from appliance.engine.tensorrt import gate
    from appliance.speech.plan import Planner
    from appliance.text.tokens.tokenizers import maker
    from appliance.voices.index import open_index

    config = inspection.config
    is_exact = skipped("precision", f"{EXACT_BACKEND} computes in the bundle's precision")
    if config.engine.backend == EXACT_BACKEND:
        return is_exact
    bundle = contract.read(config.bundle.path).up_to(config.engine.longest_s)
    voices = open_index(config.voices, bundle)
    if not (names := voices.names()):
        return skipped("precision", NO_VOICE)
    vocabulary = bundle.vocabulary()
    make = maker(vocabulary.tokenizer, vocabulary.voice)
    planner = Planner(bundle.manifest, vocabulary, voices.reference, make)
    nfe, guidance = bundle.manifest.sampler.nearest(gate.NFE), bundle.manifest.defaults.guidance
    request = Request(MEASURED, names[0], nfe, SEED, guidance, Segmentation.UPSTREAM)
    alone = replace(config.engine, lanes=1)
    lossy = loading.load_for(bundle, alone)
    if lossy.backend.partition(" ")[0] == EXACT_BACKEND:
        lossy.shutdown()
        return is_exact
    check_integers(bundle)
    exact = Synthesizer(bundle, loading.open_backend(EXACT_BACKEND, alone), lanes=1)  # never `cpu_variant`
    try:
        share = gate.share(lossy, exact, planner.plan(request)[0])
        value, figures = f"{share:.1%} on {lossy.backend}", {"share": round(share, 4)}
    finally:
        lossy.shutdown()
        exact.shutdown()
    if share > gate.ALLOWED_SHARE:
        return Finding("precision", Level.FAIL, value, LIMITS["precision"], REMEDIES["precision"], figures)
    return passed("precision", value, LIMITS["precision"], figures)


def _engines(inspection: Inspection) -> Finding:
    engine = inspection.config.engine
    if engine.backend not in ("auto", "tensorrt"):
        return skipped("engines", f"engine.backend is {engine.backend}, which builds none")
    if engine.backend == "auto" and importlib.util.find_spec("tensorrt") is None:
        return skipped("engines", "TensorRT is not installed")
    return _of_each_bundle(inspection, partial(_check_engines, engine.cache))


def _check_engines(cache: Path, bundle: Bundle) -> Finding:
    """Report the record of the engines in `cache`: built, as exact as required, with fused attention."""
    from appliance.engine.tensorrt import prepare

    record = prepare.read_record(cache, bundle)
    limit, remedy = LIMITS["engines"], REMEDIES["engines"]
    if record is None:
        value = "none for this bundle; the next start builds them for minutes"
        return Finding("engines", Level.WARN, value, limit, remedy)
    worst = max(record.worst, key=lambda graph: record.worst[graph])
    figures = {"arithmetic": record.arithmetic, "worst": record.worst, "fused_attentions": record.attentions}
    if record.arithmetic:
        value = "; ".join(f"{g} in {how}: {record.refused[g]}" for g, how in record.arithmetic.items())
        remedy = "none is needed; it is slower. Built anew after an update of TensorRT"
        return Finding("engines", Level.WARN, value, limit, remedy, figures)
    value = f"{len(record.engines)} built, at most {record.worst[worst]:.1e} off ({worst})"
    if plain := prepare.unfused(record.attentions):
        value += f"; TensorRT fused no attention in {', '.join(plain)}: a step takes more than twice as long"
        remedy = "another TensorRT may: the release notes of 10.10 name more forms that it fuses"
        return Finding("engines", Level.WARN, value, limit, remedy, figures)
    if record.attentions:
        value += f", fused attentions: {', '.join(f'{g} {n}' for g, n in record.attentions.items())}"
    return passed("engines", value, limit, figures)


CHECKS: Mapping[str, Callable[[Inspection], Finding]] = {
    "config": lambda inspection: inspection.config_finding,
    "bundle": _bundle,
    "voices": _voices,
    "engines": _engines,
    "daemon": _daemon,
    "synthesis": _synthesis,
    "listening": lambda inspection: listening.examine(inspection.config, inspection.box),
    "precision": _precision,
}
ON_DEMAND = ("precision",)
"""Checks that run only if they are named: they compute for seconds to minutes."""
LIMITS = {
    "bundle": "every file as the manifest says",
    "voices": "every stored voice can be used",
    "daemon": "SERVING",
    "synthesis": "a sentence becomes audible speech",
    "engines": "built for this GPU, and right by the CPU's numbers",
    "precision": "changes a sample by at most 25 % of what 32 in place of 7 steps do",
}
REMEDIES = {
    "bundle": "copy the bundle again, whole, then: sudo appliance bundle install FOLDER",
    "voices": "remove the voice that it names and add it again: appliance voices remove NAME",
    "daemon": "start it: sudo systemctl restart f5-appliance. In a checkout: start it with `appliance serve`",
    "synthesis": "restart it: sudo systemctl restart f5-appliance. If this stays: sudo f5-support-bundle",
    "engines": "build them now, for many minutes: "
    "sudo -u f5-appliance appliance prepare --config /etc/f5-appliance/appliance.yaml",
    "precision": "set engine.backend to ort-cpu",
}
