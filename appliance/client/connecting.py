"""Keeps calls in order while the connection opens, which grpc.aio does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio


class InOrder(grpc.aio.UnaryStreamClientInterceptor):
    """Begins calls in their order, once the connection is open or has failed."""

    def __init__(self, connection: Callable[[], Any]) -> None:
        """`connection` returns the channel of grpc.aio, which does not exist yet."""
        self._connection = connection
        self._opening: asyncio.Task[None] | None = None

    async def intercept_unary_stream(
        self, continuation: Callable[[Any, Any], Any], details: grpc.aio.ClientCallDetails, request: Any
    ) -> Any:
        if self._opening is None and self._state() is not grpc.ChannelConnectivity.READY:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(self._opened)
        if self._opening is not None:
            await asyncio.wait((self._opening,), timeout=details.timeout)
        return await continuation(details, request)

    def _state(self) -> grpc.ChannelConnectivity:
        state: grpc.ChannelConnectivity = self._connection().get_state(try_to_connect=True)
        return state

    async def _open(self) -> None:
        connectivity = grpc.ChannelConnectivity
        while (state := self._state()) in (connectivity.IDLE, connectivity.CONNECTING):
            await self._connection().wait_for_state_change(state)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
