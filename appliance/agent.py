"""haproxy's agent check: a line with the state and the weight of this box for each connection, then the end.

    up ready 63%       takes requests; 37 % of the engine's next seconds are taken
    drain              finishes what it has, takes nothing new
    down # starting    takes nothing, and why

The grammar is that of haproxy's server option `agent-check`. Nothing is read, and the line names no voice, no
text and no caller.
"""

from __future__ import annotations

import socketserver
from collections.abc import Callable

from appliance.probes import PAUSE_S, ProbeServer


class AgentServer(ProbeServer):
    """Answers agent checks."""

    def __init__(self, address: str, *, state: Callable[[], str], busy: Callable[[], float]) -> None:
        """`state` and `busy` are the arguments of `line`. Raises OSError when the address is taken."""

        class Handler(socketserver.StreamRequestHandler):
            timeout = PAUSE_S

            def handle(self) -> None:
                self.wfile.write(line(state(), busy()).encode())

        super().__init__("agent", address, Handler)


def line(state: str, busy: float) -> str:
    """The answer of a box that is "running", "draining", or in another state in which it takes nothing.

    `busy` is the taken share of its engine's next seconds (`Scheduler.busy`). `up` and `ready` undo an
    earlier `down` and `drain`, which haproxy leaves to the agent. A weight of 0 % would mean `drain`, so a
    full box says 1 %: it is asked last, and refuses by itself.
    """
    if state == "draining":
        return "drain\n"
    if state != "running":
        return f"down # {state}\n"
    return f"up ready {min(max(round(100 * (1 - busy)), 1), 100)}%\n"
