"""Budgets: how much one caller may have open and hold in memory at a time, charged before any work.

Identity of a caller: its token, else its address. On the Unix socket: the user whom the gateway names, else
one identity for all users of the socket.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from appliance.config import ServerConfig
from appliance.errors import (
    ApplianceError,
    DeadlineMissed,
    InvalidRequest,
    ReaderStalled,
    TooManyCalls,
    Unavailable,
)
from appliance.rpc.context import Context, OpenCall, current_task
from appliance.rpc.roles import CallAccess
from appliance.rpc.turns import Usage

KIB, MIB = 1 << 10, 1 << 20


class PlaceKind(enum.Enum):
    """Kinds of calls. Each kind has its own number of places."""

    SPEECH = "calls"
    SESSION = "sessions"
    """Sessions. Messages arrive as long as a session is open, and each takes a place while it arrives."""
    WATCH = "watches"
    LISTEN = "listens"
    UPLOAD = "uploads"
    OTHER = "other calls"


KINDS: Mapping[str, PlaceKind] = {
    "Synthesize": PlaceKind.SPEECH,
    "StreamSynthesize": PlaceKind.SPEECH,
    "Session": PlaceKind.SESSION,
    "SynthesizeOnline": PlaceKind.SESSION,
    "ServerReflectionInfo": PlaceKind.SESSION,
    "WatchQueue": PlaceKind.WATCH,
    "Listen": PlaceKind.LISTEN,
    "CreateVoice": PlaceKind.UPLOAD,
    "CreateStyle": PlaceKind.UPLOAD,
}
"""Method → kind; OTHER for methods that are not listed."""
SPEAKING = (PlaceKind.SPEECH, PlaceKind.SESSION)
WITH_AUDIO = (
    "/appliance.v1.Voices/CreateVoice",
    "/appliance.v1.Voices/CreateStyle",
    "/nvidia.riva.tts.RivaSpeechSynthesis/Synthesize",
    "/nvidia.riva.tts.RivaSpeechSynthesis/SynthesizeOnline",
)
"""Methods whose messages may have up to `server.max_receive_bytes`."""
MESSAGE_BYTES = 512 * KIB
"""Longest message of all other methods: 500 pronunciations and the longest text."""
SHORT_MESSAGE_BYTES = 64 * KIB
"""Messages up to this length are parsed at once; the fields of a longer one are counted before."""
MOST_FIELDS = 2_048
"""Limit of a long message's fields, at its top level. Each field costs time under the interpreter's lock."""

OF_ALL: Mapping[PlaceKind, int] = {PlaceKind.WATCH: 64, PlaceKind.LISTEN: 64}
"""Places for all callers together; for speech and sessions it is `server.max_calls`."""
OF_CALLER: Mapping[PlaceKind, int] = {
    PlaceKind.WATCH: 16,
    PlaceKind.LISTEN: 16,
    PlaceKind.UPLOAD: 4,
    PlaceKind.OTHER: 64,
}
"""Places of one caller. For speech it is `server.max_calls_of_peer`, for sessions a sixteenth of that."""
OF_CONNECTION: Mapping[PlaceKind, int] = {PlaceKind.WATCH: 8, PlaceKind.LISTEN: 8}
"""Places of one TCP connection, because callers without a token share their address."""
INSIDE = 5
"""Messages of one caller and kind that may be arriving or waiting for the planner; further calls wait."""
BYTES_S = 2 * MIB
"""Bytes per second at which arrived messages free their places. gRPC copies them on the event loop, in some 3
ms for each MiB.
"""
HELD_BYTES = 128 * MIB
"""Bytes that one caller may hold: messages in work, and audio that is unfinished or waits for its reader."""


@dataclass(eq=False)
class Caller:
    """Open calls of one caller, and the bytes that they hold."""

    key: str
    calls: set[PlacedCall] = field(default_factory=set)
    held_bytes: int = 0
    usage: Usage = field(default_factory=Usage)
    """Use of the planner and of the event loop."""
    doors: Mapping[PlaceKind, asyncio.Semaphore] = field(
        default_factory=lambda: {kind: asyncio.Semaphore(INSIDE) for kind in PlaceKind}
    )
    """Semaphores that limit the messages of one kind that arrive or wait at one time."""


@dataclass(eq=False, kw_only=True)
class PlacedCall(OpenCall):
    """A gRPC call that has a place."""

    method: str
    kind: PlaceKind
    caller: Caller
    reach: str = ""
    """Identity of the caller whose requests this call may end or replace; "" for all callers' requests."""
    arriving_since: float | None = None
    """Time since which the call waits for its message."""
    is_inside: bool = False
    """True while the call has a place of `doors`."""
    held_bytes: int = 0

    async def enter(self) -> None:
        """Wait until this call's message may arrive."""
        await self.caller.doors[self.kind].acquire()
        self.is_inside = True

    def leave(self, size: int = 0) -> None:
        """Admit the caller's next call after the time that gRPC needs to copy this call's message."""
        if self.is_inside:
            self.is_inside = False
            asyncio.get_running_loop().call_later(size / BYTES_S, self.caller.doors[self.kind].release)

    @contextmanager
    def holding(self, size: int, *, to_the_end: bool = False) -> Iterator[None]:
        """Charge bytes while the context lasts, or until the call ends. Raises TooManyCalls."""
        self.hold(size)
        try:
            yield
        finally:
            if not to_the_end:
                self._let_go(size)

    def hold(self, size: int) -> None:
        """Charge bytes until the call has ended. Raises TooManyCalls."""
        if self.caller.held_bytes + size > HELD_BYTES:
            raise TooManyCalls(
                f"messages and audio of {self.caller.key} would hold more than {HELD_BYTES // MIB} MiB, "
                "which is the limit: read replies before you ask for more",
                retry_s=1.0,
            )
        self.held_bytes += size
        self.caller.held_bytes += size

    def close(self) -> None:
        self.leave()
        self.caller.calls.discard(self)
        self._let_go(self.held_bytes)

    def _let_go(self, size: int) -> None:
        self.held_bytes -= size
        self.caller.held_bytes -= size


_current: ContextVar[PlacedCall] = ContextVar("call")


def current_call() -> PlacedCall:
    """Call that this task serves, or that the task serves which started this one."""
    return _current.get()


class Callers:
    """All callers that have something open."""

    def __init__(
        self,
        server: ServerConfig | None = None,
        access: CallAccess | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server or ServerConfig()
        self.access = access or CallAccess()
        self._clock = clock
        self._callers: WeakValueDictionary[str, Caller] = WeakValueDictionary()
        self._calls: set[PlacedCall] = set()

    @contextmanager
    def call(self, method: str, context: Context) -> Iterator[PlacedCall]:
        """Authorise a call, and give it a place while the context lasts.

        Raises Unauthenticated, AccessDenied, TooManyCalls.
        """
        name = method.rpartition("/")[2]
        self.access(method, context)
        key = self.access.caller(context)
        caller = self._callers.setdefault(key, Caller(key))
        kind = KINDS.get(name, PlaceKind.OTHER)
        self._check_room(caller, kind, context)
        call = PlacedCall(
            context=context,
            clock=self._clock,
            task=current_task(),
            method=method,
            kind=kind,
            caller=caller,
            reach=self.access.reach(context),
        )
        _current.set(call)
        self._calls.add(call)
        caller.calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)
            call.close()

    def most_bytes(self, method: str) -> int:
        return self._server.max_receive_bytes if method in WITH_AUDIO else MESSAGE_BYTES

    def _check_room(self, caller: Caller, kind: PlaceKind, context: Context) -> None:
        """Raise TooManyCalls if the caller has no place of this kind left."""
        server = self._server
        own = caller.calls
        kinds = SPEAKING if kind in SPEAKING else (kind,)
        _check(self._calls, kinds, server.max_calls if kind in SPEAKING else OF_ALL.get(kind))
        most = server.max_calls_of_peer if kind in SPEAKING else OF_CALLER[kind]
        _check(own, kinds, most, f" of {caller.key}")
        if kind is PlaceKind.SESSION:
            _check(own, (kind,), max(server.max_calls_of_peer // 16, 1), f" of {caller.key}")
        peer = context.peer()
        if kind in OF_CONNECTION and not peer.startswith("unix"):
            here = [call for call in own if call.context.peer() == peer]
            _check(here, kinds, OF_CONNECTION[kind], " of this connection")

    # The daemon calls these at intervals.

    def drop_stalled(self, limit_s: float) -> None:
        """End calls that have waited for their message, or for their reader, longer than `limit_s`."""
        now = self._clock()
        for call in self._calls:
            if call.arriving_since is not None and now - call.arriving_since > limit_s:
                call.end(DeadlineMissed(f"the request's message did not arrive within {limit_s:g} s"))
            elif call.has_stalled(now, limit_s):
                call.end(ReaderStalled("the reader has taken nothing for too long"))

    def drain(self) -> None:
        """End all calls but requests for speech, which the scheduler ends."""
        for call in self._calls:
            if call.kind is not PlaceKind.SPEECH:
                call.end(Unavailable("the daemon is draining"))

    def drop_revoked(self) -> None:
        """End sessions, watches and listens whose token is no longer valid. Audio that sounds is finished."""
        for call in self._calls:
            if call.kind in (PlaceKind.SESSION, PlaceKind.WATCH, PlaceKind.LISTEN):
                try:
                    self.access(call.method, call.context)
                except ApplianceError as why:
                    call.end(why)


def _check(
    calls: Iterable[PlacedCall], kinds: Sequence[PlaceKind], most: int | None, whose: str = ""
) -> None:
    """Raise TooManyCalls if at least `most` calls are of these kinds."""
    if most is not None and sum(call.kind in kinds for call in calls) >= most:
        raise TooManyCalls(f"{most} {kinds[0].value}{whose} are under way, which is the limit", retry_s=1.0)


def check_fields(message: bytes) -> None:
    """Raise InvalidRequest for a message of more than MOST_FIELDS fields.

    Only the top level is walked: https://protobuf.dev/programming-guides/encoding.
    """
    position = fields = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 0:
            _, position = _varint(message, position)
        elif kind == 2:
            length, position = _varint(message, position)
            position += length
        else:
            position += {1: 8, 5: 4}.get(kind, len(message))
        fields += 1
        if fields > MOST_FIELDS:
            raise InvalidRequest("message", f"has more than {MOST_FIELDS} fields")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Number at a position, and the position behind it.

    The parser refuses malformed numbers later.
    """
    value = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            break
    return value, position
