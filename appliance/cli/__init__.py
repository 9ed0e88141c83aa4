"""The command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from appliance.bench import BenchError
from appliance.box.show.streams import open_streams
from appliance.cli.options import FAILED, Failure, own_address, print_line
from appliance.errors import ApplianceError

if TYPE_CHECKING:
    from appliance.client import CallFailed

COMMANDS = {
    "serve": ("running", "run the daemon"),
    "gateway": ("running", "HTTP for clients that speak no gRPC"),
    "wyoming": ("running", "speech for Home Assistant"),
    "prepare": ("running", "build the GPU's engines before the first start"),
    "say": ("saying", "speak a text through the daemon"),
    "marked": (
        "marking",
        "check whether a file is marked as synthetic; exits with 0, 1 if not, 2 if it is unreadable",
    ),
    "cancel": ("saying", "end a request by its id"),
    "queue": ("saying", "list and moderate waiting and sounding requests"),
    "voices": ("enrolling", "list, add, show and remove reference voices"),
    "tokens": ("operating", "make, list and revoke clients' tokens, on the box"),
    "admin": ("operating", "operate the running daemon, on the box"),
    "bundle": ("operating", "install another bundle or return to the previous one, on the box"),
    "check": ("checking", "check the daemon and its files; exits with 0, 1 for warnings, 2 for failures"),
    "replay": ("running", "compute one case on the device's engine"),
    "bench": ("measuring", "measure a running daemon"),
}
"""Command → its module and help. The module's `add_COMMAND` adds arguments and sets `run`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    open_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser(arguments).parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        if getattr(options, "address", "") is None:
            options.address = own_address(options)
        return run(options)
    except (ApplianceError, BenchError, Failure) as error:
        print_line(f"appliance {options.command}: {error}", sys.stderr)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # `appliance voices list | head` closes the pipe early. Python would flush once more at its end, and
        # fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except _call_failed() as error:
        hint = "; start one with `appliance serve`" if error.unreachable else ""
        print_line(f"appliance {options.command}: {error.explained}{hint}", sys.stderr)
    return FAILED


def _call_failed() -> type[CallFailed]:
    """The client's error.

    It is imported only to handle an exception, because gRPC loads longer than most commands run.
    """
    from appliance.client import CallFailed

    return CallFailed


class Parser(argparse.ArgumentParser):
    """Parser that shows its own usage with an unknown option; argparse would show `appliance`'s."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Parser that knows every command, and the arguments of the command in `arguments`."""
    parser = Parser(prog="appliance", description="F5-TTS as a voice box, over gRPC.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Every argument before the command is an option, so the first name of a command is the command.
    subcommand = next((argument for argument in arguments if argument in COMMANDS), None)
    for name, (module, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        if name == subcommand:
            getattr(import_module(f"appliance.cli.{module}"), f"add_{name}")(command)
    return parser
