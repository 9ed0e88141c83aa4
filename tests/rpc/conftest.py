"""A daemon's gRPC server on a free port, with a fake engine and the real voice store."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any, cast

import grpc
import numpy as np
import pytest
import pytest_asyncio
import soundfile

from appliance.config import USUAL_NFE, AudioConfig, SchedulerConfig, ServerConfig, SynthesisConfig
from appliance.contract import bundle
from appliance.contract.bundle import Manifest
from appliance.contract.mel import MelSpec
from appliance.plan import Planner
from appliance.request import Reference, Request, Segment, Timings
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.callers import Callers
from appliance.rpc.context import Context
from appliance.rpc.listen import Broadcaster
from appliance.rpc.moderation import QueueService
from appliance.rpc.requests import RequestDefaults
from appliance.rpc.roles import CallAccess
from appliance.rpc.server import RunningServer, listen, riva_services
from appliance.rpc.speaking import Components, Speaking
from appliance.rpc.synthesizer import SynthesizerService
from appliance.rpc.voices import VoicesService
from appliance.scheduler import Scheduler
from appliance.text.split import Budgets
from appliance.text.written import TextSplitter
from appliance.voices.prompts import Prompts
from appliance.voices.store import VoiceStore
from tests.daemons import BUNDLE
from tests.fakes_engine import FakeEngine, segment
from tests.patience import PATIENCE_S

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


@dataclass
class Box:
    """What the tests hold of the daemon."""

    engine: FakeEngine
    scheduler: Scheduler
    planner: SentencePlanner
    components: Components
    speaking: Speaking
    callers: Callers
    broadcaster: Broadcaster
    queue: QueueService
    store: VoiceStore
    server: RunningServer
    socket: Path
    spoken: list[tuple[Timings, float]] = field(default_factory=list)
    """What was counted, with the promised seconds to first audio."""
    arrived: list[str] = field(default_factory=list)
    """Methods of the calls that have come, in order."""
    observed: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: list[None] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def soon(self, true: Callable[[], bool]) -> None:
        """Wait for another thread, or for another task."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < end, "it did not happen"
            await asyncio.sleep(0.002)

    @contextmanager
    def held(self) -> Iterator[Event]:
        """The engine stays in its next step until the event is set or the context ends."""
        go = Event()
        self.engine.on_step = lambda: go.wait(PATIENCE_S) and None
        try:
            yield go
        finally:
            go.set()
            self.engine.on_step = lambda: None


class Arrivals(CallAccess):
    """Notes each call's method."""

    def __init__(self, arrived: list[str]) -> None:
        super().__init__()
        object.__setattr__(self, "_arrived", arrived)

    def __call__(self, method: str, context: Context) -> None:
        self._arrived.append(method.rpartition("/")[2])


@dataclass
class SentencePlanner:
    """Half a second for each sentence, whatever the segmentation; `cut` decides otherwise."""

    manifest: Manifest
    reference: Callable[[str, str], Reference]
    waits = False
    cut: Callable[[Request], list[Segment]] = lambda request: [
        segment(text, index=index, nfe=request.nfe, seed=request.seed)
        for index, text in enumerate(request.text.split(". "))
    ]

    def splitter(self, request: Request) -> TextSplitter:
        """Ten bytes a second: pieces of at least one second, the first of at most four."""
        self.reference(request.voice, request.style)
        return TextSplitter(Budgets(10, 40, 80))

    def ways(self, requests: Sequence[Request]) -> list[tuple[Request, list[Segment]]]:
        for style in requests[0].styles:
            self.reference(requests[0].voice, style)
        return [(request, self.cut(request)) for request in requests]


@pytest.fixture
def server_keys() -> dict[str, float]:
    """The section `server` of the configuration; a test may parametrize it."""
    return {}


@pytest_asyncio.fixture
async def box(tmp_path: Path, server_keys: dict[str, Any]) -> AsyncIterator[Box]:
    store = VoiceStore(
        tmp_path / "voices", tmp_path / "cache", SPEC, 0.1, memory_entries=8, max_reference_bytes=12 << 20
    )
    store.create("ann", speech_wav(), "Hello there.")
    prompts = Prompts(store)
    manifest = bundle.read(BUNDLE, verify=False).manifest
    planner = SentencePlanner(
        replace(manifest, defaults=replace(manifest.defaults, cross_fade_s=0.0)),
        prompts.reference,
    )
    loop = asyncio.get_running_loop()

    def at(when: float, act: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(loop.call_at, when, act)

    scheduler = Scheduler(SchedulerConfig(queue_length=8), call_at=at)
    spoken: list[tuple[Timings, float]] = []
    skipped: list[None] = []
    arrived: list[str] = []
    observed: list[tuple[str, str, str]] = []

    components = Components(
        planner=cast(Planner, planner),
        scheduler=scheduler,
        defaults=RequestDefaults(
            *(SynthesisConfig(max_text_characters=500), USUAL_NFE, 2.0, RATE_HZ),
            audio=AudioConfig(loudness_lufs=None),
        ),
        clock=time.monotonic,
        spoken=lambda timings, promised_s: spoken.append((timings, promised_s)),
        skipped=lambda: skipped.append(None),
    )
    config = ServerConfig(
        listen="127.0.0.1:0",
        socket=str(tmp_path / "run" / "grpc.sock"),
        **{"stream_buffer_s": 1.0, "max_calls": 12, **server_keys},
    )
    speaking = Speaking(components, config)
    callers = Callers(config, Arrivals(arrived))
    broadcaster = Broadcaster(speaking, config.message_s)
    uploads = VoicesService(store)
    queue = QueueService(scheduler.queue, components.clock, speaking.end, broadcaster)
    server = await listen(
        config,
        SynthesizerService(speaking),
        uploads,
        queue,
        lambda *call: observed.append(call),
        callers,
        riva_services(speaking, store, prompts),
    )
    engine = FakeEngine()
    scheduler.start(engine)
    thread = threading.Thread(target=scheduler.run, daemon=True)
    thread.start()
    box = Box(
        engine,
        scheduler,
        planner,
        components,
        speaking,
        callers,
        broadcaster,
        queue,
        store,
        server,
        Path(config.socket),
        spoken,
        arrived,
        observed,
        skipped,
    )
    await box.soon(lambda: bool(scheduler.engines.backend))
    yield box
    scheduler.drain()
    scheduler.cancel_all()
    await asyncio.to_thread(thread.join, 5.0)
    assert not thread.is_alive()
    await server.server.stop(grace=0.2)
    speaking.close()
    uploads.close()


@asynccontextmanager
async def connection(box: Box, *options: tuple[str, int]) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own, which is another client to the daemon."""
    own = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    async with grpc.aio.insecure_channel(box.address, options=(*own, *options)) as channel:
        yield channel


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
