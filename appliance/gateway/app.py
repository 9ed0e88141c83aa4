"""The ASGI application: routes, the middleware before them, and one handler for each kind of error."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from weakref import WeakValueDictionary

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from appliance.access.certificates import read_authority
from appliance.access.reach import daemon_address
from appliance.access.token_file import Tokens
from appliance.client import NO_CREDENTIALS, AsyncClient, CallFailed, Credentials
from appliance.config import Config
from appliance.gateway import elevenlabs, openai, openapi, pages, sovits, stream_input, voices
from appliance.gateway.authorisation import AccessMiddleware
from appliance.gateway.draining import DrainMiddleware
from appliance.gateway.refusals import Refusal, refusal_of
from appliance.gateway.sites import SitesMiddleware

PROBE_TIMEOUT_S = 2.0
CLIENT_CLOSED_REQUEST = 499


def address_of(config: Config) -> str:
    """Address of the daemon. Raises ConfigError."""
    return config.gateway.daemon or daemon_address(config.server)


def credentials_of(config: Config) -> Credentials:
    """Credentials for the daemon: TLS if `gateway.authority` is set. Raises ConfigError."""
    path, context = config.gateway.authority, ssl.create_default_context()
    return Credentials(read_authority(context, "gateway.authority", path)) if path else NO_CREDENTIALS


def make_app(config: Config) -> Starlette:
    """Application. It connects to the daemon at its first request."""
    address, credentials = address_of(config), credentials_of(config)
    tokens = Tokens(Path(config.server.tokens)) if config.server.tokens else None

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncClient(address, credentials) as client:
            app.state.client = client
            yield

    app = Starlette(
        routes=[
            Route("/livez", _alive),
            Route("/readyz", _ready),
            *openai.ROUTES,
            *elevenlabs.ROUTES,
            *stream_input.ROUTES,
            *voices.ROUTES,
            *sovits.ROUTES,
            *pages.ROUTES,
            *openapi.ROUTES,
        ],
        middleware=[
            Middleware(DrainMiddleware),
            Middleware(SitesMiddleware, config.gateway, bool(config.server.tls_certificate)),
            Middleware(AccessMiddleware, tokens, config.gateway.max_requests),
        ],
        exception_handlers={
            HTTPException: _http_error,
            Refusal: _refused,
            CallFailed: _call_failed,
            ClientDisconnect: _disconnected,
            Exception: _fault,
        },
        lifespan=lifespan,
    )
    app.state.config = config
    app.state.turns = WeakValueDictionary()
    return app


async def _alive(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _ready(request: Request) -> Response:
    try:
        serving = await request.app.state.client.health(timeout=PROBE_TIMEOUT_S) == "SERVING"
    except CallFailed:
        serving = False
    return PlainTextResponse("ok\n" if serving else "no\n", 200 if serving else 503)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase.lower()
    code = phrase.replace(" ", "_")
    message = f"{request.method} {request.url.path[:100]}: {phrase}"
    return Refusal(error.status_code, message, code=code).response(request.scope, error.headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response(request.scope)


async def _call_failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, CallFailed)
    return refusal_of(error).response(request.scope)


async def _disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _fault(request: Request, error: Exception) -> Response:
    # uvicorn logs the traceback.
    return Refusal(500, "internal error; the gateway's log has it").response(request.scope)
