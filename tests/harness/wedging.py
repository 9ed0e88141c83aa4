"""`python -m tests.harness.wedging FOLDER CONFIG`: the daemon, which a file in FOLDER hangs.

Names of files and places of the hang:

    warm_up    the engine's thread, before its paths are warm
    step       the engine's thread, in the middle of speech
    spoken     the event loop, when speech has ended
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.engine.engine import Synthesizer
from appliance.serve import daemon
from appliance.serve.metrics import Metrics

PLACES: dict[str, type] = {"warm_up": Synthesizer, "step": Synthesizer, "spoken": Metrics}


def wedge(name: str, folder: Path) -> None:
    """Make a method hang, like a native call that never returns."""
    real: Callable[..., Any] = getattr(PLACES[name], name)

    def hang(*arguments: Any) -> Any:
        while (folder / name).exists():
            time.sleep(0.01)
        return real(*arguments)

    setattr(PLACES[name], name, hang)


if __name__ == "__main__":
    folder, config = Path(sys.argv[1]), Path(sys.argv[2])
    for name in PLACES:
        wedge(name, folder)
    sys.exit(daemon.main(config, []))
