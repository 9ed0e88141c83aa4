"""The box minute by minute, as the daemon reports it at `server.metrics`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from appliance.box.checks.readiness import SILENT, told

LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Host of a daemon that listens on all addresses → host at which this machine reaches it."""


async def _minutes(request: Request) -> Response:
    """Clocks, temperature, engine, speech and first audio of each of the last 120 minutes."""
    host, _, port = request.app.state.config.server.metrics.rpartition(":")
    state = await asyncio.to_thread(told, f"{LOOPBACK.get(host, host)}:{port}") if port else SILENT
    return JSONResponse({"state": state.state, "minutes": state.minutes})


ROUTES: list[BaseRoute] = [Route("/api/minutes", _minutes, methods=["GET"])]
