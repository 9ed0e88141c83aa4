"""Host names of a server that no page of another site can have in a browser."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from appliance.config import HOST, is_loopback, split_address

AUTHORITY = re.compile(rf"({HOST})\.?(?::([0-9]*))?", re.IGNORECASE | re.ASCII)
"""Host and port of a Host header."""


class OwnNames:
    """Host names that belong to this machine, so that a page of another site cannot use its own name."""

    def __init__(self, listen: str, names: Iterable[str]) -> None:
        """`names` adds hosts that the operator vouches for."""
        host, _ = split_address("listen", listen)
        self._is_beyond_loopback = not is_loopback(host)
        self._names = {name.lower().rstrip(".") for name in names}
        if self._is_beyond_loopback:
            machine = socket.gethostname().lower()
            label = machine.partition(".")[0]
            self._names |= {host.lower(), machine, label, f"{label}.local"}

    def __contains__(self, host: str) -> bool:
        host = host.lower()
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return host in self._names or host == "localhost" or host.endswith(".localhost")
        # Browsers reach this machine by these two as well, and do not report from which site.
        if address.is_unspecified or getattr(address, "ipv4_mapped", None):
            return False
        return self._is_beyond_loopback or address.is_loopback or host in self._names
