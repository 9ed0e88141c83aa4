"""The Admin service: status, drain, reload, log level, self test and bundle swap of a running daemon."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from appliance.errors import InvalidRequest
from appliance.fields import shown
from appliance.rpc import admin_pb2 as pb
from appliance.rpc import admin_pb2_grpc
from appliance.rpc.context import Context

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")


class OperatedDaemon(Protocol):
    """The daemon's methods for its operator."""

    def describe(self) -> pb.Status: ...

    def stop(self) -> None:
        """Start to drain. Returns at once."""

    def reload(self) -> list[str]:
        """Read the configuration; returns the sections that need a restart. Raises ConfigError."""
        ...

    async def test_engine(self) -> float:
        """Have the engine speak a silence, and return the seconds it took.

        Raises Unavailable, EngineFault.
        """
        ...

    async def swap(self, folder: Path) -> None:
        """Replace the bundle by the one in a folder.

        Raises ApplianceError; the previous bundle then stays in use.
        """


class AdminService(admin_pb2_grpc.AdminServicer):
    """See admin.proto."""

    def __init__(self, daemon: OperatedDaemon) -> None:
        self._daemon = daemon
        self._swapping = asyncio.Lock()

    async def GetStatus(self, message: pb.GetStatusRequest, context: Context) -> pb.Status:
        return self._daemon.describe()

    async def Drain(self, message: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        self._daemon.stop()
        return pb.DrainResponse()

    async def Reload(self, message: pb.ReloadRequest, context: Context) -> pb.ReloadResponse:
        return pb.ReloadResponse(need_restart=self._daemon.reload())

    async def SetLogLevel(self, message: pb.SetLogLevelRequest, context: Context) -> pb.SetLogLevelResponse:
        if message.level not in LEVELS:
            raise InvalidRequest("level", f"must be {', '.join(LEVELS)}, not {shown(message.level)}")
        logging.getLogger().setLevel(message.level.upper())
        return pb.SetLogLevelResponse()

    async def SelfTest(self, message: pb.SelfTestRequest, context: Context) -> pb.SelfTestResponse:
        return pb.SelfTestResponse(took_ms=1e3 * await self._daemon.test_engine())

    async def SwapBundle(self, message: pb.SwapBundleRequest, context: Context) -> pb.Status:
        folder = Path(message.path)
        if not folder.is_absolute():
            raise InvalidRequest("path", f"must be absolute, not {shown(message.path)}")
        if "\0" in message.path:
            raise InvalidRequest("path", f"must be a path, without NUL, not {shown(message.path)}")
        await self._swapping.acquire()
        swap = asyncio.ensure_future(self._daemon.swap(folder))
        swap.add_done_callback(self._swapped)
        # A swap goes on if its caller leaves: nothing would free the memory of a half-loaded bundle.
        await asyncio.shield(swap)
        return self._daemon.describe()

    def _swapped(self, swap: asyncio.Future[None]) -> None:
        self._swapping.release()
        if not swap.cancelled() and (error := swap.exception()) is not None:
            logger.error("swap: the previous bundle stays in use: %s", error)
