"""Server for haproxy's `agent-check`: each connection gets one line, the state and weight of this box.

up ready 63%       takes requests; 37 % of the engine's next seconds are taken
drain              finishes what it has, takes nothing new
down # starting    takes nothing, and why
"""

from __future__ import annotations

import socketserver
from collections.abc import Callable

from appliance.serve.probes import PAUSE_S, ProbeServer


class AgentServer(ProbeServer):
    def __init__(self, address: str, *, state: Callable[[], str], busy: Callable[[], float]) -> None:
        """Raises OSError."""

        class Handler(socketserver.StreamRequestHandler):
            timeout = PAUSE_S

            def handle(self) -> None:
                self.wfile.write(line(state(), busy()).encode())

        super().__init__("agent", address, Handler)


def line(state: str, busy: float) -> str:
    """Line for a state; but in "running" and "draining" the box takes no requests.

    `busy`: taken share of the engine's next seconds. haproxy keeps `down` and `drain` until the agent answers
    `up` and `ready`, and reads 0 % as `drain`: a full box has 1 %.
    """
    if state == "draining":
        return "drain\n"
    if state != "running":
        return f"down # {state}\n"
    return f"up ready {min(max(round(100 * (1 - busy)), 1), 100)}%\n"
