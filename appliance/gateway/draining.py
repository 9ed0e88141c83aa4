"""Reply for clients that still wait for a first byte when the gateway ends."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from appliance.gateway.refusals import UNREACHABLE_RETRY_S, Refusal

ENDED = Refusal(503, "the gateway is restarted", code="draining", retry_s=UNREACHABLE_RETRY_S)


class DrainMiddleware:
    """Answers a request that uvicorn cancels after `gateway.drain_s`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_begun = False

        async def sent(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except asyncio.CancelledError:
            if is_begun or scope["type"] != "http":
                raise
            await ENDED.response(scope)(scope, receive, send)
