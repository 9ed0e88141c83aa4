"""The one table from errors to gRPC statuses, and the interceptor that every call goes through."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from appliance import errors
from appliance.rpc.callers import SHORT_MESSAGE_BYTES, Callers, PlacedCall, PlaceKind, check_fields
from appliance.rpc.context import Context, remaining_s

logger = logging.getLogger(__name__)

CallObserver = Callable[[str, str, str], None]
"""Called once for each finished call: (method, name of the status, reason of the error or "")."""

Parse = Callable[[bytes], Any]
Replies = AsyncIterator[Any] | Awaitable[Any]
"""Results of methods: messages, or one message; None if the method has written its messages."""

DOMAIN = "f5-appliance"
OWN_PACKAGES = ("/appliance.v1.", "/appliance.admin.v1.", "/nvidia.riva.tts.")
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_CHARACTERS = 300
"""Longest message.

Clients drop trailers above 8 KiB, and the message is sent three times, once percent-encoded.
"""


@dataclass(frozen=True)
class StatusRule:
    """Form in which clients see an exception: its gRPC status, and whether a retry may help."""

    code: grpc.StatusCode
    retry_s: int = 0
    """Seconds after which a retry may help, unless the error has its own time; 0 if a retry never helps."""


TABLE: dict[type[errors.ApplianceError], StatusRule] = {
    errors.InvalidRequest: StatusRule(grpc.StatusCode.INVALID_ARGUMENT),
    errors.Unauthenticated: StatusRule(grpc.StatusCode.UNAUTHENTICATED),
    errors.AccessDenied: StatusRule(grpc.StatusCode.PERMISSION_DENIED),
    errors.VoiceNotFound: StatusRule(grpc.StatusCode.NOT_FOUND),
    errors.RequestNotFound: StatusRule(grpc.StatusCode.NOT_FOUND),
    errors.VoiceExists: StatusRule(grpc.StatusCode.ALREADY_EXISTS),
    errors.UnsupportedEncoding: StatusRule(grpc.StatusCode.UNIMPLEMENTED),
    errors.UnknownMethod: StatusRule(grpc.StatusCode.UNIMPLEMENTED),
    errors.QueueFull: StatusRule(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=1),
    errors.Overloaded: StatusRule(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=1),
    errors.RateLimited: StatusRule(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=1),
    errors.TooManyCalls: StatusRule(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=1),
    errors.UploadsFull: StatusRule(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=1),
    errors.Superseded: StatusRule(grpc.StatusCode.ABORTED),
    errors.Merged: StatusRule(grpc.StatusCode.ABORTED),
    errors.Skipped: StatusRule(grpc.StatusCode.ABORTED),
    errors.Cleared: StatusRule(grpc.StatusCode.ABORTED),
    errors.Rejected: StatusRule(grpc.StatusCode.ABORTED),
    # Metrics count DEADLINE_EXCEEDED as replies that were too late, and this reply was not.
    errors.ReaderStalled: StatusRule(grpc.StatusCode.ABORTED),
    errors.DeadlineMissed: StatusRule(grpc.StatusCode.DEADLINE_EXCEEDED),
    errors.Cancelled: StatusRule(grpc.StatusCode.CANCELLED),
    errors.Unavailable: StatusRule(grpc.StatusCode.UNAVAILABLE, retry_s=2),
    errors.ConfigError: StatusRule(grpc.StatusCode.FAILED_PRECONDITION),
    errors.BundleError: StatusRule(grpc.StatusCode.FAILED_PRECONDITION),
    errors.PhonesMissing: StatusRule(grpc.StatusCode.FAILED_PRECONDITION),
    errors.VoiceDamaged: StatusRule(grpc.StatusCode.FAILED_PRECONDITION),
    errors.StorageError: StatusRule(grpc.StatusCode.FAILED_PRECONDITION),
    errors.OutOfDeviceMemory: StatusRule(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=5),
    errors.DeviceLost: StatusRule(grpc.StatusCode.UNAVAILABLE, retry_s=30),
    errors.EngineFault: StatusRule(grpc.StatusCode.INTERNAL),
    errors.ApplianceError: StatusRule(grpc.StatusCode.INTERNAL),
}


def rule_for(error: errors.ApplianceError) -> StatusRule:
    """Rule of the error's class, else of its nearest base class that has a rule."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def reason_of(kind: type[errors.ApplianceError]) -> str:
    """QueueFull → "QUEUE_FULL"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()


def to_status(error: errors.ApplianceError) -> status_pb2.Status:
    """Status with ErrorInfo, with BadRequest if a field is wrong, with RetryInfo if a retry may help."""
    rule = rule_for(error)
    message = _shortened(str(error))
    wait_s = rule.retry_s if error.retry_s is None else error.retry_s
    metadata = {} if error.retry_s is None else {"wait_ms": str(round(1000 * wait_s))}
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=reason_of(type(error)), domain=DOMAIN, metadata=metadata)
    ]
    if isinstance(error, errors.InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if metadata or wait_s:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(1e9 * wait_s))
        details.append(retry)
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    code: int = rule.code.value[0]
    return status_pb2.Status(code=code, message=message, details=packed)


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Charges each call to its caller, parses its messages, and turns exceptions into statuses."""

    def __init__(
        self, observe: CallObserver = lambda method, code, reason: None, callers: Callers | None = None
    ) -> None:
        self._observe, self._callers = observe, callers or Callers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None:
            # Without a handler, gRPC logs a traceback for a call that has ended.
            return grpc.stream_stream_rpc_method_handler(self._guarded("", _refuse_unknown, bytes, True))
        behaviour = handler.unary_unary or handler.unary_stream or handler.stream_stream
        # Every method is registered as stream-stream, which looks the same on the wire: only then does gRPC
        # read on demand and report when the reader has taken a reply. Messages are parsed here, because gRPC
        # answers a failure of its deserializer with UNKNOWN and a traceback.
        return grpc.stream_stream_rpc_method_handler(
            self._guarded(method, behaviour, handler.request_deserializer, handler.request_streaming),
            response_serializer=handler.response_serializer,
        )

    def _guarded(
        self, path: str, behaviour: Callable[..., Replies], parse: Parse, streaming: bool
    ) -> Callable[..., Awaitable[None]]:
        """A handler that calls `behaviour`, and turns every exception into a gRPC status and a metric."""
        method = path.rpartition("/")[2]
        is_own = path.startswith(OWN_PACKAGES)
        observe = self._observe if is_own else lambda method, code, reason: None

        async def guarded(_: object, context: Context) -> None:
            try:
                with self._callers.call(path, context) as call:
                    # The status must be sent inside this block. It waits behind a message that the client
                    # does not read, and the message's bytes stay charged until the connection ends.
                    await serve(call)
            except errors.ApplianceError as refused:
                await self._abort(method, refused, context, observe)

        async def serve(call: PlacedCall) -> None:
            """Call the method and send its replies, then the status of its failure."""
            context = call.context
            allowed_s = remaining_s(context)
            try:
                request = self._each(call, parse) if streaming else await self._only(call, parse)
                replies = behaviour(request, context)
                if isinstance(replies, AsyncIterator):
                    async for reply in replies:
                        await call.send(reply)
                elif (reply := await replies) is not None:
                    await call.send(reply)
            except grpc.aio.AbortError:  # the health service sets a status itself
                raise
            except asyncio.CancelledError:
                if call.ended_by is None:
                    if _is_past(remaining_s(context), allowed_s):
                        observe(
                            method, TABLE[errors.DeadlineMissed].code.name, reason_of(errors.DeadlineMissed)
                        )
                    else:
                        observe(method, grpc.StatusCode.CANCELLED.name, "")
                    raise
                failure = call.ended_by
            except errors.ApplianceError as error:
                failure = error
            except Exception as error:
                number = secrets.token_hex(4)
                if errors.lacks_memory(repr(error)):
                    failure = errors.OutOfDeviceMemory("this machine has too little memory left")
                else:
                    logger.exception("%s from %s failed, error %s", method, context.peer(), number)
                    failure = errors.ApplianceError(f"internal error {number}; the daemon's log has it")
            else:
                observe(method, grpc.StatusCode.OK.name, "")
                return
            # A client that does not read gets its status late or never. Until then a traceback would keep the
            # call's audio in memory.
            failure.__traceback__ = failure.__context__ = None
            await self._abort(method, failure, context, observe)

        return guarded

    async def _only(self, call: PlacedCall, parse: Parse) -> Any:
        """Message of a call that has exactly one. Raises InvalidRequest, TooManyCalls."""
        await call.enter()
        call.arriving_since = call.clock()
        message = await call.context.read()
        call.arriving_since = None
        if message is grpc.aio.EOF:
            raise errors.InvalidRequest("message", "is missing: the call was closed without one")
        call.hold(len(message))
        if call.kind is not PlaceKind.SPEECH:  # speech waits for the planner first
            call.leave(len(message))
        return await self._parsed(message, call, parse)

    async def _each(self, call: PlacedCall, parse: Parse) -> AsyncIterator[Any]:
        """Messages of a client's stream, as they are read. Checks the token at each one."""
        while (message := await call.context.read()) is not grpc.aio.EOF:
            self._callers.access(call.method, call.context)  # the token may be revoked by now
            with call.holding(len(message)):
                if len(message) > SHORT_MESSAGE_BYTES:
                    await call.enter()
                    call.leave(len(message))
                yield await self._parsed(message, call, parse)

    async def _parsed(self, message: bytes, call: PlacedCall, parse: Parse) -> Any:
        """Parse a message. A long one is parsed in a thread. Raises InvalidRequest."""
        most = self._callers.most_bytes(call.method)
        if len(message) > most:
            raise errors.InvalidRequest("message", f"has {len(message)} bytes; at most {most} are allowed")
        try:
            if len(message) <= SHORT_MESSAGE_BYTES:
                return parse(message)
            return await asyncio.to_thread(_parsed_long, message, parse)
        except DecodeError as error:
            name = call.method.rpartition("/")[2]
            raise errors.InvalidRequest(
                "message", f"is not the protobuf of a {name} request, as appliance.proto has it ({error})"
            ) from error

    async def _abort(
        self, method: str, error: errors.ApplianceError, context: Context, observe: CallObserver
    ) -> NoReturn:
        """End the call with the status of an error."""
        status = to_status(error)
        code = rule_for(error).code
        observe(method, code.name, reason_of(type(error)))
        if isinstance(error, errors.EngineFault):
            logger.error("%s from %s: %s", method, context.peer(), error)
        try:
            await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
        except grpc.aio.InternalError:  # raised if the call has ended; gRPC logs a traceback
            raise asyncio.CancelledError from None
        raise AssertionError("abort returned")


async def _refuse_unknown(messages: object, context: Context) -> None:
    raise errors.UnknownMethod("no service here has this method")


def _parsed_long(message: bytes, parse: Parse) -> Any:
    check_fields(message)
    return parse(message)


def _is_past(left_s: float, allowed_s: float) -> bool:
    """True if a cancelled call ended at its deadline.

    The caller's clock is ahead by the message's travel time, and gRPC rounds deadlines up by up to 1 %.
    """
    return math.isfinite(allowed_s) and left_s <= 0.1 + 0.01 * allowed_s


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[: MAX_MESSAGE_CHARACTERS - 1] + "…"
