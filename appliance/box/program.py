"""Life of a program of `scripts/`: from this module's import on, Ctrl-C ends it with one line.

Programs import it before anything that takes long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = "interrupted; run it again"


def _leave(number: int, frame: object) -> NoReturn:
    """End a program that has begun nothing, or has ended all."""
    with contextlib.suppress(OSError):
        os.write(2, f"{os.path.basename(sys.argv[0])}: {INTERRUPTED}\n".encode())
    os._exit(130)


def _at_ctrl_c(act: Callable[[int, object], object]) -> None:
    """Set what Ctrl-C does, unless a shell has the program ignore it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, act)


_at_ctrl_c(_leave)


def run(name: str, main: Callable[[], int], *, fault: int = 1) -> NoReturn:
    """Exit with the status of `main`: 130 after Ctrl-C, 1 if nobody reads its output, `fault` if it fails."""
    from appliance.box.root import error_location, error_text

    try:
        _at_ctrl_c(signal.default_int_handler)
        status, why = main(), ""
        sys.stdout.flush()
        _at_ctrl_c(_leave)
        sys.exit(status)
    except KeyboardInterrupt:
        status, why = 130, INTERRUPTED
    except BrokenPipeError:
        status, why = 1, ""
    except OSError as error:
        status, why = fault, error_text(error)
    except Exception as error:
        status, why = fault, f"a fault in this program, at {error_location(error)}: sudo f5-support-bundle"
    _at_ctrl_c(_leave)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # Output that cannot be written would be a traceback when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if why:
        print(f"{name}: {why}", file=sys.stderr)
    sys.exit(status)
