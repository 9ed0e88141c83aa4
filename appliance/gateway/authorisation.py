"""Access by the daemon's tokens and roles. Over its Unix socket the daemon itself asks for none."""

from __future__ import annotations

from functools import partial

from anyio import move_on_after
from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.access.places import CallerPlace, CallerPlaces, HttpConnection
from appliance.access.token_file import FORM, Role, Tokens
from appliance.client.connection import CALLER, TOKEN
from appliance.errors import AccessDenied, Unauthenticated
from appliance.gateway.refusals import Refusal

PROBES = ("/livez", "/readyz")
OPEN = (*PROBES, "/", "/overlay", "/openapi.json")
OPEN_BELOW = "/static/"
"""Paths that need no token: probes, the description, and pages, whose own calls send the token."""
SEE_VOICES = (Role.SPEAK, Role.VOICES)
STORED_VOICES = "/v1/audio/voices"
VOICES = (
    *("/v1/models", "/v1/audio/models", STORED_VOICES, "/v1/voices", "/v2/voices"),
    "/v1/user",
    *("/audio/models", "/audio/voices"),
)
MODERATE = ("/api/channels/", "/api/users/")
TOKEN_NEEDED = "a token is needed: send the header `Authorization: Bearer TOKEN`, or ?token=TOKEN"
IN_ADDRESS = ("token", "authorization", "single_use_token")
"""Parameters of the address that may contain a token; the last two are ElevenLabs'."""
KEY_MAY_FOLLOW = "stream-input"
"""Ends of the paths of ElevenLabs' WebSockets, whose first message may contain the key."""
KEY_FOLLOWS = "appliance.key_follows"
"""Key in the scope of a WebSocket without a token.

Its value checks a later token, and returns the refusal.
"""
CONNECTIONS = ("http", "websocket")
"""Kinds of ASGI scopes that are requests."""
BUSY_RETRY_S = 1.0
MAX_UPLOADS = 4
"""Most uploads at one time, of all callers. Each takes three times its size in memory."""
DISCARDED_BYTES, DISCARDED_S = 16 << 20, 5.0
"""Limits for reading the body of a refused request."""


def changes_voices(path: str, method: str) -> bool:
    return method in ("POST", "DELETE") and _is_below(path, STORED_VOICES)


def _is_below(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}/")


def method_of(scope: Scope) -> str:
    """HTTP method of a request; a WebSocket begins with a GET."""
    return str(scope.get("method", "GET"))


def roles(scope: Scope) -> tuple[Role, ...]:
    """Roles for a request, of which one is enough. The role admin is enough for every request."""
    path = scope["path"]
    if changes_voices(path, method_of(scope)):
        return (Role.VOICES,)
    if path.startswith(MODERATE):
        return ()
    if any(_is_below(path, name) for name in VOICES):
        return SEE_VOICES
    return (Role.SPEAK,)


class AccessMiddleware:
    """Passes on requests with a valid token, as long as places are free, and names their caller to the
    daemon.

    A daemon that the gateway reaches by TCP checks the token itself.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None, max_requests: int) -> None:
        """If `tokens` is None, no request needs a token."""
        self._app, self._tokens = app, tokens
        self._requests, self._uploads = CallerPlaces(max_requests), CallerPlaces(MAX_UPLOADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in CONNECTIONS:
            self._call_for(scope, _token(scope))
        if scope["type"] not in CONNECTIONS or is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is None:
            is_upload = scope["path"] == STORED_VOICES and method_of(scope) == "POST"
            places = self._uploads if is_upload else self._requests
            connection: HttpConnection = scope["state"]["connection"]
            place = CallerPlace(CALLER.get(), connection.is_arriving, connection.close)
            if is_upload:
                place.is_idle = lambda: False
            elif KEY_FOLLOWS in scope:
                place.is_idle = lambda: KEY_FOLLOWS in scope
            with connection.holding(place, places) as has_place:
                if has_place:
                    await self._app(scope, receive, send)
                    return
            kind = "uploads" if is_upload else "requests (gateway.max_requests)"
            message = f"{places.most} {kind} are under way, or this caller has as many as it may"
            refused = Refusal(429, message, code="too_many_calls", retry_s=BUSY_RETRY_S)
        if scope["type"] == "http":
            await _discard_body(receive)
        await refused.response(scope)(scope, receive, send)

    def _call_for(self, scope: Scope, token: str) -> None:
        """Set the caller in this context: `token NAME`, or `http ADDRESS` without a valid token."""
        holder = self._tokens.find(token) if self._tokens is not None else None
        address, _ = scope["client"] or ("unknown", 0)
        CALLER.set(f"http {address}" if holder is None else holder.caller)
        TOKEN.set(token if FORM.fullmatch(token) else "")

    def _refusal(self, scope: Scope) -> Refusal | None:
        token = _token(scope)
        may_follow = scope["type"] == "websocket" and scope["path"].endswith(KEY_MAY_FOLLOW)
        if self._tokens is not None and may_follow and not token:
            scope[KEY_FOLLOWS] = partial(self._refusal_of_token, scope)
            return None
        return self._refusal_of_token(scope, token)

    def _refusal_of_token(self, scope: Scope, token: str) -> Refusal | None:
        """Refusal of a token; None if the token has the role. Later calls are then of the token's holder."""
        if self._tokens is None:
            return None
        try:
            self._tokens.check(token, roles(scope))
        except Unauthenticated as error:
            return Refusal(401, str(error) if token else TOKEN_NEEDED, code="unauthenticated")
        except AccessDenied as error:
            return Refusal(403, str(error), code="access_denied")
        if scope.pop(KEY_FOLLOWS, None):
            self._call_for(scope, token)
        return None


async def _discard_body(receive: Receive) -> None:
    """Read a body. A client that still sends when the connection closes does not see the reply."""
    remaining = DISCARDED_BYTES
    with move_on_after(DISCARDED_S):
        while remaining > 0 and (message := await receive()).get("more_body"):
            remaining -= len(message["body"])


def is_open(path: str) -> bool:
    """True if the path needs no token."""
    return path in OPEN or path.startswith(OPEN_BELOW)


def _token(scope: Scope) -> str:
    """Token from the header of OpenAI or ElevenLabs, or from the address; "" without one."""
    headers = Headers(scope=scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if key := headers.get("xi-api-key", "").strip():
        return key
    query = QueryParams(scope["query_string"])
    return next((bare(query[name]) for name in IN_ADDRESS if query.get(name)), "")


def bare(token: str) -> str:
    """Token without the scheme that may precede it."""
    return token.strip().removeprefix("Bearer ").strip()
