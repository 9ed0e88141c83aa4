"""The overlay, the status page, and the endpoints that they call."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from appliance.audio.marking import mark_of
from appliance.box.checks.readiness import SILENT, read_state
from appliance.box.clocks import clocks_json
from appliance.box.platform import identify
from appliance.box.root import Root
from appliance.box.sensors import hwmon as sensors
from appliance.box.system import Box
from appliance.client import (
    AsyncClient,
    CallFailed,
    PausedChannels,
    Utterance,
    UtteranceAudio,
    UtteranceBegin,
    UtteranceEnd,
    plain,
)
from appliance.client.connection import CALLER
from appliance.config import DeviceConfig
from appliance.gateway.body import Fields, json_body
from appliance.gateway.connection import running
from appliance.gateway.refusals import Refusal, refusal_of
from appliance.gateway.speech import mark_headers, while_connected

FOLDER = Path(__file__).with_name("pages")
ASSETS = {file.name: file for file in FOLDER.iterdir() if file.suffix in (".css", ".js", ".png")}
POLICY = (
    "default-src 'self'; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of pages. A page's address may contain a token, so browsers must not send it as a referrer."""
COMMENT_AFTER_S = 10.0
"""Seconds without an event after which the stream sends a comment."""
RETRY_MS = 1_000
"""Milliseconds after which a page reconnects."""
MAX_WAITING = 64
"""Events that may wait here for one page; more wait in the daemon."""
RECENT = 50
VERBS = ("skip", "clear", "pause", "resume", "moderate", "unmoderate", "approve", "reject")
OF_REQUESTS = ("approve", "reject")
"""Verbs that may name one request."""
ENDED = "ENDED"
EVENTS = "text/event-stream"
EVENT_NAMES = {
    PausedChannels: "paused",
    UtteranceBegin: "begin",
    UtteranceAudio: "audio",
    UtteranceEnd: "end",
}
"""Event of the client → its name on the page."""

Event = tuple[str, dict[str, Any]]
Events = AsyncIterator[Event]


async def _page(name: str, request: Request) -> Response:
    return FileResponse(FOLDER / name, headers=HEADERS)


async def _asset(request: Request) -> Response:
    file = ASSETS.get(request.path_params["name"])
    return Response(status_code=404) if file is None else FileResponse(file, headers=HEADERS)


async def _listen(request: Request) -> Response:
    client, channel = _client(request), request.query_params.get("channel", "")
    mark = mark_of(request.app.state.config.audio.marked)
    return _stream(_broadcast(client, channel), _changes(client, channel), mark=mark)


async def _queue(request: Request) -> Response:
    """The current queue, or its changes for an EventSource."""
    client, channel = _client(request), request.query_params.get("channel", "")
    if EVENTS in request.headers.get("accept", "").lower():
        return _stream(_changes(client, channel))
    headers = {"cache-control": "no-store", "vary": "accept"}
    return JSONResponse(plain(await client.queue(channel)), headers=headers)


async def _status(request: Request) -> Response:
    client, recent, why = _client(request), _recent(request), ""
    config = request.app.state.config
    try:
        ready = await client.health() == "SERVING"
        voices = [
            {
                "name": voice.name,
                "display_name": voice.display_name,
                "problem": voice.problem,
                "styles": [{"name": style.name, "problem": style.problem} for style in voice.styles],
            }
            async for voice in client.voices()
        ]
    except CallFailed as error:
        ready, voices, why = False, [], refusal_of(error).message
    box = await asyncio.to_thread(box_status, config.device)
    return JSONResponse(
        {
            "ready": ready,
            "why": why,
            "version": metadata.version("f5-appliance"),
            "voices": voices,
            "recent": list(recent),
            "max_text_characters": config.synthesis.max_text_characters,
            **box,
        }
    )


def box_status(device: DeviceConfig) -> dict[str, Any]:
    """Clocks and temperatures of a Jetson; `jetson` is empty on other machines."""
    box = Box(Root(device.sysroot))
    platform = identify(box.root)
    clocks = clocks_json.read(box, str(device.clocks))
    return {
        "jetson": platform.model if platform.is_jetson else "",
        "clocks": {"state": clocks.state, "mode": clocks.mode, "why": clocks.why, "repins": clocks.repins},
        "domains": {name: dict(domain) for name, domain in clocks.domains.items()},
        "last_unpin": clocks.last_unpin and asdict(clocks.last_unpin),
        "temperatures": sensors.temperatures(box.root),
        "slowed": sensors.cooling(box.root) or {},
    }


async def _minutes(request: Request) -> Response:
    """Clocks, temperature, engine, speech and first audio of each of the last 120 minutes."""
    metrics = request.app.state.config.server.metrics
    state = await asyncio.to_thread(read_state, metrics) if metrics else SILENT
    return JSONResponse({"state": state.state, "minutes": state.minutes})


async def _moderate(request: Request) -> Response:
    _check_type(request)
    channel, verb = request.path_params["channel"], request.path_params["verb"]
    if verb not in VERBS:
        raise Refusal(404, f"{verb}: must be {', '.join(VERBS)}")
    chosen: list[list[str]] = []
    if verb in OF_REQUESTS:
        request_id = (await _given(request)).text("request_id")
        chosen = [[] if request_id is None else [request_id]]
    utterances = await getattr(_client(request), verb)(channel, *chosen)
    return _utterances(utterances or (), "approved" if verb == "approve" else "ended")


async def _preview(request: Request) -> Response:
    """Audio of a held request."""
    request_id = request.query_params.get("request_id", "")
    audio = await _client(request).preview(request.path_params["channel"], request_id)
    return Response(audio, media_type="audio/wav", headers={"cache-control": "no-store"})


async def _cancel_user(request: Request) -> Response:
    _check_type(request)
    if not (user := request.path_params["user"]):
        raise Refusal(400, "user: is missing", code="invalid_request", param="user")
    channel = (await _given(request)).text("channel") or ""
    return _utterances(await _client(request).cancel_of(user=user, channel=channel), "ended")


async def _given(request: Request) -> Fields:
    """Parameters from the body, which may be absent, or from the address."""
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    return (await json_body(request) if has_body else Fields({})).beside(request.query_params)


def _utterances(utterances: Iterable[Utterance], name: str) -> Response:
    return JSONResponse({name: [plain(utterance) for utterance in utterances]})


async def _cancel(request: Request) -> Response:
    _check_type(request)
    await _client(request).cancel(request.path_params["request_id"])
    return JSONResponse({})


def _check_type(request: Request) -> None:
    """Refuse requests that a form could send: a form cannot send JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refusal(415, "content-type: must be application/json")


def _client(request: Request) -> AsyncClient:
    client: AsyncClient = request.app.state.client
    return client


async def _broadcast(client: AsyncClient, channel: str) -> Events:
    async for event in client.listen(channel):
        yield EVENT_NAMES[type(event)], plain(event)


async def _changes(client: AsyncClient, channel: str) -> Events:
    async for event in client.watch(channel):
        yield "queue", plain(event)


class EventStream(StreamingResponse):
    """A stream that ends when the page is closed, even if there is nothing to send."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await Response(headers=self.headers)(scope, receive, send)
            return

        async def stream() -> None:
            with suppress(OSError):
                await self.stream_response(send)

        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await while_connected(receive, stream())


def _stream(*sources: Events, mark: str = "") -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no", **mark_headers(mark)}
    return EventStream(_merged(sources), media_type=EVENTS, headers=headers)


async def _merged(sources: tuple[Events, ...]) -> AsyncIterator[str]:
    """Server-sent events until one source ends. A failure becomes an event `fault`."""
    waiting: asyncio.Queue[Event | None] = asyncio.Queue(MAX_WAITING)

    async def read(source: Events) -> None:
        try:
            async for event in source:
                await waiting.put(event)
        except CallFailed as error:
            fault = {"message": refusal_of(error).message, "reason": error.reason or error.status}
            await waiting.put(("fault", fault))
        await waiting.put(None)

    async with running(*map(read, sources)):
        yield f"retry: {RETRY_MS}\n\n"
        while True:
            try:
                event = await asyncio.wait_for(waiting.get(), COMMENT_AFTER_S)
            except asyncio.TimeoutError:
                yield ":\n\n"
                continue
            if event is None:
                return
            kind, fields = event
            yield f"event: {kind}\ndata: {json.dumps(fields, ensure_ascii=False)}\n\n"


def _recent(request: Request) -> deque[dict[str, Any]]:
    """Requests that ended since the first page was opened, the latest first."""
    state = request.app.state
    if not hasattr(state, "recent"):
        state.recent = deque(maxlen=RECENT)
    if not hasattr(state, "recent_task") or state.recent_task.done():
        # The watch belongs to no caller, but a daemon over TCP needs a token.
        context = copy_context()
        context.run(CALLER.set, "")
        state.recent_task = context.run(asyncio.ensure_future, _remember(state.client, state.recent))
    recent: deque[dict[str, Any]] = state.recent
    return recent


async def _remember(client: AsyncClient, recent: deque[dict[str, Any]]) -> None:
    """Collect ended utterances for the status page, until the token is refused."""
    while True:
        try:
            async for _, event in _changes(client, ""):
                for utterance in event["utterances"]:
                    if utterance["state"] == ENDED:
                        recent.appendleft(utterance)
        except CallFailed as failure:
            if failure.status == "UNAUTHENTICATED":  # the next page brings another token
                return
        await asyncio.sleep(RETRY_MS / 1e3)


def _get(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, endpoint, methods=["GET"])


ROUTES: list[BaseRoute] = [
    _get("/", partial(_page, "status.html")),
    _get("/overlay", partial(_page, "overlay.html")),
    _get("/static/{name}", _asset),
    _get("/api/listen", _listen),
    _get("/api/queue", _queue),
    _get("/api/status", _status),
    _get("/api/minutes", _minutes),
    _get("/api/channels/{channel:path}/preview", _preview),
    Route("/api/channels/{channel:path}/{verb}", _moderate, methods=["POST"]),
    Route("/api/users/{user:path}/cancel", _cancel_user, methods=["POST"]),
    Route("/api/requests/{request_id}/cancel", _cancel, methods=["POST"]),
]
