"""The daemon's life: ready, speaking, cancelled, drained; and its refusals to start."""

import io
import itertools
import json
import math
import os
import re
import shutil
import signal
import threading
import time
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance.audio.loudness import loudness
from appliance.box.checks.finding import Finding, Level
from appliance.box.checks.health_json import HealthRun
from appliance.config import load
from appliance.contract import bundle
from appliance.engine.cuda import fault_of
from appliance.engine.engine import Synthesizer
from appliance.errors import EngineFault, Exit
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.serve import daemon
from appliance.serve.metrics import Metrics
from tests.harness.daemons import (
    BUNDLE,
    ROOT,
    SMALL_WINDOW,
    Program,
    Running,
    Shared,
    followed,
    reference_wav,
    request,
    running,
    shared,
    start,
    write_config,
)
from tests.harness.patience import PATIENCE_S, until

pytestmark = pytest.mark.slow

LONG = ("Thanks for the follow, welcome to the stream. " * 40).strip()
HALF = LONG[: len(LONG) // 2]


box = shared()


def test_ready_says_health_and_the_pages(box: Running) -> None:
    with box.channel() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "appliance.v1.Synthesizer", "appliance.v1.Voices"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
    assert box.http("/livez") == (200, "ok\n")
    assert box.http("/readyz") == (200, "ok\n")
    assert box.http("/")[0] == 404
    assert "f5_ready 1.0" in box.http("/metrics")[1]


def test_the_licence_is_in_the_log(box: Running) -> None:
    licence = bundle.read(BUNDLE, verify=False).manifest.licence
    assert f"weights: {licence.weights}, from {licence.source}" in box.log


def test_a_voice_of_characters_loads_no_chinese_dictionary(box: Running, tmp_path: Path) -> None:
    folder = shutil.copytree(BUNDLE, tmp_path / "bundle")
    manifest = bundle.read(folder).manifest
    bundle.write(folder, replace(manifest, text=replace(manifest.text, tokenizer="char")))
    with running(tmp_path, speaks_from=folder) as other:
        loaded = [Path(f"/proc/{one.process.pid}/maps").read_text() for one in (box, other)]
    assert ["rjieba" in maps for maps in loaded] == [True, False]


def metric(box: Running, name: str) -> float:
    """Value of a metric; 0 before it is on the page."""
    lines = box.http("/metrics")[1].splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def test_a_cached_phrase_is_counted_and_sounds_like_a_new_one(bundles_box: Shared) -> None:
    counts = ("f5_phrases_hits", "f5_phrases_misses", "f5_phrases_bytes")
    before = [metric(bundles_box, name) for name in counts]
    asked = request(segmentation=pb.LOW_LATENCY, word_timings=True)
    asked.ClearField("seed")
    with bundles_box.channel() as channel:
        stub = bundles_box.synthesizer(channel)
        fresh = stub.Synthesize(asked, timeout=PATIENCE_S)  # only replies with a seed are cached
        asked.seed = fresh.header.seed
        replies = [stub.Synthesize(asked, timeout=PATIENCE_S) for _ in range(3)]
    hits, misses, kept = (metric(bundles_box, name) - then for name, then in zip(counts, before, strict=True))
    assert not fresh.header.cached
    assert [reply.header.cached for reply in replies] == [False, True, True]
    for reply in replies:
        assert reply.audio == fresh.audio
        assert reply.words == fresh.words and reply.header.words == fresh.header.words
    assert (hits, misses) == (2.0, 1.0)
    with wave.open(io.BytesIO(fresh.audio)) as sent:
        assert 4 * sent.getnframes() <= kept < 1 << 20  # stored as floats, and all of the reply


def test_a_refusal_is_counted(box: Running) -> None:
    rejects = 'f5_rejects_total{reason="VOICE_NOT_FOUND"}'
    before = metric(box, rejects)
    with box.channel() as channel, pytest.raises(grpc.RpcError):
        box.synthesizer(channel).Synthesize(request(voice="bob"), timeout=PATIENCE_S)
    assert metric(box, rejects) == before + 1.0


def test_each_query_of_the_dashboard_has_its_series(box: Running) -> None:
    """Compares names and labels, after a reply, a refusal and a run of f5-health."""
    with box.channel() as channel:
        box.synthesizer(channel).Synthesize(request(), timeout=PATIENCE_S)
        with pytest.raises(grpc.RpcError):
            box.synthesizer(channel).Synthesize(request(voice="bob"), timeout=PATIENCE_S)
    health = Metrics()
    health.watch_health(lambda: HealthRun((Finding("disk", Level.WARN, "full"),), 1.0))
    page = box.http("/metrics")[1] + health.text().decode()
    series = [
        (name, dict(re.findall(r'(\w+)="([^"]*)"', labels)))
        for name, labels in re.findall(r"^(f5_\w+)({.*})? ", page, re.MULTILINE)
    ]
    panels = json.loads((ROOT / "configs" / "grafana.json").read_text())["panels"]
    for target in (target for panel in panels for target in panel["targets"]):
        query = target["expr"]
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) - {"instance"}
        shown.update(name for names in re.findall(r"by \(([^)]*)\)", query) for name in names.split(", "))
        for name, selector in re.findall(r"(f5_\w+)({[^}]*})", query):
            wanted = dict(re.findall(r'(\w+)="([^"]*)"', selector)).items()
            found = [labels for other, labels in series if other == name and wanted <= labels.items()]
            assert found and shown <= found[0].keys(), (query, name)


def test_a_drain_waits_for_readers_of_finished_replies(tmp_path: Path) -> None:
    with running(tmp_path, server={"stream_buffer_s": 600.0, "drain_s": 3_600.0}) as box:
        box.add_voice()
        with box.channel() as channel:
            # The reply exceeds the transport windows: most of it waits in the daemon until it is read.
            asked = request(LONG, nfe_steps=1, audio_config={"sample_rate_hertz": 48_000})
            call = box.synthesizer(channel).StreamSynthesize(asked)
            messages = [next(call)]
            box.process.send_signal(signal.SIGTERM)
            box.until("draining")
            # The test reads nothing before the engine is done: a fast reader would leave nothing waiting.
            until(lambda: 'state="sending"} 1.0' in box.http("/metrics")[1])
            # The reader is slow for longer than the server's default grace.
            begun = time.monotonic()
            while time.monotonic() - begun < 1.5 * daemon.GRACE_S:
                messages.extend(itertools.islice(call, 4))
                time.sleep(0.04)
            messages.extend(call)
        assert messages[-1].WhichOneof("message") == "end"
        assert messages[-1].end.samples == sum(len(m.audio.data) // 2 for m in messages)
        assert box.process.wait(PATIENCE_S) == Exit.OK
        assert "Traceback" not in "\n".join(box.lines)


@pytest.mark.parametrize(
    ("drain_s", "signals"), [(0.0, [signal.SIGTERM]), (300.0, [signal.SIGINT, signal.SIGTERM])]
)
def test_ends_of_a_drain(tmp_path: Path, drain_s: float, signals: list[signal.Signals]) -> None:
    with running(tmp_path, server={"drain_s": drain_s, "stream_buffer_s": 0.0}) as box:
        box.add_voice()
        with box.channel() as channel:
            # The reply exceeds the transport windows, and an unread reply cannot end.
            asked = request(LONG, audio_config={"sample_rate_hertz": 48_000})
            call = box.synthesizer(channel).StreamSynthesize(asked, timeout=PATIENCE_S)
            watch = appliance_pb2_grpc.QueueStub(channel).WatchQueue(pb.WatchQueueRequest())
            session = box.synthesizer(channel).Session(iter((over := threading.Event()).wait, True))
            next(call), next(watch)
            for number in signals:
                box.process.send_signal(number)
                box.until("draining")
            # The daemon ends although nobody reads, and without waiting for drain_s.
            assert box.process.wait(PATIENCE_S) == Exit.OK
            over.set()
            for one, why in ((call, "stopped before"), (watch, "draining"), (session, "draining")):
                with pytest.raises(grpc.RpcError) as caught:
                    list(one)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert why in str(caught.value.details())


def test_readers_that_do_not_read_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """There is one long stream more than lanes; the client takes no more than a small window of each."""
    server = {"stream_buffer_s": 600.0, "drain_s": 3_600.0}
    with running(tmp_path, engine={"lanes": 2}, server=server) as box:
        box.add_voice()
        with grpc.insecure_channel(box.address, options=SMALL_WINDOW) as channel:
            # BULK has no promise, so that a busy machine refuses no request for lateness.
            fields = {"playout": pb.OVERLAP, "priority": pb.BULK}
            asked = request(LONG[:1_300], nfe_steps=1, audio_config={"sample_rate_hertz": 48_000}, **fields)
            calls = [box.synthesizer(channel).StreamSynthesize(asked) for _ in range(3)]
            for call in calls:
                assert next(call).WhichOneof("message") == "header"
            until(lambda: 'f5_requests_now{state="sending"} 3.0' in box.http("/metrics")[1])
            assert box.stop() == Exit.OK, "server.drain_s is an hour"
            for call in calls:
                with pytest.raises(grpc.RpcError) as caught:
                    list(call)
                assert caught.value.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
        assert "Traceback" not in "".join(box.lines)


@pytest.mark.parametrize("how", ["module", "package"])
def test_a_hangup_during_the_start_reloads_later(tmp_path: Path, how: str) -> None:
    """The signal comes when Python runs the command's first line, whose imports take half a second."""
    program = ["-m", "appliance"]
    if how == "package":
        (tmp_path / "bin").mkdir()
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib/f5-appliance").symlink_to(ROOT)
        program = [shutil.copy(ROOT / "scripts/debian/appliance", tmp_path / "bin")]
    command = ("-X", "importtime", *program, "serve", "--config", write_config(tmp_path))
    with followed(Program(start(*command)), ready=False) as starting:
        starting.until("import time:.* argparse")
        starting.process.send_signal(signal.SIGHUP)
        starting.until("reload: configuration read, 0 voices")
        starting.until("ready on")
        assert starting.stop() == Exit.OK


def rewrite(box: Running, **sections: dict[str, Any]) -> None:
    """Change the configuration's file, and reload it."""
    path = box.folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for section, values in sections.items():
        config.setdefault(section, {}).update(values)
    path.write_text(yaml.safe_dump(config))
    box.forget()
    box.process.send_signal(signal.SIGHUP)
    box.until("reload:")


def loudness_of(reply: pb.SynthesizeResponse) -> float:
    samples = np.frombuffer(reply.audio[44:].partition(b"LIST")[0], "<i2") / np.float32(32_767)
    return loudness(samples, reply.header.sample_rate_hertz)


def test_a_reload_changes_what_requests_get_while_streams_go_on(tmp_path: Path) -> None:
    removed = {"engine": {"backend": "openvino"}, "scheduler": {"policy": "fifo"}}
    with running(tmp_path, **removed) as box, box.channel() as channel:
        for setting in ("engine.backend: openvino", "scheduler.policy: fifo"):
            box.until(f"{setting} was removed in 0.25")
        box.add_voice()
        stub = box.synthesizer(channel)
        call = stub.StreamSynthesize(request(HALF, nfe_steps=6))
        messages = [next(call)]
        assert messages[0].header.backend == "ort-cpu"

        rewrite(box, synthesis={"nfe": 3, "max_nfe": 20, "guidance": 1.5}, scheduler={"user_rate": 1.0})
        box.until("reload: configuration read, 1 voices")
        reply = stub.Synthesize(request(user_key="bob", playout=pb.OVERLAP), timeout=PATIENCE_S)
        assert (reply.header.nfe_steps, reply.header.guidance) == (3, 1.5)
        for asked, words in (
            (request(user_key="bob"), "1 requests a minute are allowed for one user"),
            (request(nfe_steps=21), "between 1 and 20, not 21"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Synthesize(asked, timeout=PATIENCE_S)
            assert words in str(caught.value.details())

        rewrite(box, synthesis={"nfe": 300})
        box.until("reload: keeping the old configuration: .*nfe: must be between 1 and 64, not 300")
        asked = request(playout=pb.OVERLAP)
        assert stub.Synthesize(asked, timeout=PATIENCE_S).header.nfe_steps == 3

        made = loudness_of(stub.Synthesize(asked, timeout=PATIENCE_S))
        audio = {"loudness_lufs": -30.0, "channel_gain_db": {"alerts": -10.0}}
        rewrite(box, synthesis={"nfe": 4}, engine={"threads": 2}, server={"drain_s": 7.0}, audio=audio)
        box.until("the changes in engine, server need a restart")
        box.until("reload: configuration read")
        reply = stub.Synthesize(asked, timeout=PATIENCE_S)
        assert reply.header.nfe_steps == 4
        assert (made, loudness_of(reply)) == pytest.approx((-18.0, -30.0), abs=0.2)
        asked.channel = "alerts"
        assert loudness_of(stub.Synthesize(asked, timeout=PATIENCE_S)) == pytest.approx(-40.0, abs=0.2)

        messages.extend(call)
        assert messages[-1].WhichOneof("message") == "end"
        assert messages[0].header.nfe_steps == 6
        assert box.stop() == Exit.OK
        assert "Traceback" not in "".join(box.lines)


@pytest.mark.parametrize(("fatal", "status", "calls", "words"), [
    (EngineFault("odd"), Exit.ENGINE, ["INTERNAL"] * 3, "the engine fails every call: EngineFault: odd"),
    (fault_of("CUDA failure 700"), Exit.DEVICE, ["UNAVAILABLE"], "700; the daemon has to start"),
])  # fmt: skip
def test_a_fault_ends_a_request_and_a_dead_engine_the_daemon(
    fatal: EngineFault,
    status: Exit,
    calls: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Some faults need a new process, which systemd starts."""
    path = write_config(tmp_path)
    address = load(path).server.listen
    faults = [0.0]
    real = Synthesizer.step

    def step(self: Synthesizer, lane_ids: Any) -> None:
        if faults[0]:
            faults[0] -= 1
            raise fatal if faults[0] == math.inf else EngineFault("one call")
        real(self, lane_ids)

    monkeypatch.setattr(Synthesizer, "step", step)
    seen: list[Any] = []

    def use() -> None:
        states = health_pb2.HealthCheckResponse.ServingStatus
        with grpc.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            health = stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True)
            while states.Name(next(health).status) != "SERVING":
                pass
            appliance_pb2_grpc.VoicesStub(channel).CreateVoice(
                pb.CreateVoiceRequest(name="ann", audio=reference_wav(), transcript="Some call me nature."),
                timeout=PATIENCE_S,
            )
            for failing in (1, 0, *[math.inf] * len(calls)):
                faults[0] = failing
                try:
                    appliance_pb2_grpc.SynthesizerStub(channel).Synthesize(request(), timeout=PATIENCE_S)
                    seen.append("OK")
                except grpc.RpcError as error:
                    seen.append(error.code().name)
            seen.append(states.Name(next(health).status))

    def use_and_end() -> None:
        try:
            use()
        finally:
            if not ended.wait(PATIENCE_S):
                os.kill(os.getpid(), signal.SIGTERM)

    ended = threading.Event()
    client = threading.Thread(target=use_and_end)
    client.start()
    code = daemon.main(path, [])
    ended.set()
    assert code == status
    client.join(PATIENCE_S)
    assert seen == ["INTERNAL", "OK", *calls, "NOT_SERVING"]
    assert words in capsys.readouterr().err
