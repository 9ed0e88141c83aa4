"""The command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from appliance.bench import BenchError
from appliance.box.show.streams import open_streams
from appliance.cli import check, enrolling, measuring, operating, running, saying
from appliance.cli.options import FAILED, Failure, print_line
from appliance.client import CallFailed
from appliance.errors import ApplianceError

COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "serve": ("run the daemon", running.add_serve),
    "gateway": ("HTTP for clients that speak no gRPC", running.add_gateway),
    "wyoming": ("speech for Home Assistant", running.add_wyoming),
    "prepare": ("build the GPU's engines before the first start", running.add_prepare),
    "say": ("speak a text through the daemon", saying.add_say),
    "cancel": ("end a request by its id", saying.add_cancel),
    "queue": ("what waits and sounds; skip, clear, pause, resume", saying.add_queue),
    "voices": ("list, add, show, remove and copy reference voices", enrolling.add_voices),
    "tokens": ("make, list and revoke the tokens of clients, on the box", operating.add_tokens),
    "admin": ("operate the running daemon, on the box", operating.add_admin),
    "bundle": ("install another bundle, and go back, on the box", operating.add_bundle),
    "check": ("is everything well? exits with 0, or 1 or 2 if not", check.add_arguments),
    "replay": ("one given case on the device's engine", running.add_replay),
    "bench": ("measure a running daemon", measuring.add_bench),
}
"""Help of each command, and the function that adds its arguments and sets its `run`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    open_streams("stand-in")
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (ApplianceError, BenchError, Failure) as error:
        print_line(f"appliance {options.command}: {error}", sys.stderr)
    except CallFailed as error:
        print_line(f"appliance {options.command}: {_explained(error, options.address)}", sys.stderr)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # `appliance voices list | head` has read enough; Python would flush once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _explained(error: CallFailed, address: str) -> str:
    if error.status != "UNAVAILABLE" or error.reason:
        return str(error)
    if error.unreachable:
        return f"no daemon answers at {address}; start one with `appliance serve`"
    return f"{address} takes connections, but no call: is it a daemon, with this TLS (--authority)? {error}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="appliance", description="F5-TTS as a voice box, over gRPC.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, add_arguments) in COMMANDS.items():
        add_arguments(commands.add_parser(name, help=about))
    return parser
