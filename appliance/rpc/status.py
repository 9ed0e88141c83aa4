"""The one table from errors to gRPC statuses, and the interceptor that applies it to every method."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from appliance.errors import (
    ApplianceError,
    BundleError,
    Cancelled,
    ConfigError,
    DeadlineMissed,
    EngineFault,
    InvalidRequest,
    QueueFull,
    StorageError,
    Unavailable,
    UnsupportedEncoding,
    VoiceExists,
    VoiceNotFound,
)

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Observer = Callable[[str, str, str], None]
"""Called once for each finished call with its method, its status' name, and why it was refused or ""."""

DOMAIN = "f5-appliance"
OWN_PACKAGE = "/appliance.v1."
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_CHARACTERS = 300
"""Clients drop trailers over 8 KiB; the message travels three times, once of them percent-encoded."""


@dataclass(frozen=True)
class Rule:
    """What becomes of a kind of error."""

    code: grpc.StatusCode
    retry_s: int = 0
    """When trying again may help; 0 for never."""


TABLE: dict[type[ApplianceError], Rule] = {
    InvalidRequest: Rule(grpc.StatusCode.INVALID_ARGUMENT),
    VoiceNotFound: Rule(grpc.StatusCode.NOT_FOUND),
    VoiceExists: Rule(grpc.StatusCode.ALREADY_EXISTS),
    UnsupportedEncoding: Rule(grpc.StatusCode.UNIMPLEMENTED),
    QueueFull: Rule(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=1),
    DeadlineMissed: Rule(grpc.StatusCode.DEADLINE_EXCEEDED),
    Cancelled: Rule(grpc.StatusCode.CANCELLED),
    Unavailable: Rule(grpc.StatusCode.UNAVAILABLE, retry_s=2),
    ConfigError: Rule(grpc.StatusCode.FAILED_PRECONDITION),
    BundleError: Rule(grpc.StatusCode.FAILED_PRECONDITION),
    StorageError: Rule(grpc.StatusCode.FAILED_PRECONDITION),
    EngineFault: Rule(grpc.StatusCode.INTERNAL),
    ApplianceError: Rule(grpc.StatusCode.INTERNAL),
}


def rule_for(error: ApplianceError) -> Rule:
    """The rule of an error's nearest class."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def reason_of(kind: type[ApplianceError]) -> str:
    """QueueFull → "QUEUE_FULL"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()


def to_status(error: ApplianceError) -> status_pb2.Status:
    """An error with its details: ErrorInfo always, BadRequest for a field, RetryInfo if a retry may help."""
    rule = rule_for(error)
    message = _shortened(str(error))
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason_of(type(error)), domain=DOMAIN)]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if rule.retry_s:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromSeconds(rule.retry_s)
        details.append(retry)
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    code: int = rule.code.value[0]
    return status_pb2.Status(code=code, message=message, details=packed)


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a method raises into its status. The daemon goes on, whatever it was."""

    def __init__(self, observe: Observer = lambda method, code, reason: None) -> None:
        self._observe = observe

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.rpartition("/")
        if handler is None or not service.startswith(OWN_PACKAGE):
            # Health and reflection have their own ways to say what is wrong.
            return handler
        make = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(
            self._guarded(method, handler.unary_stream or handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _guarded(self, method: str, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                reply = await behaviour(request, context)
            except asyncio.CancelledError:
                self._observe(method, grpc.StatusCode.CANCELLED.name, "")
                raise
            except ApplianceError as error:
                await self._abort(method, error, context)
            except Exception as error:
                number = secrets.token_hex(4)
                logger.exception("%s failed, error %s", method, number)
                fault = ApplianceError(f"internal error {number}; the daemon's log has it")
                fault.__cause__ = error
                await self._abort(method, fault, context)
            self._observe(method, grpc.StatusCode.OK.name, "")
            return reply

        return guarded

    async def _abort(self, method: str, error: ApplianceError, context: Context) -> NoReturn:
        status = to_status(error)
        code = rule_for(error).code
        self._observe(method, code.name, reason_of(type(error)))
        if isinstance(error, EngineFault):
            logger.error("%s: %s", method, error)
        await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
        raise AssertionError("abort returned")


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[: MAX_MESSAGE_CHARACTERS - 1] + "…"
