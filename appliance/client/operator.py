"""The client of the Admin socket."""

from __future__ import annotations

from typing import Any

import grpc

from appliance.addresses import ADMIN_SOCKET
from appliance.client.connection import UPLOAD_S
from appliance.client.failures import grpc_failures
from appliance.rpc import admin_pb2, admin_pb2_grpc
from appliance.rpc.admin_pb2 import Status


class Operator:
    """Client of the Admin socket, which is on the box itself."""

    def __init__(self, socket: str = ADMIN_SOCKET) -> None:
        self._address = f"unix:{socket}"
        self._connection = grpc.insecure_channel(self._address)
        self._admin = admin_pb2_grpc.AdminStub(self._connection)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def status(self) -> Status:
        status: Status = self._call(self._admin.GetStatus, admin_pb2.GetStatusRequest())
        return status

    def drain(self) -> None:
        """Have the daemon finish the requests under way, and exit."""
        self._call(self._admin.Drain, admin_pb2.DrainRequest())

    def reload(self) -> list[str]:
        """Have the daemon read the configuration; return the sections that need a restart."""
        return list(self._call(self._admin.Reload, admin_pb2.ReloadRequest()).need_restart)

    def log_level(self, level: str) -> None:
        """Set the level to debug, info, warning or error."""
        self._call(self._admin.SetLogLevel, admin_pb2.SetLogLevelRequest(level=level))

    def self_test(self) -> float:
        """Have the engine speak a silence; return the seconds it took."""
        return float(self._call(self._admin.SelfTest, admin_pb2.SelfTestRequest()).took_ms) / 1e3

    def swap(self, bundle: str, *, timeout: float | None = None) -> Status:
        """Load the bundle in another folder, and use it. No stream is dropped."""
        request = admin_pb2.SwapBundleRequest(path=bundle)
        status: Status = self._call(self._admin.SwapBundle, request, timeout)
        return status

    def _call(self, method: Any, request: Any, timeout: float | None = UPLOAD_S) -> Any:
        with grpc_failures(self._address):
            return method(request, timeout=timeout)
