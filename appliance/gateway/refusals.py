"""Error replies: the one table from errors to HTTP statuses, and each API's format of an error."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from appliance.client import CallFailed

logger = logging.getLogger(__name__)

STATUSES: Mapping[str, int] = {
    "INVALID_ARGUMENT": 400,
    "UNIMPLEMENTED": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNKNOWN": 502,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""gRPC status → HTTP status. Any other is 502."""
REASONS: Mapping[str, int] = dict.fromkeys(
    ("OUT_OF_DEVICE_MEMORY", "STORAGE_ERROR", "BUNDLE_ERROR", "PHONES_MISSING"), 503
)
"""Daemon's reason → HTTP status, if the reason is more exact than the gRPC status."""
FIELDS = {"VOICE_NOT_FOUND": "voice"}
"""Daemon's reason → field of the request that is wrong, if the daemon names none."""
KINDS: Mapping[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""HTTP status → `type` of OpenAI's errors. Others: server_error from 500 on, else invalid_request_error."""
UNREACHABLE_RETRY_S = 2.0
AWAY = "the daemon does not answer; it may be starting"
SOVITS = ("/tts", "/control", "/set_")
"""Paths whose errors have GPT-SoVITS's format."""
ELEVENLABS, ELEVENLABS_KEY = ("/v1/text-to-speech/", "/v1/user", "/v1/voices/", "/v2/"), "xi-api-key"
"""Paths whose errors have ElevenLabs' format, and the header of its clients, whose errors always have it."""
REQUEST_ID = "x-request-id"
"""Header with the request's name in the daemon's log. Also the key of that name in an ASGI scope."""


class Refusal(Exception):
    """An HTTP error with a message for the client."""

    def __init__(
        self, status: int, message: str, *, code: str = "", param: str = "", retry_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_s = retry_s
        """Seconds after which a retry may succeed; None if it never does."""

    @property
    def error(self) -> dict[str, Any]:
        kind = KINDS.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param or None, "code": self.code or None}

    def response(self, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
        """Reply in the error format of the request's API."""
        fields = {
            REQUEST_ID: quote(scope.get(REQUEST_ID) or secrets.token_hex(6)),
            # OpenAI's clients retry 409 and all statuses from 500 on, and so would speak skipped speech after
            # all.
            "x-should-retry": "false" if self.retry_s is None else "true",
            **(headers or {}),
        }
        if self.retry_s is not None:
            fields["retry-after"] = str(max(math.ceil(self.retry_s), 1))
        if self.status in (408, 413):
            # The gateway does not read the rest of such a request.
            fields["connection"] = "close"
        body: dict[str, Any] = {"error": self.error}
        path, names = scope["path"], (name for name, _ in scope["headers"])
        if path.startswith(SOVITS):
            body = {"message": self.message, **({"Exception": self.code} if self.code else {})}
        elif path.startswith(ELEVENLABS) or ELEVENLABS_KEY.encode() in names:
            body = {"detail": {"status": self.code, "message": self.message, "param": self.param or None}}
        return JSONResponse(body, self.status, fields)


def refusal_of(error: CallFailed, names: Mapping[str, str] | None = None) -> Refusal:
    """Refusal for a failed call. `names`: field of the gRPC request → parameter of this API."""
    message, param = error.message, error.field or FIELDS.get(error.reason, "")
    if param and names and param in names:
        param = names[param]
        message = message.replace(f"{error.field}:", f"{param}:", 1)
    retry_s = error.retry_s
    if error.status == "UNAVAILABLE" and retry_s is None:
        retry_s = UNREACHABLE_RETRY_S
    if error.status == "UNAVAILABLE" and not error.reason:
        logger.info("the daemon cannot be reached: %s", message)
        message = AWAY
    status = REASONS.get(error.reason) or STATUSES.get(error.status, 502)
    code = (error.reason or error.status).lower()
    return Refusal(status, message, code=code, param=param, retry_s=retry_s)
