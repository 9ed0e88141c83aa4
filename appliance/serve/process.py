"""Start and end of a program that serves: the daemon, the gateway, the server for Wyoming."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from appliance import heap
from appliance.box.show.streams import plain
from appliance.config import Config, load
from appliance.errors import AddressInUse, AddressNotOurs, ApplianceError, status_of
from appliance.serve.notify import Notifier

logger = logging.getLogger(__name__)


def exit_status(command: str, run: Callable[[Notifier], int]) -> int:
    """Run a program; return its exit status. A fatal error is printed as one line on stderr."""
    heap.keep_one()
    notifier = Notifier.from_environment(os.environ)
    try:
        return run(notifier)
    except (ApplianceError, AddressInUse, AddressNotOurs, MemoryError) as error:
        # systemd shows the last status that it received. After a failed start that would be the drain's.
        notifier.status(str(error))
        print(plain(f"appliance {command}: {error}"), file=sys.stderr)
        if error.__cause__ is not None:
            logger.debug("because of", exc_info=error)
        return status_of(error)


def configured(path: Path | None, overrides: Iterable[str]) -> Config:
    """Read the configuration, and set up logging by it. Raises ConfigError."""
    config = load(path, overrides)
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log.level.upper(),
        format="%(levelname)s %(name)s: %(message)s",
        force=True,
    )
    return config
