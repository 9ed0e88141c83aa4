"""A daemon's gRPC face on a free port, with a fake engine behind it and the real voice store."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest
import pytest_asyncio
import soundfile

from appliance.audio import encode, reference
from appliance.audio.decode import decode
from appliance.config import ServerConfig, SynthesisConfig
from appliance.contract.mel import MelSpec
from appliance.job import FloatArray, Request, Timings
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.requests import Defaults
from appliance.rpc.server import Listening, listen
from appliance.rpc.synthesizer import Plan, Speech, Synthesizer
from appliance.rpc.voices import Voices
from appliance.scheduler import Scheduler
from appliance.voices import Features, VoiceStore
from tests.fakes_engine import FakeEngine, segment

RATE_HZ = 24_000
SPEC = MelSpec("vocos")


def speech_wav(
    seconds: float = 2.0, *, level: float = 0.1, kind: str = "WAV", rate_hz: int = 16_000
) -> bytes:
    """A file with a hum in it."""
    t = np.arange(int(rate_hz * seconds)) / rate_hz
    buffer = io.BytesIO()
    soundfile.write(buffer, level * np.sin(2 * np.pi * 220 * t), rate_hz, format=kind)
    return buffer.getvalue()


class Preparation:
    """The real preparation for a model with Vocos mels."""

    fingerprint = SPEC.fingerprint
    sample_rate_hz = RATE_HZ

    def features(self, audio: bytes) -> Features:
        made = reference.prepare_reference("", audio, ".", SPEC, 0.1)
        return Features(made.samples, made.log_mel, made.rms)

    def transcript(self, text: str) -> str:
        return reference.complete_transcript(text)

    def warnings(self, audio: bytes) -> tuple[str, ...]:
        return reference.warnings(reference.trim(decode(audio)))


class Resampling:
    """A join without cross-fade."""

    def __init__(self, rate_hz: int) -> None:
        self._resampler = encode.Resampler(RATE_HZ, rate_hz)

    def push(self, samples: FloatArray, *, last: bool) -> FloatArray:
        return self._resampler.push(samples, last=last)


@dataclass
class Box:
    """What the tests hold of the daemon."""

    engine: FakeEngine
    scheduler: Scheduler
    store: VoiceStore
    listening: Listening
    socket: Path
    spoken: list[Timings] = field(default_factory=list)
    observed: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listening.port}"

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for another thread."""
        end = time.monotonic() + 5.0
        while not true():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.002)


def plan_with(store: VoiceStore) -> Callable[[Request], Plan]:
    """A segment of half a second for each sentence."""

    def plan(request: Request) -> Plan:
        store.reference(request.voice)
        texts = request.text.split(". ")
        segments = [
            segment(text, index=index, nfe=request.nfe, seed=request.seed) for index, text in enumerate(texts)
        ]
        return Plan(tuple(segments), Resampling(request.sample_rate_hz))

    return plan


@pytest_asyncio.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    store = VoiceStore(
        tmp_path / "voices", tmp_path / "cache", Preparation(), memory_entries=8, max_reference_bytes=12 << 20
    )
    store.create("ann", speech_wav(), "Hello there.")
    workers = ThreadPoolExecutor(2)
    scheduler = Scheduler(queue_length=2)
    spoken: list[Timings] = []
    observed: list[tuple[str, str, str]] = []

    class Observer:
        def spoken(self, timings: Timings) -> None:
            spoken.append(timings)

    speech = Speech(
        plan=plan_with(store),
        workers=workers,
        scheduler=scheduler,
        defaults=lambda: Defaults(SynthesisConfig(max_text_characters=500), 2.0, RATE_HZ),
        observer=Observer(),
        clock=time.monotonic,
        backend=lambda: "fake (f64)",
    )
    server = ServerConfig(
        listen="127.0.0.1:0", socket=str(tmp_path / "run" / "grpc.sock"), stream_buffer_s=1.0
    )
    listening = await listen(
        server,
        Synthesizer(speech, server),
        Voices(lambda: store, workers),
        lambda *call: observed.append(call),
    )
    engine = FakeEngine()
    thread = threading.Thread(target=scheduler.run, args=(engine,), daemon=True)
    thread.start()
    yield Box(engine, scheduler, store, listening, Path(server.socket), spoken, observed)
    scheduler.drain()
    scheduler.cancel_all()
    thread.join(5.0)
    assert not thread.is_alive()
    await listening.server.stop(grace=0.2)
    workers.shutdown()


@pytest_asyncio.fixture
async def channel(box: Box) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(
        box.address, options=(("grpc.max_send_message_length", -1),)
    ) as channel:
        yield channel


@pytest.fixture
def synthesizer(channel: grpc.aio.Channel) -> appliance_pb2_grpc.SynthesizerStub:
    return appliance_pb2_grpc.SynthesizerStub(channel)


@pytest.fixture
def voices(channel: grpc.aio.Channel) -> appliance_pb2_grpc.VoicesStub:
    return appliance_pb2_grpc.VoicesStub(channel)
