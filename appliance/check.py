"""`appliance check`: the box's health, and what only the application knows: config, bundle, voices, speech.

exit status  meaning
0            nothing is wrong
1            something should be seen to
2            something is broken
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance import health
from appliance.config import Config, load
from appliance.contract import bundle
from appliance.device import platform, sensors
from appliance.device.box import Box, open_box
from appliance.device.clocks import look
from appliance.device.published import read
from appliance.errors import ApplianceError, BundleError
from appliance.health import Finding, Level, speed
from appliance.job import Request, Segmentation
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc

REACH_S = 5.0
SPEAK_S = 60.0
SENTENCE = "Ready."
MEASURED = "Thanks for the follow, and welcome to the stream."
SYNTHESES = 5
SEED = 1
EXACT_BACKEND = "ort-cpu"
BUSY_MS = 100.0
"""A request that waited longer for the engine shared it, and its time says nothing of the box."""
SAMPLE_BYTES = 2
NEEDS_ROOT = "needs root, or a member of the group f5-appliance"
UNLIMITED = (("grpc.max_receive_message_length", -1),)


class Wrong(Exception):
    """What a check found; its message is one line for a person."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options, beside those that name a configuration."""
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument(
        "--only", default="", metavar="NAMES", help=f"some checks: application, {', '.join(NAMES)}"
    )
    parser.add_argument("--no-speak", action="store_true", help="no real synthesis")
    parser.add_argument("--quick", action="store_true", help="sizes of the bundle's files, not their hashes")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look at everything that was asked for; the worst of it is the exit status."""
    only = {name.strip() for name in options.only.split(",") if name.strip()}
    if unknown := only - {*NAMES, "application"}:
        print(f"appliance check: no check is called {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    inspection = Inspection(options, os.environ)
    findings = [*_of_the_box(inspection.box, only), *_of_the_application(inspection, only)]
    if options.json:
        print(json.dumps(health.document(findings)))
    else:
        print(health.table(findings, colour=health.wants_colour(sys.stdout.isatty(), os.environ)))
    return health.exit_code(findings)


def _of_the_box(box: Box, only: set[str]) -> Iterator[Finding]:
    """All but what the application sees better itself."""
    ours = set(CHECKS) if only else set(CHECKS) - set(ON_DEMAND)
    wanted = (only or set(health.CHECKS)) & set(health.CHECKS) - ours
    if wanted:
        yield from health.examine(box, only=wanted)


def _of_the_application(inspection: Inspection, only: set[str]) -> list[Finding]:
    every = not only or "application" in only
    wanted = {name for name in CHECKS if name in only or (every and name not in ON_DEMAND)}
    if inspection.options.no_speak:
        wanted -= {"synthesis"}
    if not wanted:
        return []
    findings = [inspection.config_finding]
    if inspection.config_finding.level is not Level.FAIL:
        findings += [
            _carried_out(name, check, inspection)
            for name, check in CHECKS.items()
            if name in wanted - {"config"}
        ]
    asked = every or "config" in only or findings[0].level is Level.FAIL
    return findings if asked else findings[1:]


class Inspection:
    """What the application's checks share."""

    def __init__(self, options: argparse.Namespace, environment: Mapping[str, str]) -> None:
        self.options = options
        self.config = Config()
        self.config_finding = self._load()
        sysroot = environment.get("F5_SYSROOT") or str(self.config.device.sysroot)
        self.box = open_box(sysroot, environment.get("F5_TOOLS", ""))

    def _load(self) -> Finding:
        path: Path | None = self.options.config
        try:
            self.config = load(path, self.options.set)
        except ApplianceError as error:
            if _is_forbidden(error):
                return Finding("config", Level.SKIP, NEEDS_ROOT)
            remedy = "correct the line that it names; configs/appliance.yaml has every key with its default"
            return Finding("config", Level.FAIL, str(error), "only known keys, each of its kind", remedy)
        return Finding("config", Level.PASS, str(path or "defaults"))

    @cached_property
    def manifest(self) -> bundle.Manifest:
        return bundle.read(self.config.bundle.path, verify=False).manifest

    @property
    def manifest_sha256(self) -> str:
        """What names the bundle. Raises BundleError."""
        folder = bundle.read(self.config.bundle.path, verify=False).folder
        return bundle.sha256(folder / bundle.MANIFEST)

    @property
    def address(self) -> str:
        return self.config.server.listen

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.address, options=UNLIMITED)

    @cached_property
    def serving(self) -> str:
        """What the daemon says of itself. Raises Wrong when it does not answer."""
        with self.channel() as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=REACH_S)
            except grpc.RpcError as error:
                raise Wrong(f"{self.address}: {_why(error)}") from error
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def _carried_out(name: str, check: Callable[[Inspection], Finding], inspection: Inspection) -> Finding:
    try:
        return check(inspection)
    except Wrong as error:
        return Finding(name, Level.FAIL, str(error), LIMITS.get(name, ""), REMEDIES.get(name, ""))
    except ApplianceError as error:
        if _is_forbidden(error):
            return Finding(name, Level.SKIP, NEEDS_ROOT)
        return Finding(name, Level.FAIL, str(error), LIMITS.get(name, ""), REMEDIES.get(name, ""))
    except Exception as error:
        return health.broken(name, error)


def _is_forbidden(error: BaseException | None) -> bool:
    """Whether a file that only others may read is at the bottom of it."""
    while error is not None:
        if isinstance(error, PermissionError):
            return True
        error = error.__cause__
    return False


# The checks.


def _bundle(inspection: Inspection) -> Finding:
    folder = inspection.config.bundle.path
    read = bundle.read(folder, verify=not inspection.options.quick)
    manifest = read.manifest
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            raise Wrong(f"{path}: missing, or not {file.size_bytes} bytes long")
    told = f"{manifest.family} {manifest.precision}, weights {manifest.licence.weights}"
    figures = {"family": manifest.family, "precision": manifest.precision}
    return health.passed("bundle", told, LIMITS["bundle"], figures)


def _voices(inspection: Inspection) -> Finding:
    from appliance.voicebox import voice_store

    try:
        manifest = inspection.manifest
    except BundleError as error:
        return health.skipped("voices", NEEDS_ROOT if _is_forbidden(error) else "not without the bundle")
    store = voice_store(inspection.config, manifest)
    problems, count = store.check(), len(store.names())
    figures = {"voices": count, "unusable": len(problems)}
    if problems:
        value = "; ".join(problems)
        return Finding("voices", Level.FAIL, value, LIMITS["voices"], REMEDIES["voices"], figures)
    return health.passed("voices", f"{count} readable", LIMITS["voices"], figures)


def _daemon(inspection: Inspection) -> Finding:
    value = f"{inspection.address}: {inspection.serving}"
    if inspection.serving != "SERVING":
        raise Wrong(value)
    return health.passed("daemon", value)


@dataclass(frozen=True)
class Spoken:
    """One synthesis as this end saw it."""

    audio_s: float
    peak: int
    """The largest sample, of 32768."""
    wall_s: float
    first_audio_s: float
    timings: pb.Timings
    backend: str


def _synthesis(inspection: Inspection) -> Finding:
    with inspection.channel() as channel:
        voice = _voice_to_use(inspection, channel)
        if isinstance(voice, Finding):
            return voice
        try:
            spoken = _speak(channel, SENTENCE, voice.name)
        except grpc.RpcError as error:
            if _status(error).code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return Finding(
                    "synthesis",
                    Level.WARN,
                    "the daemon is too busy",
                    LIMITS["synthesis"],
                    "wait, then look again",
                )
            raise Wrong(f"{_details(error)} ({_status(error).code().name})") from error
    figures = {
        "audio_s": round(spoken.audio_s, 3),
        "wall_s": round(spoken.wall_s, 3),
        "peak": spoken.peak,
        "backend": spoken.backend,
    }
    if not spoken.peak:
        raise Wrong("what it said is silence")
    value = f"{spoken.audio_s:.1f} s of audio in {spoken.wall_s:.2f} s on {spoken.backend}"
    return health.passed("synthesis", value, LIMITS["synthesis"], figures)


def _speed(inspection: Inspection) -> Finding:
    with inspection.channel() as channel:
        sight, machine = look(inspection.box), platform.identify(inspection.box.root)
        name = speed.key(inspection.manifest_sha256, machine, sight.mode)
        baseline = speed.baseline(inspection.box, name)
        voice = _voice_to_use(inspection, channel, baseline.voice if baseline else "")
        if isinstance(voice, Finding):
            return Finding("speed", Level.SKIP, voice.value)
        unfit = speed.unfit(
            machine, read(inspection.box), sight.faults, sensors.junction(inspection.box.root)
        )
        try:
            spoken = [_speak(channel, MEASURED, voice.name) for _ in range(SYNTHESES)]
        except grpc.RpcError as error:
            raise Wrong(f"{_details(error)} ({_status(error).code().name})") from error
    figures = {"key": name, "unfit": unfit or _unfit(spoken), "syntheses": SYNTHESES}
    return speed.judge(_medians(spoken, voice), baseline, figures)


def _precision(inspection: Inspection) -> Finding:
    from appliance.contract.tokens import read_vocabulary
    from appliance.engine import agreement, synthesizer
    from appliance.voicebox import Voicebox, voice_store

    config = inspection.config
    if config.engine.backend == EXACT_BACKEND:
        return health.skipped("precision", f"{EXACT_BACKEND} computes in the bundle's precision")
    read = bundle.read(config.bundle.path)
    store = voice_store(config, read.manifest)
    if not (names := store.names()):
        return health.skipped("precision", "no voice is stored; `appliance voices add` stores one")
    box = Voicebox(config, read, store, read_vocabulary(read.vocab))
    request = Request(MEASURED, names[0], agreement.NFE, SEED, box.defaults.guidance, Segmentation.UPSTREAM)
    lossy, exact = (
        synthesizer.load(read, backend=name, threads=config.engine.threads, lanes=1)
        for name in (config.engine.backend, EXACT_BACKEND)
    )
    try:
        share = agreement.share(lossy, exact, box.plan(request).segments[0])
        value, figures = f"{share:.1%} on {lossy.backend}", {"share": round(share, 4)}
    finally:
        lossy.shutdown()
        exact.shutdown()
    if share > agreement.ALLOWED:
        return Finding("precision", Level.FAIL, value, LIMITS["precision"], REMEDIES["precision"], figures)
    return health.passed("precision", value, LIMITS["precision"], figures)


def _unfit(spoken: list[Spoken]) -> str:
    busy = statistics.median(one.timings.queue_ms for one in spoken) > BUSY_MS
    return "not judged while the daemon is busy with other requests" if busy else ""


def _medians(spoken: list[Spoken], voice: pb.Voice) -> speed.Speed:
    rtf = statistics.median(one.wall_s / one.audio_s for one in spoken)
    first = statistics.median(one.first_audio_s for one in spoken)
    return speed.Speed(round(rtf, 4), round(first, 4), voice.sha256[:16])


def _voice_to_use(inspection: Inspection, channel: grpc.Channel, sha256: str = "") -> pb.Voice | Finding:
    """The voice whose recording has that hash, else the first; without any, why nothing can be said."""
    if inspection.serving != "SERVING":
        return Finding("synthesis", Level.SKIP, "the daemon is not serving")
    stub = appliance_pb2_grpc.VoicesStub(channel)
    request = pb.ListVoicesRequest(page_size=1_000)
    voices: list[pb.Voice] = list(stub.ListVoices(request, timeout=REACH_S).voices)
    if not voices:
        return Finding("synthesis", Level.SKIP, "no voice is stored; `appliance voices add` stores one")
    return next((voice for voice in voices if sha256 and voice.sha256.startswith(sha256)), voices[0])


def _speak(channel: grpc.Channel, text: str, voice: str) -> Spoken:
    """Stream one text. Raises grpc.RpcError."""
    request = pb.SynthesizeRequest(text=text, voice=voice, seed=SEED)
    request.audio_config.encoding = pb.PCM16
    begun = time.monotonic()
    pcm, header, first, timings = bytearray(), pb.Header(), 0.0, pb.Timings()
    for message in appliance_pb2_grpc.SynthesizerStub(channel).StreamSynthesize(request, timeout=SPEAK_S):
        kind = message.WhichOneof("message")
        if kind == "header":
            header = message.header
        elif kind == "audio":
            first = first or time.monotonic() - begun
            pcm += message.audio.data
        elif kind == "end":
            timings = message.end.timings
    wall_s = time.monotonic() - begun
    if not pcm or not header.sample_rate_hertz:
        raise Wrong("the daemon sent no audio")
    samples = memoryview(bytes(pcm)).cast("h")
    peak = max(max(samples), -min(samples))
    audio_s = len(samples) / header.sample_rate_hertz
    return Spoken(audio_s, peak, wall_s, first, timings, header.backend)


def _status(error: grpc.RpcError) -> grpc.Call:
    """What a stub raises is the call itself, though its declared type does not say so."""
    return cast("grpc.Call", error)


def _why(error: grpc.RpcError) -> str:
    """Why the daemon said nothing of itself; gRPC lists every address that it tried."""
    unreachable = _status(error).code() is grpc.StatusCode.UNAVAILABLE
    return "no daemon answers" if unreachable else _details(error)


def _details(error: grpc.RpcError) -> str:
    return str(_status(error).details())


CHECKS: Mapping[str, Callable[[Inspection], Finding]] = {
    "config": lambda inspection: inspection.config_finding,
    "bundle": _bundle,
    "voices": _voices,
    "daemon": _daemon,
    "synthesis": _synthesis,
    "speed": _speed,
    "precision": _precision,
}
ON_DEMAND = ("speed", "precision")
"""Run only when named: these take seconds to minutes of computing."""
NAMES = tuple(dict.fromkeys((*health.CHECKS, *CHECKS)))
LIMITS = {
    "bundle": "every file as the manifest says",
    "voices": "every stored voice can be used",
    "daemon": "SERVING",
    "synthesis": "a sentence becomes audible speech",
    "precision": "changes a sample by at most 25 % of what 32 in place of 7 steps do",
}
REMEDIES = {
    "bundle": "copy the bundle again, whole, and point bundle.path to it",
    "voices": "remove the voice that it names and add it again: appliance voices remove NAME",
    "daemon": "start it with `appliance serve`; where it is installed: sudo systemctl restart f5-appliance",
    "synthesis": "restart it: sudo systemctl restart f5-appliance; if this stays: sudo f5-support-bundle",
    "speed": "restart it: sudo systemctl restart f5-appliance",
    "precision": "set engine.backend to ort-cpu",
}
