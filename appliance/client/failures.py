"""CallFailed, and the translation of gRPC's errors into it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

DETAILS_KEY = "grpc-status-details-bin"
PROBE_S = 1.0
CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED:?([\w -]*)|Hostname Verification Check failed")
"""gRPC's messages about a certificate that it refuses."""


class CallFailed(Exception):
    """A call ended with a gRPC status other than OK."""

    def __init__(
        self,
        status: str,
        message: str,
        reason: str = "",
        field: str = "",
        retry_s: float | None = None,
        address: str = "",
    ) -> None:
        super().__init__(f"{message} ({status})")
        self.status = status
        """Name of the gRPC status, as "RESOURCE_EXHAUSTED"."""
        self.message = message
        self.reason = reason
        """Reason that the daemon gives, as "QUEUE_FULL"; "" without one."""
        self.field = field
        """Wrong field of the request; "" if none is wrong."""
        self.retry_s = retry_s
        """Seconds after which a retry may succeed; None if unknown."""
        self._address = address

    @property
    def explained(self) -> str:
        """Message for a person: the daemon's, or the reason why no call reached a daemon."""
        if self.status != "UNAVAILABLE" or self.reason:
            return str(self)
        if match := CERTIFICATE.search(self.message):
            why = (match[1] or "it does not name this address").strip()
            return f"the certificate at {self._address} is refused: {why}"
        if self.unreachable:
            return f"no daemon answers at {self._address}"
        where = f"{self._address} accepts connections, but answers no call"
        return f"{where}: is it a daemon, with this TLS (--authority)? {self}"

    @property
    def unreachable(self) -> bool:
        """True if nothing listens at the address. Resolves the address and tries it for up to a second."""
        return self.status == "UNAVAILABLE" and not self.reason and not _listens(self._address)


@contextmanager
def grpc_failures(address: str) -> Iterator[None]:
    """Turn gRPC's errors into CallFailed."""
    try:
        yield
    except grpc.RpcError as error:
        raise _call_failed(error, address) from error


def _call_failed(error: Any, address: str) -> CallFailed:
    """CallFailed with the daemon's ErrorInfo, BadRequest and RetryInfo."""
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status.ParseFromString(value)
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    retry_s = None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
        if detail.Unpack(retry):
            retry_s = retry.retry_delay.ToTimedelta().total_seconds()
    field = bad.field_violations[0].field if bad.field_violations else ""
    return CallFailed(error.code().name, error.details() or "", info.reason, field, retry_s, address)


def _listens(address: str) -> bool:
    """True if host:port or unix:PATH accepts a connection, or the target is of another kind."""
    host, _, port = address.rpartition(":")
    try:
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(PROBE_S)
                probe.connect(address.removeprefix("unix:"))
        elif port.isdecimal() and "/" not in host:
            socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, OverflowError):
        return False
    return True
