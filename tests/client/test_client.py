"""The client against a daemon process, and against a server that gives a daemon's rare answers."""

import asyncio
import contextlib
import inspect
import re
import signal
import socket
import sys
import threading
import wave
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance.client import (
    AsyncClient,
    CallFailed,
    Client,
    End,
    Header,
    Options,
    PausedChannels,
    Piece,
    UtteranceAudio,
    UtteranceBegin,
    UtteranceEnd,
    UtteranceError,
    connection,
    retries,
)
from appliance.client.messages import synthesize_request
from appliance.options import OPTIONS, SHORT
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from tests.harness.daemons import ROOT, Running, finished, free_port, shared
from tests.harness.patience import PATIENCE_S, until

TEXT = "Thanks for the follow, welcome to the stream."
LONG = " ".join([TEXT] * 8)
TRANSCRIPT = "Some call me nature, others call me mother nature."

box = shared()


@pytest.fixture
def client(box: Running) -> Iterator[Client]:
    with Client(box.address) as client:
        yield client


BOTH = pytest.mark.parametrize("kind", [Client, AsyncClient])


@contextlib.asynccontextmanager
async def connected(kind: type, address: str, **options: Any) -> AsyncIterator[Any]:
    """A client of either kind; `of` unifies the results of both."""
    client = kind(address, own_connection=True, **options)
    async with contextlib.AsyncExitStack() as stack:
        if kind is AsyncClient:
            yield await stack.enter_async_context(client)
        else:
            yield stack.enter_context(client)


async def each(events: Any) -> AsyncIterator[Any]:
    """The events of a stream of either client."""
    if hasattr(events, "__aiter__"):
        async for event in events:
            yield event
    else:
        for event in events:
            yield event


async def of(made: Any) -> Any:
    """Result of a call; for a stream, the list of its events."""
    if hasattr(made, "__aiter__") or isinstance(made, Iterator):
        return [event async for event in each(made)]
    return await made if inspect.isawaitable(made) else made


@BOTH
@pytest.mark.slow
async def test_a_message_and_a_stream_hold_the_same_audio(box: Running, kind: type) -> None:
    options: Options = {"seed": 3, "segmentation": "low_latency", "encoding": "pcm16", "rate": 16_000}
    async with connected(kind, box.address) as client:
        whole = await of(client.speak(LONG, "ann", **options))
        streamed = await of(client.stream(LONG, "ann", **options).reply())
    assert whole.audio == streamed.audio
    assert whole.header.request_id != streamed.header.request_id
    for header in (whole.header, streamed.header):
        header.ClearField("request_id")
        header.ClearField("promised_ms")
    assert whole.header == streamed.header and whole.header.seed == 3
    assert whole.audio_s == pytest.approx(whole.timings.audio_ms / 1e3, abs=1e-3)
    assert 0.0 < streamed.first_audio_s < streamed.wall_s
    assert whole.first_audio_s == whole.wall_s


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_burst_on_a_new_connection_arrives_in_order(box: Running, streamed: bool) -> None:
    order: list[tuple[float, int]] = []

    async def say(client: AsyncClient, number: int) -> None:
        options: Options = {"channel": "burst", "request_id": f"burst-{streamed}-{number}"}
        if streamed:
            header = (await client.stream(TEXT, "ann", **options).reply()).header
        else:
            header = (await client.speak(TEXT, "ann", **options)).header
        order.append((header.promised_ms, number))

    async with connected(AsyncClient, box.address) as client:
        await asyncio.gather(*(say(client, number) for number in range(12)))
        await client.clear("burst")
    assert [number for _, number in sorted(order)] == list(range(12))


def test_the_duration_of_a_wav_leaves_out_its_header(client: Client, tmp_path: Path) -> None:
    reply = client.speak(TEXT, "ann")
    (tmp_path / "a.wav").write_bytes(reply.audio)
    with wave.open(str(tmp_path / "a.wav")) as audio:
        assert reply.audio_s == audio.getnframes() / audio.getframerate()


@BOTH
async def test_events_of_a_stream(box: Running, kind: type) -> None:
    """A header, pieces without gaps in the order of their arrival, an end."""
    async with connected(kind, box.address) as client:
        header, *pieces, end = await of(client.stream(LONG, "ann"))
    assert isinstance(header, Header) and isinstance(end, End)
    offset, arrived = 0, 0.0
    for piece in pieces:
        assert isinstance(piece, Piece)
        assert piece.sample_offset == offset and piece.arrived >= arrived
        offset, arrived = offset + len(piece.data) // 2, piece.arrived
    assert end.samples == offset > 0
    assert {piece.segment for piece in pieces} == set(range(header.segments))


@BOTH
async def test_cancel(box: Running, kind: type) -> None:
    """Client cancels from another thread, AsyncClient in the same thread."""
    received = []
    async with connected(kind, box.address) as client:
        stream = client.stream(LONG, "ann")
        with pytest.raises(CallFailed) as caught:
            async for event in each(stream):
                received.append(event)
                if isinstance(event, Piece):
                    own = threading.Thread(target=stream.cancel).start
                    (own if kind is Client else stream.cancel)()
    assert caught.value.status == "CANCELLED"
    assert not any(isinstance(event, End) for event in received)


async def test_a_cancelled_task_stays_cancelled(box: Running) -> None:
    async with connected(AsyncClient, box.address) as client:
        started = asyncio.Event()

        async def receive() -> None:
            async for _ in client.stream(LONG, "ann"):
                started.set()

        task = asyncio.create_task(receive())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_leaving_a_stream_ends_its_call(box: Running, client: Client) -> None:
    for event in client.stream(LONG, "ann", request_id="left"):
        if isinstance(event, Piece):
            break
    box.until(r"request left of .*: the call was cancelled")


async def failure_of(box: Running, text: str, voice: str, **options: Any) -> CallFailed:
    """The error of `text`, which both clients and both ways to speak raise alike."""
    errors = []
    for kind in (Client, AsyncClient):
        async with connected(kind, box.address) as client:
            for say in (client.speak, lambda *of, stream=client.stream, **more: stream(*of, **more).reply()):
                with pytest.raises(CallFailed) as caught:
                    await of(say(text, voice, **options))
                errors.append(caught.value)
    assert [vars(error) for error in errors] == 4 * [vars(errors[0])]
    return errors[0]


@pytest.mark.parametrize(("voice", "nfe", "status", "reason", "field", "told"), [
    ("ann", 65, "INVALID_ARGUMENT", "INVALID_REQUEST", "nfe_steps", "must be between 1 and 32, not 65"),
    ("bob", 9, "NOT_FOUND", "VOICE_NOT_FOUND", "", "no voice is named 'bob'; those here are ann"),
])  # fmt: skip
async def test_a_request_that_is_wrong(
    box: Running, voice: str, nfe: int, status: str, reason: str, field: str, told: str
) -> None:
    error = await failure_of(box, TEXT, voice, nfe=nfe)
    assert (error.status, error.reason, error.field or "") == (status, reason, field)
    assert str(error) == f"{field and field + ': '}{told} ({status})"
    assert error.retry_s is None and not error.unreachable


@BOTH
async def test_a_frozen_daemon_is_an_error(box: Running, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, wait_ms in (("PING_MS", 20), ("PONG_MS", 200)):
        monkeypatch.setattr(connection, name, wait_ms)
    async with connected(kind, box.address) as client:
        heard = each(client.listen("frozen"))
        assert isinstance(await anext(heard), PausedChannels)
        box.process.send_signal(signal.SIGSTOP)
        with pytest.raises(CallFailed, match="UNAVAILABLE"):
            await anext(heard)
        box.process.send_signal(signal.SIGCONT)


async def test_a_deadline(box: Running, client: Client) -> None:
    # The daemon's own refusal may arrive before the client's clock ends the call.
    async with connected(AsyncClient, box.address) as other:
        with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
            await other.stream(LONG, "ann", timeout=0.01).reply()
    with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
        client.speak(LONG, "ann", timeout=0.01)


@BOTH
@pytest.mark.parametrize("missing", ["port", "socket", "name"])
async def test_no_daemon(missing: str, kind: type, tmp_path: Path) -> None:
    addresses = {"socket": f"unix:{tmp_path}/none.sock", "name": "nosuch.invalid:50051"}
    async with connected(kind, addresses.get(missing) or f"127.0.0.1:{free_port()}") as client:
        with pytest.raises(CallFailed) as caught:
            await of(client.health(timeout=PATIENCE_S))
    assert caught.value.status == "UNAVAILABLE" and caught.value.unreachable


def test_a_daemon_that_refuses_the_connection_is_not_absent(tmp_path: Path) -> None:
    def hang_up() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "rude.sock"))
        listener.listen()
        threading.Thread(target=hang_up, daemon=True).start()
        with Client(f"unix:{tmp_path}/rude.sock") as client, pytest.raises(CallFailed) as caught:
            client.health()
        assert caught.value.status == "UNAVAILABLE" and not caught.value.unreachable
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"priority": "loud"}, {"queue_timeout": float("nan")}, {"queue_timeout": 1e300}]
)
def test_arguments_that_no_message_holds(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        client.speak(TEXT, "ann", **wrong)


def test_an_unknown_option_is_named(client: Client) -> None:
    wrong: dict[str, Any] = {"colour": "red"}
    with pytest.raises(TypeError, match=r"unknown option colour; valid options: .*encoding, rate, .*"):
        client.stream(TEXT, "ann", **wrong)


def lost(code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> Callable[[Any], None]:
    return lambda context: context.abort(code, "went away")


def refusing(reason: str, retry_s: float | None = None, field: str = "") -> Callable[[Any], None]:
    """Abort a call with the details that the daemon packs."""
    code = grpc.StatusCode.RESOURCE_EXHAUSTED if retry_s is not None else grpc.StatusCode.INVALID_ARGUMENT
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason, domain="f5-appliance")]
    if retry_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(1e3 * retry_s))
        details.append(retry)
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    status = status_pb2.Status(code=code.value[0], message="no")
    for detail in details:
        status.details.add().Pack(detail)

    def refuse(context: Any) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, "no")

    return refuse


@contextlib.contextmanager
def serving(servicer: Any, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve all services that the servicer implements; yields the address."""
    with ThreadPoolExecutor(4) as workers:
        server = grpc.server(workers)
        for module in (appliance_pb2_grpc, health_pb2_grpc):
            for kind in type(servicer).__mro__:
                if add := getattr(module, f"add_{kind.__name__}_to_server", None):
                    add(servicer, server)
        port = server.add_insecure_port(address)
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()


PAGES = {"": (["a", "b"], "more"), "more": (["c"], "")}
FIVE_MIB = 5 << 20


class Recorder(
    appliance_pb2_grpc.SynthesizerServicer, appliance_pb2_grpc.VoicesServicer, health_pb2_grpc.HealthServicer
):
    """Answers every call and records its request and deadline."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.left_s: list[float | None] = []

    def _record(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        self.left_s.append(context.time_remaining())

    def Synthesize(self, request: Any, context: Any) -> pb.SynthesizeResponse:
        self._record(request, context)
        return pb.SynthesizeResponse(audio=bytes(FIVE_MIB))

    def StreamSynthesize(self, request: Any, context: Any) -> Iterator[pb.StreamSynthesizeResponse]:
        self._record(request, context)
        yield pb.StreamSynthesizeResponse(audio=pb.Audio(data=bytes(FIVE_MIB)))
        if request.text == "stop":
            context.abort(grpc.StatusCode.CANCELLED, "cancelled by its id")

    def CancelSynthesis(self, request: Any, context: Any) -> pb.CancelSynthesisResponse:
        self._record(request, context)
        return pb.CancelSynthesisResponse()

    def ListVoices(self, request: Any, context: Any) -> pb.ListVoicesResponse:
        self._record(request, context)
        names, token = PAGES[request.page_token]
        return pb.ListVoicesResponse(voices=[pb.Voice(name=name) for name in names], next_page_token=token)

    def GetVoice(self, request: Any, context: Any) -> pb.Voice:
        self._record(request, context)
        return pb.Voice(name=request.name)

    CreateVoice = GetVoice

    def UpdateVoice(self, request: Any, context: Any) -> pb.Voice:
        self._record(request, context)
        words = request.pronunciations.words
        return pb.Voice(name=request.name, display_name=request.display_name, pronunciations=words)

    def DeleteVoice(self, request: Any, context: Any) -> Any:
        self._record(request, context)
        refusing("OVERLOADED", retry_s=1.25)(context)

    def Check(self, request: Any, context: Any) -> Any:
        self._record(request, context)
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)


async def first(events: Any, true: Callable[[Any], object]) -> Any:
    """The first event for which `true` returns a true value."""
    return await anext(event async for event in each(events) if true(event))


@BOTH
async def test_a_moderator_sees_and_changes_the_queue(box: Running, kind: type) -> None:
    channel, user = f"board of {kind.__name__}", f"bob of {kind.__name__}"
    async with connected(kind, box.address) as client:
        with ThreadPoolExecutor(1) as pool, Client(box.address) as caller:

            async def line(name: str) -> tuple[asyncio.Future[Any], Any]:
                """Request a line; return its future and the first event that lists it."""
                terms: Options = {"channel": channel, "user": user, "request_id": name}
                asked = asyncio.wrap_future(pool.submit(caller.speak, TEXT, "ann", **terms))
                return asked, await first(client.watch(channel), lambda event: event.utterances)

            async def ids(ended: Any) -> list[str]:
                return [utterance.request_id for utterance in await of(ended)]

            await of(client.pause(channel))
            asked, event = await line("later")
            [utterance] = event.utterances
            assert (utterance.request_id, utterance.user_key, utterance.text) == ("later", user, TEXT)
            assert list(event.paused) == [channel]
            assert await of(client.utterances("other")) == await of(client.skip(channel)) == []
            # Broken calls of an earlier test may still be in the queue.
            assert "later" in await ids(client.utterances())
            assert await ids(client.clear("other")) == [] and await ids(client.clear(channel)) == ["later"]
            with pytest.raises(CallFailed) as failed:
                await asked
            assert (failed.value.status, failed.value.reason) == ("ABORTED", "CLEARED")
            asked, _ = await line("again")
            assert await ids(client.cancel_of(user=user, channel=channel)) == ["again"]
            with pytest.raises(CallFailed, match="CANCELLED"):
                await asked
            assert await of(client.cancel_of(user=user)) == []
            await of(client.resume(channel))
            await of(client.moderate(channel))
            assert list((await of(client.queue())).moderated) == [channel]
            asked, _ = await line("held")
            assert await ids(client.reject(channel, ["other"])) == []
            assert await ids(client.approve(channel, ["other"])) == []
            await of(client.unmoderate(channel))
            assert await ids(client.approve(channel, ["held"])) == ["held"]
            assert (await asked).audio and await ids(client.reject(channel)) == []


@BOTH
async def test_a_client_hears_what_another_asks_for(box: Running, client: Client, kind: type) -> None:
    """The listener gets the samples of a plain stream of the same request."""
    options: dict[str, Any] = {"seed": 7, "nfe": 2, "segmentation": "low_latency"}
    plain, hall = client.stream(LONG, "ann", **options).reply(), f"hall of {kind.__name__}"
    events: list[Any] = []
    async with connected(kind, box.address) as other:
        heard = each(other.listen(hall))
        assert await anext(heard) == PausedChannels()
        client.speak(LONG, "ann", channel=hall, user="mo", **options)
        client.skip(hall)
        while not (events and isinstance(events[-1], UtteranceEnd)):
            events.append(await anext(heard))
    begin, end = events[0], events[-1]
    assert isinstance(begin, UtteranceBegin) and end.reason == "SKIPPED"
    u = begin.utterance
    assert (u.channel, u.user_key, u.voice, u.text) == (hall, "mo", "ann", plain.header.text)
    assert b"".join(event.data for event in events if isinstance(event, UtteranceAudio)) == plain.audio


async def test_a_session_speaks_its_written_text(box: Running) -> None:
    async with connected(AsyncClient, box.address) as client:
        session = client.session("ann", seed=3, nfe=2)
        for piece in ("Thanks for the raid, every", "one! It is good to see you."):
            await session.say(piece)
        await session.flush()
        await session.say("Never heard.")
        await session.cancel(2)
        await session.close()
        heard: dict[int, list[object]] = {}
        async for utterance, event in session:
            heard.setdefault(utterance, []).append(event)
        with pytest.raises(CallFailed, match="NOT_FOUND"):
            session = client.session("nobody")
            while True:
                await session.say("Hello")
                await asyncio.sleep(0)
    texts = [event.text for event in heard[1] if isinstance(event, Header)]
    assert " ".join(texts) == "Thanks for the raid, everyone! It is good to see you."
    pieces = [event for event in heard[1] if isinstance(event, Piece)]
    end = heard[1][-1]
    assert isinstance(end, End) and sum(len(p.data) for p in pieces) == 2 * end.samples > 0
    last = heard[2][-1]
    assert isinstance(last, UtteranceError) and last.reason == "CANCELLED"


@pytest.fixture
def recorder() -> Iterator[tuple[Recorder, str]]:
    servicer = Recorder()
    with serving(servicer) as address:
        yield servicer, address


EVERY_OPTION = cast(
    "Options",
    {
        **{"encoding": "wav", "rate": 16_000, "speed": 1.5, "nfe": 9, "seed": 1 << 60, "guidance": 2.5},
        **{"segmentation": "low_latency", "priority": "realtime", "language": "de", "style": "happy"},
        **{"channel": "chat", "user": "ann", "text_handling": "verbatim", "pronunciations": {"Xx": "x"}},
        **{"max_spoken": 9.0, "gain_db": -3.5, "supersede": "score", "merge": "rose", "merge_count": 2},
        **{"merge_text": "{count} roses", "announce": "{user}", "queue_timeout": 2.5, "min_nfe": 3},
        **{"request_id": "r-1", "word_timings": True, "voice_tags": True, "playout": "overlap"},
        "merge_count_is_total": True,
    },
)
FIELDS: dict[str, Any] = {
    **{"text": TEXT, "voice": "ann", "nfe_steps": 9, "seed": 1 << 60, "guidance": 2.5},
    **{"segmentation": pb.LOW_LATENCY, "priority": pb.REALTIME, "language_code": "de", "style": "happy"},
    **{"channel": "chat", "user_key": "ann", "text_handling": pb.VERBATIM, "pronunciations": {"Xx": "x"}},
    **{"max_spoken_seconds": 9.0, "gain_db": -3.5, "supersede_key": "score", "merge_key": "rose"},
    **{"merge_count": 2, "merge_text": "{count} roses", "queue_timeout": timedelta(seconds=2.5)},
    **{"min_nfe_steps": 3, "playout": pb.OVERLAP, "request_id": "r-1", "announce": "{user}"},
    **{"word_timings": True, "voice_tags": True, "merge_count_is_total": True},
}
OF_AUDIO = pb.AudioConfig(encoding=pb.WAV, sample_rate_hertz=16_000, speaking_rate=1.5)
EVERY_FIELD = pb.SynthesizeRequest(audio_config=OF_AUDIO, **FIELDS)


def test_the_options_are_all_fields_of_a_request() -> None:
    assert {field.name for field, _ in EVERY_FIELD.ListFields()} == set(EVERY_FIELD.DESCRIPTOR.fields_by_name)
    assert set(EVERY_OPTION) | set(SHORT) == set(Options.__annotations__)
    assert set(EVERY_OPTION) == {option.name for option in OPTIONS}


def test_an_option_may_have_its_fields_name() -> None:
    long = {short: name for name, short in SHORT.items()}
    options = cast("Options", {long.get(name, name): value for name, value in EVERY_OPTION.items()})
    assert synthesize_request(TEXT, "ann", options) == EVERY_FIELD
    assert set(SHORT) <= {*EVERY_FIELD.DESCRIPTOR.fields_by_name, *pb.AudioConfig.DESCRIPTOR.fields_by_name}
    with pytest.raises(TypeError, match="user_key and user are the same option"):
        synthesize_request(TEXT, "ann", {"user": "ann", "user_key": "ann"})


async def use_all(client: Any) -> dict[str, Any]:
    """Call every method; return the fields of the error."""
    for reply in (
        client.speak(TEXT, "ann", **EVERY_OPTION),
        client.stream(TEXT, "ann", **EVERY_OPTION).reply(),
    ):
        assert len((await of(reply)).audio) == FIVE_MIB
    await of(client.cancel("r-1"))
    assert [voice.name for voice in await of(client.voices())] == ["a", "b", "c"]
    assert (await of(client.voice("a"))).name == "a"
    assert (await of(client.add_voice("b", b"x", "y"))).name == "b"
    changed = await of(client.update_voice("b", display_name="B", pronunciations={"x": "y"}))
    assert (changed.name, changed.display_name, dict(changed.pronunciations)) == ("b", "B", {"x": "y"})
    with pytest.raises(CallFailed) as caught:
        await of(client.remove_voice("b"))
    assert await of(client.health("clocks")) == "NOT_SERVING"
    error = caught.value
    assert (error.status, error.reason, error.retry_s) == ("RESOURCE_EXHAUSTED", "OVERLOADED", 1.25)
    return vars(error)


async def test_both_clients_send_the_same_each_with_a_deadline(recorder: tuple[Recorder, str]) -> None:
    servicer, address = recorder
    errors = []
    for kind in (Client, AsyncClient):
        async with connected(kind, address) as client:
            errors.append(await use_all(client))
    assert errors[0] == errors[1]
    assert all(left is not None and left < 301.0 for left in servicer.left_s)
    half = len(servicer.requests) // 2
    assert servicer.requests[:half] == servicer.requests[half:]
    assert servicer.requests[0] == servicer.requests[1] == EVERY_FIELD
    assert servicer.requests[2] == pb.CancelSynthesisRequest(request_id="r-1")
    assert servicer.requests[-1] == health_pb2.HealthCheckRequest(service="clocks")


@BOTH
async def test_a_stream_that_the_daemon_cancels(recorder: tuple[Recorder, str], kind: type) -> None:
    """AsyncClient raises CallFailed too, although grpc.aio has CancelledError for calls that this end
    cancels."""
    async with connected(kind, recorder[1]) as client:
        with pytest.raises(CallFailed, match=r"its id \(CANCELLED\)"):
            await of(client.stream("stop", "ann").reply())


def test_absent_options_leave_their_fields_absent(recorder: tuple[Recorder, str]) -> None:
    servicer, address = recorder
    with Client(address) as client:
        client.speak(TEXT, "ann", nfe=None, priority=None, timeout=None)
    sent = servicer.requests[0]
    assert not any(sent.HasField(name) for name in ("nfe_steps", "seed", "guidance", "queue_timeout"))
    assert sent.priority == sent.segmentation == sent.playout == 0
    assert not servicer.left_s[0] or servicer.left_s[0] > 1e6


def test_import_needs_no_array_library() -> None:
    heavy = {"numpy", "yaml", "onnxruntime", "appliance.config"}
    code = f"import sys, appliance.client; print(*{heavy} & set(sys.modules))"
    assert finished(sys.executable, "-c", code).stdout == "\n"


def test_the_readmes_example(box: Running, tmp_path: Path) -> None:
    readme = (ROOT / "appliance" / "rpc" / "README.md").read_text("utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    (tmp_path / "chat.py").write_text(code)
    chat = (sys.executable, tmp_path / "chat.py", box.address, "ann")
    result = finished(*chat, cwd=tmp_path, says=f"{TEXT}\n\n{TEXT}\n", PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"2 INVALID_REQUEST text: is empty.* None\n", result.stdout)
    sizes = {file.name: file.stat().st_size for file in tmp_path.glob("*.pcm")}
    assert set(sizes) == {"1.pcm", "3.pcm"} and min(sizes.values()) > 48_000


AUDIO = pb.StreamSynthesizeResponse(audio=pb.Audio(data=bytes(4)))
END = pb.StreamSynthesizeResponse(end=pb.End(samples=2))


class Flaky(appliance_pb2_grpc.SynthesizerServicer, appliance_pb2_grpc.QueueServicer):
    """Answers each call with the next script: messages, then the end of the call."""

    def __init__(self, *scripts: tuple[Any, ...]) -> None:
        self.scripts = list(scripts)
        self.ids: list[str] = []
        self.channels: list[Any] = []

    def _note(self, context: Any) -> None:
        self.channels.append(dict(context.invocation_metadata()).get("x-channel"))

    def StreamSynthesize(self, request: Any, context: Any) -> Iterator[pb.StreamSynthesizeResponse]:
        self.ids.append(request.request_id)
        self._note(context)
        for action in self.scripts.pop(0):
            if isinstance(action, pb.StreamSynthesizeResponse):
                yield action
            else:
                action(context)

    def Synthesize(self, request: Any, context: Any) -> pb.SynthesizeResponse:
        list(self.StreamSynthesize(request, context))
        return pb.SynthesizeResponse(audio=bytes(4))

    def Skip(self, request: Any, context: Any) -> pb.EndedUtterances:
        self._note(context)
        return pb.EndedUtterances()

    def CancelSynthesis(self, request: Any, context: Any) -> pb.CancelSynthesisResponse:
        self._note(context)
        return pb.CancelSynthesisResponse()


@contextlib.contextmanager
def flaky(*scripts: tuple[Any, ...]) -> Iterator[tuple[Flaky, str]]:
    servicer = Flaky(*scripts)
    with serving(servicer) as address:
        yield servicer, address


def header_of(name: str) -> pb.StreamSynthesizeResponse:
    return pb.StreamSynthesizeResponse(header=pb.Header(request_id=name))


@pytest.fixture
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BACKOFF_S", 0.01)


UNTIL_IT_SOUNDS: tuple[tuple[Any, ...], ...] = (
    (lost(),),
    (header_of("first"), lost(grpc.StatusCode.UNAVAILABLE)),
    (refusing("OVERLOADED", retry_s=0.01),),
    (refusing("INVALID_REQUEST", field="request_id"),),
    (header_of("last"), AUDIO, END),
)


async def events_of(address: str, kind: type, tries: int, **options: Any) -> list[Any]:
    """Kinds of events, with the header's id; last, the status of a failure."""
    events: list[Any] = []
    try:
        async with connected(kind, address, retries=tries) as client:
            async for event in each(client.stream(TEXT, "ann", **options)):
                events.append(event)
    except CallFailed as failure:
        events.append(failure.status)
    return [event.request_id if isinstance(event, Header) else event for event in events]


@BOTH
@pytest.mark.usefixtures("short_backoff")
async def test_a_stream_is_tried_again_until_it_sounds(kind: type) -> None:
    with flaky(*UNTIL_IT_SOUNDS) as (servicer, address):
        name, piece, end = await events_of(address, kind, 4)
    assert name == "last" and isinstance(piece, Piece) and isinstance(end, End)
    assert len(servicer.ids) == 5 and len(set(servicer.ids)) == 1 and servicer.ids[0]


@BOTH
@pytest.mark.parametrize(("script", "tries", "kinds"), [
    ((header_of("a"), AUDIO, lost()), 4, ["a", Piece, "UNKNOWN"]),  # sound has arrived
    ((header_of("a"), lost()), 0, ["a", "UNKNOWN"]),  # no retries requested
    ((refusing("INVALID_REQUEST", field="text"),), 4, ["INVALID_ARGUMENT"]),  # a retry is useless
    ((refusing("INVALID_REQUEST", field="request_id"),), 4, ["INVALID_ARGUMENT"]),  # the id is in use
    ((refusing("OVERLOADED", retry_s=60.0),), 4, ["RESOURCE_EXHAUSTED"]),  # the retry would miss the deadline
])  # fmt: skip
async def test_no_retry_of_streams(kind: type, script: tuple[Any, ...], tries: int, kinds: list[Any]) -> None:
    with flaky(script, (header_of("b"), AUDIO, END)) as (servicer, address):
        events = await events_of(address, kind, tries, timeout=30.0)
    assert [Piece if isinstance(event, Piece) else event for event in events] == kinds
    assert len(servicer.ids) == 1


def test_attempts_are_counted() -> None:
    with flaky((lost(),), (lost(),), (AUDIO, END)) as (servicer, address):
        with Client(address, retries=1) as client, pytest.raises(CallFailed, match="went away"):
            client.stream(TEXT, "ann").reply()
        assert len(servicer.ids) == 2


@BOTH
@pytest.mark.usefixtures("short_backoff")
async def test_a_unary_call_is_retried(kind: type) -> None:
    script = ((lost(),), (refusing("OVERLOADED", retry_s=0.01),), ())
    with flaky(*script) as (servicer, address):
        async with connected(kind, address, retries=2) as client:
            assert (await of(client.speak(TEXT, "ann", request_id="mine"))).audio == bytes(4)
    assert servicer.ids == ["mine"] * 3


@BOTH
async def test_a_stream_is_cancelled_while_it_waits_to_be_tried_again(kind: type) -> None:
    with flaky((refusing("OVERLOADED", retry_s=100.0),)) as (_, address):
        async with connected(kind, address, retries=2) as client:
            stream = client.stream(TEXT, "ann", timeout=None)
            if kind is AsyncClient:
                asyncio.get_running_loop().call_later(0.2, stream.cancel)
            else:
                threading.Timer(0.2, stream.cancel).start()
            with pytest.raises(CallFailed):
                await of(stream.reply())


def test_a_call_about_a_channel_names_it_to_a_proxy() -> None:
    with flaky((AUDIO, END), (AUDIO, END)) as (servicer, address), Client(address) as client:
        client.stream(TEXT, "ann", channel="stage").reply()
        client.stream(TEXT, "ann").reply()
        client.skip("舞台 1")
        client.cancel("some", channel="stage")
    assert servicer.channels == ["stage", None, "%E8%88%9E%E5%8F%B0%201", "stage"]


AWAY = CallFailed("UNAVAILABLE", "the daemon is starting", retry_s=7.0)


@pytest.mark.parametrize(("tries", "options", "timeout", "waits"), [
    (2, {}, 300.0, True),
    (2, {"channel": "stage"}, 300.0, True),
    (2, {}, 5.0, False),  # the wait would exceed the timeout
    (0, {}, 300.0, False),  # no retries requested
    (0, {"channel": "stage"}, 300.0, True),
    (0, {"channel": "stage"}, None, True),
    (0, {"channel": "stage"}, 5.0, False),
    (0, {"channel": "stage", "playout": "overlap"}, 300.0, False),
])  # fmt: skip
def test_a_daemon_that_is_away_is_awaited_as_long_as_it_says(
    tries: int, options: Options, timeout: float | None, waits: bool
) -> None:
    attempts = retries.Attempts(print, synthesize_request(TEXT, "ann", options), timeout, tries, "")
    for _ in range(9):
        if waits:
            assert attempts.wait_s(AWAY) == 7.0
        else:
            with pytest.raises(CallFailed, match="is starting"):
                attempts.wait_s(AWAY)


def test_a_daemon_that_held_a_line_for_long_is_awaited_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])
    attempts = retries.Attempts(print, synthesize_request(TEXT, "ann", {"channel": "stage"}), None, 0, "")
    attempts.admitted()
    for now[0] in (600.0, 652.0):
        assert attempts.wait_s(AWAY) == 7.0
    now[0] = 653.0
    with pytest.raises(CallFailed):
        attempts.wait_s(AWAY)


@pytest.mark.parametrize("door", ["stream", "asyncio's stream", "asyncio's speak"])
@pytest.mark.parametrize("tries", [0, 3])
@pytest.mark.slow
async def test_a_channel_awaits_its_daemon_and_is_in_order_then(
    monkeypatch: pytest.MonkeyPatch, door: str, tries: int
) -> None:
    """Requests wait while nothing listens. Then the first is refused three times, and no later one overtakes
    it."""
    lost_calls: list[int] = []
    monkeypatch.setattr(retries, "_backoff_s", lambda count: lost_calls.append(count) or 0.05)
    names = [f"r{number}" for number in range(8)]
    away = [(lost(grpc.StatusCode.UNAVAILABLE),)] * 3
    servicer = Flaky(*away, *[(header_of("a"), AUDIO, END)] * len(names))
    address, threads = f"127.0.0.1:{free_port()}", ThreadPoolExecutor(len(names))
    async with AsyncClient(address, own_connection=True, retries=tries) as other:
        blocking = Client(address, own_connection=True, retries=tries)

        def ask(name: str) -> Any:
            options: Options = {"channel": "stage", "request_id": name}
            if door == "stream":
                stream = blocking.stream(TEXT, "ann", **options)
                return asyncio.get_running_loop().run_in_executor(threads, stream.reply)
            made = other.stream(TEXT, "ann", **options).reply() if door == "asyncio's stream" else None
            return asyncio.ensure_future(made or other.speak(TEXT, "ann", **options))

        calls = [ask(name) for name in names]
        await asyncio.to_thread(until, lambda: len(lost_calls) >= len(names))
        with serving(servicer, address):
            await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_S)
        blocking.close()
    assert servicer.ids == ["r0"] * 3 + names
