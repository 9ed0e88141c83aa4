"""The gRPC client for Python programs: `Client` blocks, `AsyncClient` is for asyncio, with the same methods.

    with Client() as client:
        wav = client.speak("Hello, chat.", "anna").audio
        for event in client.stream("Hello, chat.", "anna", priority="high"):
            if isinstance(event, Piece):
                play(event.data)

A call that fails raises CallFailed; a value that its field cannot hold raises ValueError or OverflowError,
an unknown option TypeError. `timeout` is the deadline in seconds, for the daemon's work too; None sets none.

`messages` builds the request, `connection` adds token and channel, `failures` turns gRPC's error into
CallFailed, `retries` decides on another attempt.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from appliance.addresses import ADMIN_SOCKET
from appliance.client.blocking import Client, Stream
from appliance.client.connection import ADDRESS, NO_CREDENTIALS, SPEAK_S, Credentials
from appliance.client.failures import CallFailed
from appliance.client.messages import Event, Heard, Piece, Reply, plain
from appliance.options import ENCODINGS, PRIORITIES, Encoding, Options, Priority
from appliance.rpc.appliance_pb2 import (
    End,
    Header,
    PausedChannels,
    QueueEvent,
    Style,
    Timings,
    Utterance,
    UtteranceAudio,
    UtteranceBegin,
    UtteranceEnd,
    UtteranceError,
    Voice,
    WordTiming,
)

if TYPE_CHECKING:
    from appliance.client.aio import AsyncClient, AsyncStream, Session
    from appliance.client.operator import Operator
    from appliance.rpc.admin_pb2 import Status

__all__ = [
    "ADDRESS", "ADMIN_SOCKET", "ENCODINGS", "NO_CREDENTIALS", "PRIORITIES", "SPEAK_S", "AsyncClient",
    "AsyncStream", "CallFailed", "Client", "Credentials", "Encoding", "End", "Event", "Header", "Heard",
    "Operator", "Options", "PausedChannels", "Piece", "Priority", "QueueEvent", "Reply", "Session",
    "Status", "Stream", "Style", "Timings", "Utterance", "UtteranceAudio", "UtteranceBegin",
    "UtteranceEnd", "UtteranceError", "Voice", "WordTiming", "plain",
]  # fmt: skip

_LATER = {
    "AsyncClient": "appliance.client.aio",
    "AsyncStream": "appliance.client.aio",
    "Session": "appliance.client.aio",
    "Operator": "appliance.client.operator",
    "Status": "appliance.rpc.admin_pb2",
}
"""Names imported at first use: most commands are blocking and do not operate, and they start often."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
