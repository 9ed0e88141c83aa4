"""Life of a program of `scripts/`: from the import of this module on, Ctrl-C ends it with one line.

Programs import it before any slow import.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

INTERRUPTED = "interrupted; run it again"


def _leave(number: int, frame: Any) -> NoReturn:
    """End a program that has begun nothing yet, or has finished everything."""
    with contextlib.suppress(OSError):
        os.write(2, f"{os.path.basename(sys.argv[0])}: {INTERRUPTED}\n".encode())
    os._exit(130)


def _at_ctrl_c(act: Callable[[int, Any], object]) -> None:
    """Set the effect of Ctrl-C, unless a shell makes the program ignore it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, act)


_at_ctrl_c(_leave)


def run(name: str, main: Callable[[], int], *, fault: int = 1) -> NoReturn:
    """Exit with the status of `main`.

    The status is 130 after Ctrl-C, 1 if nobody reads the output, and `fault` after a crash.
    """
    from appliance.box.root import error_location, error_text
    from appliance.errors import StorageError

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
    except BlockingIOError:
        status, why = fault, "another run is active; nothing was changed: run this again when it has ended"
    except StorageError as error:
        status, why = fault, str(error)
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        sudo = ": run it with sudo" if isinstance(error, PermissionError) else ""
        status, why = fault, f"{named}{error_text(error)}{sudo}"
    except Exception as error:
        status, why = fault, f"defect at {error_location(error)}; send a bundle: sudo f5-support-bundle"
    _at_ctrl_c(_leave)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # If output cannot be written, Python would otherwise end with a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if why:
        print(f"{name}: {why}", file=sys.stderr)
    sys.exit(status)
