"""What the scripts share: where they work, that only one does, and that nobody sees a traceback."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TextIO

from appliance.box.system import open_box
from scripts.installer.actions import Failure
from scripts.installer.actions import told as told_error
from scripts.installer.layout import OPT
from scripts.installer.target import Target

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ssl_cert_file", "requests_ca_bundle")


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options that say which box; F5_SYSROOT and F5_TOOLS stand behind them."""
    parser.add_argument(
        "--root", "--sysroot", dest="root", default=os.environ.get("F5_SYSROOT", ""), metavar="DIR",
        help="work in a tree that stands in for the box; nothing in it is started",
    )  # fmt: skip
    parser.add_argument(
        "--tools", default=os.environ.get("F5_TOOLS", ""), metavar="DIR", help="look for programs there first"
    )


def place(options: argparse.Namespace) -> Target:
    """The box that the options name. Raises Failure when the tree is not there."""
    root = str(Path(options.root).absolute()) if options.root else ""
    if root and not Path(root).is_dir():
        raise Failure(f"{root} is no folder", "make it, or name another with --root DIR")
    box = open_box(root, options.tools)
    tools = replace(box.tools, environment={**box.tools.environment, **_network()})
    return Target(replace(box, tools=tools), staged=root not in ("", "/"))


def _network() -> dict[str, str]:
    """How this machine reaches the network: programs get nothing of our environment by themselves."""
    names = (name for name in os.environ if name.startswith("PIP_") or name.lower() in PROXIES)
    return {name: os.environ[name] for name in names}


def alone(target: Target, run: Callable[[], int]) -> int:
    """Run it while no other installer works on the same box. Raises Failure when one does."""
    folder = target.at(OPT).parent  # OPT itself comes and goes
    while not folder.is_dir():
        folder = folder.parent
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return run()
    except BlockingIOError as error:
        raise Failure("another install, switch or uninstall is at work", "wait until it has ended") from error
    finally:
        os.close(handle)


def say(line: str) -> None:
    """One line for the person who watches, at once."""
    _write(line, sys.stdout)


def _write(line: str, stream: TextIO) -> None:
    """Print it. A terminal that is gone must not stop what puts the box back as it was."""
    try:
        print(line, file=stream, flush=True)
    except OSError:
        # What the stream still holds goes there too, or Python complains of it when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _end_in_order() -> None:
    """A dropped ssh connection and a `kill` stop the work as Ctrl-C does, so that it is put back.

    They often come in twos: only Ctrl-C stops the putting back itself.
    """
    # nohup's is left alone.
    ends = [end for end in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(end) != signal.SIG_IGN]

    def stop(*_: object) -> NoReturn:
        for number in ends:
            # Not SIG_IGN, which the programs that are started from now on would inherit.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt

    for number in (*ends, signal.SIGINT):
        signal.signal(number, stop)


def told(main: Callable[[], int]) -> int:
    """Run a script; whatever stops it is one line on stderr."""
    _end_in_order()
    try:
        return main()
    except Failure as failure:
        what = f"{failure.what}; {failure.remedy}" if failure.remedy else failure.what
    except OSError as error:
        what = told_error(error)
    except KeyboardInterrupt:
        what = "stopped; run it again, it goes on where it stopped"
    _write(f"error: {what}", sys.stderr)
    return 1
