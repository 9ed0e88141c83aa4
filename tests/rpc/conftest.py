"""A daemon's gRPC server on a free port, with a fake engine and the real voice store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2, status_pb2

from appliance.audio.phrases import Phrases
from appliance.config import USUAL_NFE, AudioConfig, SchedulerConfig, ServerConfig, SynthesisConfig
from appliance.contract import bundle
from appliance.contract.bundle import Manifest
from appliance.contract.sampler import Sampler
from appliance.request import Reference, Request, Segment, SpokenText, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.callers import Callers
from appliance.rpc.context import Context
from appliance.rpc.listen import Broadcaster
from appliance.rpc.moderation import QueueService
from appliance.rpc.roles import CallAccess
from appliance.rpc.server import RunningServer, listen, riva_services
from appliance.rpc.speaking import Speaking
from appliance.rpc.status import DETAILS_KEY
from appliance.rpc.synthesizer import SynthesizerService
from appliance.rpc.voices import VoicesService
from appliance.scheduler import Scheduler
from appliance.serve.held import HeldFile
from appliance.speech.plan import Planner
from appliance.speech.speech import Speech
from appliance.speech.wish import Choices
from appliance.text.normalise import normalise
from appliance.text.pieces.split import Budgets
from appliance.voices.prompts import Prompts
from appliance.voices.records import Place
from appliance.voices.store import VoiceStore
from tests.harness.daemons import BUNDLE, store_in
from tests.harness.engine import FakeEngine
from tests.harness.patience import PATIENCE_S
from tests.harness.segments import segment
from tests.harness.sounds import wav

RATE_HZ = 24_000


def speech_wav(seconds: float = 2.0, *, level: float = 0.1, **options: Any) -> bytes:
    return wav(seconds, level=level, **options)


def request(text: str = "one. two", **fields: Any) -> pb.SynthesizeRequest:
    return pb.SynthesizeRequest(**{"text": text, "voice": "ann", "nfe_steps": 3, "seed": 5, **fields})


def start(call: Any) -> asyncio.Future[Any]:
    """Begin a call; its reply can be awaited later."""
    return asyncio.ensure_future(reply_of(call))


async def reply_of(call: Any) -> Any:
    """A call's reply as a coroutine, from which a caller can make a task."""
    return await call


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The details of an error by their type."""
    details = {}
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            assert (status.code, status.message) == (error.code().value[0], error.details())
            for detail in status.details:
                kind = getattr(error_details_pb2, detail.TypeName().rpartition(".")[2])
                details[kind.__name__] = kind()
                detail.Unpack(details[kind.__name__])
    return details


async def refusal(call: Any) -> tuple[grpc.aio.AioRpcError, dict[str, Any]]:
    """The error of a call, and the error's details by type."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(reply_of(call), PATIENCE_S)
    return caught.value, details_of(caught.value)


async def refused(
    call: Any,
    words: str = "",
    *,
    code: str = "INVALID_ARGUMENT",
    reason: str = "",
    field: str = "",
    exactly: str | None = None,
) -> dict[str, Any]:
    """Check the refusal of a call: status, words of its message or the whole message, reason, wrong field.

    Returns the details by type.
    """
    error, details = await refusal(call)
    message = error.details() or ""
    assert error.code().name == code, message
    assert words in message and exactly in (None, message), message
    assert not reason or details["ErrorInfo"].reason == reason
    assert not field or details["BadRequest"].field_violations[0].field == field
    return details


async def read(call: Any) -> tuple[pb.Header, int]:
    """A stream's header, and its number of samples."""
    header, samples = pb.Header(), 0
    while (message := await call.read()) is not grpc.aio.EOF:
        if message.HasField("header"):
            header = message.header
        samples += len(message.audio.data) // 2
    return header, samples


class Follower:
    """Takes the messages of a stream in a separate task."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.gone = False

    def take(self, message: Any) -> None:
        raise NotImplementedError

    async def soon(self, true: Callable[[], object]) -> None:
        while not true():
            assert not self.gone
            self.told.clear()
            await asyncio.wait_for(self.told.wait(), PATIENCE_S)

    @asynccontextmanager
    async def following(self, call: Any, begun: Callable[[], object]) -> AsyncIterator[None]:
        """Follow a call from its begin to the end of the context; fail if the call ends earlier."""
        task = asyncio.ensure_future(self._follow(call))
        try:
            await self.soon(begun)
            yield
            assert not self.gone
        finally:
            call.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _follow(self, call: Any) -> None:
        try:
            async for message in call:
                self.take(message)
                self.told.set()
        finally:
            self.gone = True
            self.told.set()


def sentences(count: int, letter: str = "t") -> str:
    return ". ".join(f"{letter}{i}" for i in range(count))


@dataclass
class Box:
    """The parts of the daemon that tests use."""

    engine: FakeEngine
    scheduler: Scheduler
    planner: SentencePlanner
    current: Any
    """Holder of the Speech in use."""
    speaking: Speaking
    callers: Callers
    broadcaster: Broadcaster
    queue: QueueService
    kept: HeldFile
    store: VoiceStore
    server: RunningServer
    socket: Path
    spoken: list[tuple[Timings, float]] = field(default_factory=list)
    """Timings that the daemon counted, with the promised seconds to first audio."""
    arrived: list[str] = field(default_factory=list)
    """Methods of the calls so far, in order."""
    observed: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: list[None] = field(default_factory=list)
    channel: grpc.aio.Channel = field(init=False)

    @property
    def synthesizer(self) -> appliance_pb2_grpc.SynthesizerStub:
        return appliance_pb2_grpc.SynthesizerStub(self.channel)

    def say(self, text: str = "one. two", **fields: Any) -> Any:
        """A unary call."""
        return self.synthesizer.Synthesize(request(text, **fields))

    def stream(self, text: str = "one. two", **fields: Any) -> Any:
        return self.synthesizer.StreamSynthesize(request(text, **fields))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def opened(self) -> list[str]:
        """Texts of the segments whose lanes the engine opened, in order."""
        return [name.partition(" ")[2] for name in self.engine.calls if name.startswith("open ")]

    @property
    def speech(self) -> Speech:
        speech: Speech = self.current.speech
        return speech

    def change(self, **changes: Any) -> None:
        """Replace the Speech in use, as a reload or a swap does."""
        self.current.speech = replace(self.speech, **changes)

    def set_sampler(
        self, sampler: Sampler, guidance: float = 2.0, nfe: int = USUAL_NFE, **changes: Any
    ) -> None:
        """Replace the sampler, as a swap to another bundle does."""
        now = self.planner.manifest
        manifest = replace(now, sampler=sampler, defaults=replace(now.defaults, guidance=guidance))
        usual = replace(self.speech.usual, guidance=guidance, nfe_steps=nfe)
        self.change(planner=replace(self.planner, manifest=manifest), usual=usual, **changes)

    def set_at_hand(self, at_hand: bool) -> None:
        """Pretend that voices are in memory, or are not."""
        self.store.index.at_hand = lambda *of: at_hand  # type: ignore[method-assign]

    @contextmanager
    def planning(self, text: str = "") -> Iterator[tuple[Event, Event]]:
        """Stop the planner at this text, or at any: the planner sets the first event, and waits for the
        second."""
        reached, go, plain = Event(), Event(), self.planner.cut

        def cut(inputs: Request) -> list[Segment]:
            if inputs.text == text or not text:
                reached.set()
                assert go.wait(PATIENCE_S)
            return plain(inputs)

        self.planner.cut = cut
        try:
            yield reached, go
        finally:
            go.set()
            self.planner.cut = plain

    def record(self) -> list[Request]:
        """List that gets every request that is planned from now on."""
        requests, plain = list[Request](), self.planner.cut
        self.planner.cut = lambda request: requests.append(request) or plain(request)
        return requests

    async def soon(self, true: Callable[[], bool]) -> None:
        """Poll until another thread or another task makes `true` return a true value."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < end, "it did not happen"
            await asyncio.sleep(0.002)

    @contextmanager
    def held(self) -> Iterator[Event]:
        """Stop the engine in its next step until the event is set or the context ends."""
        go = Event()
        self.engine.on_step = lambda: go.wait(PATIENCE_S) and None
        try:
            yield go
        finally:
            go.set()
            self.engine.on_step = lambda: None


class Arrivals(CallAccess):
    """Records each call's method."""

    def __init__(self, arrived: list[str]) -> None:
        super().__init__()
        object.__setattr__(self, "_arrived", arrived)

    def __call__(self, method: str, context: Context) -> None:
        self._arrived.append(method.rpartition("/")[2])


@dataclass
class FakeFront:
    """Front end that does not rewrite texts."""

    languages: tuple[str, ...] = ()
    language_of: Callable[[str], str] = lambda text: ""
    speakable: Callable[..., SpokenText] = lambda text, *_, **__: SpokenText(normalise(text))
    choices: Any = field(default_factory=lambda: SimpleNamespace(channels={}))


@dataclass
class SentencePlanner:
    """Plans half a second for each sentence, whatever the segmentation; tests may replace `cut`."""

    manifest: Manifest
    reference: Callable[[str, str], Reference]
    cut: Callable[[Request], list[Segment]] = lambda request: [
        segment(text, index=index, nfe=request.nfe, seed=request.seed)
        for index, text in enumerate(request.text.split(". "))
    ]

    def budgets(self, request: Request) -> Budgets:
        """Budgets at ten bytes a second: pieces of one second or more, the first of four or less."""
        self.reference(request.voice, request.style)
        return Budgets(10, 40, 80)

    def plan(self, request: Request) -> list[Segment]:
        return self.cut(request)

    def ways(self, requests: Sequence[Request]) -> Generator[int, None, list[tuple[Request, list[Segment]]]]:
        for speaker in requests[0].speakers:
            self.reference(*speaker)
        yield len(requests[0].text)
        return [(request, self.cut(request)) for request in requests]


@pytest.fixture
def server_keys() -> dict[str, float]:
    """The section `server` of the configuration; a test may parametrize it."""
    return {}


@pytest_asyncio.fixture
async def box(tmp_path: Path, server_keys: dict[str, Any]) -> AsyncIterator[Box]:
    store = store_in(tmp_path, memory_entries=8, max_reference_bytes=12 << 20)
    store.index.at_hand = lambda *of: False  # type: ignore[method-assign]
    store.create(Place("ann"), speech_wav(), "Hello there.")
    prompts = Prompts(store.index)
    manifest = bundle.read(BUNDLE, verify=False).manifest
    planner = SentencePlanner(
        replace(manifest, defaults=replace(manifest.defaults, cross_fade_s=0.0)), prompts.reference
    )
    loop = asyncio.get_running_loop()

    def at(when: float, act: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(loop.call_at, when, act)

    scheduler = Scheduler(SchedulerConfig(queue_length=8), call_at=at)
    spoken: list[tuple[Timings, float]] = []
    skipped: list[None] = []
    arrived: list[str] = []
    observed: list[tuple[str, str, str]] = []

    settings = SynthesisConfig(max_text_characters=500), AudioConfig(loudness_lufs=None)
    usual = Choices(nfe_steps=USUAL_NFE, guidance=2.0, sample_rate_hz=RATE_HZ)
    front, plan = cast(Any, FakeFront()), cast(Planner, planner)
    speech = Speech(front, plan, store.index, *settings, usual, scheduler, Phrases(0), generation=0)
    current, health = SimpleNamespace(speech=speech), SimpleNamespace(degraded="")
    counters = SimpleNamespace(
        spoken=lambda timings, promised_s: spoken.append((timings, promised_s)),
        skipped=lambda: skipped.append(None),
    )
    server_keys = {"stream_buffer_s": 1.0, "max_calls": 12, **server_keys}
    config = ServerConfig(listen="127.0.0.1:0", socket=str(tmp_path / "run" / "grpc.sock"), **server_keys)
    speaking = Speaking(current, config, counters, health)
    callers = Callers(config, Arrivals(arrived))
    broadcaster = Broadcaster(speaking, config.message_s)
    uploads = VoicesService(store)
    held_file = HeldFile(tmp_path, scheduler.queue)
    queue = QueueService(scheduler.queue, time.monotonic, speaking.end, broadcaster, lambda: held_file.save())
    riva, observe = riva_services(speaking, store.index, prompts), lambda *call: observed.append(call)
    server = await listen(config, SynthesizerService(speaking), uploads, queue, observe, callers, riva)
    engine = FakeEngine()
    scheduler.start(engine)
    thread = threading.Thread(target=scheduler.run, daemon=True)
    thread.start()
    services = (speaking, callers, broadcaster, queue, held_file, store, server, Path(config.socket))
    box = Box(engine, scheduler, planner, current, *services, spoken, arrived, observed, skipped)
    await box.soon(lambda: bool(scheduler.engines.backend))
    sends_all = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(box.address, options=sends_all) as box.channel:
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
    """A separate connection, which is another client to the daemon."""
    own = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    async with grpc.aio.insecure_channel(box.address, options=(*own, *options)) as channel:
        yield channel


@pytest.fixture
def channel(box: Box) -> grpc.aio.Channel:
    return box.channel


@pytest.fixture
def synthesizer(box: Box) -> appliance_pb2_grpc.SynthesizerStub:
    return box.synthesizer


@pytest.fixture
def voices(box: Box) -> appliance_pb2_grpc.VoicesStub:
    return appliance_pb2_grpc.VoicesStub(box.channel)
