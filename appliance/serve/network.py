"""Waits until the network gives this machine its addresses."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Mapping

from appliance.config import split_address
from appliance.serve.notify import Notifier

WAIT_S = 600.0
"""Longest wait, in seconds: a switch may have to boot, and DHCP may be slow."""
PAUSE_S = 1.0


def await_addresses(
    addresses: Mapping[str, str],
    notifier: Notifier,
    *,
    within_s: float = WAIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until this machine has each address (key → host:port, or ""). systemd's start timeout is extended.

    Returns also after `within_s`, or if an address is wrong in another way: binding then raises the error.
    """
    end = clock() + within_s
    for key, address in addresses.items():
        while address and not _is_ours(address) and clock() < end:
            notifier.status(f"waiting for the network: {key}: this machine has no address {address} yet")
            notifier.extend(60 * PAUSE_S)
            sleep(PAUSE_S)


def _is_ours(address: str) -> bool:
    """True if an address belongs to this machine."""
    host = split_address("address", address)[0].strip("[]")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with contextlib.closing(socket.socket(family, kind)) as probe:
            probe.bind(target)
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
