"""The daemon's own addresses, and those that cannot be listened at."""

from __future__ import annotations

import errno

LOOPBACK_GRPC = "127.0.0.1:50051"
ADMIN_SOCKET = "/run/f5-appliance/admin.sock"


class AddressInUse(Exception):
    """Another process listens there already."""


class AddressNotOurs(Exception):
    """No interface of this machine has the address."""


def cannot_listen(key: str, address: str, error: OSError) -> AddressInUse | AddressNotOurs:
    """Error for an address, configured under `key`, that could not be bound."""
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressNotOurs(f"{key}: cannot listen on {address}: this machine has no such address")
    return AddressInUse(f"{key}: cannot listen on {address}: {error.strerror}")
