"""A rehearsal of first contact: official layout at a hub on loopback, fetched, exported and spoken.

    python -m tests.export.contact WEIGHTS OUT [--precision fp32 …]

WEIGHTS is a folder as `python -m export.demo rebuild` writes it.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from export import cli, fetch
from export.sources import weights
from export.sources.weights import Known
from tests.export.hub import Hub, serving

NAME = "Rehearsal"
REPOSITORY = "rehearsal/weights"
FILES = {"checkpoint": "model.safetensors", "vocab": "vocab.txt", "config": "family.yaml"}
TERMS = {"languages": ("en",), "licence": "Apache-2.0", "note": "a rehearsal"}
ROW = Known(NAME, REPOSITORY, **FILES, family=NAME, **TERMS)


def stored(folder: Path) -> Hub:
    """A hub that serves the weights of a folder under the names of ROW."""
    names = {REPOSITORY: ("model.safetensors", "vocab.txt", "family.yaml")}
    vocoder = weights.VOCODERS[ROW.vocoder]
    files = {f"{REPOSITORY}/{name}": (folder / name).read_bytes() for name in names[REPOSITORY]}
    voice = {f"{vocoder.repository}/{name}": folder / "vocos" / name for name in vocoder.files}
    return Hub(files | {name: path.read_bytes() for name, path in voice.items()})


@contextmanager
def rehearsing(folder: Path) -> Iterator[Hub]:
    """Let `fetch` find ROW at a private hub."""
    with serving(stored(folder)) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")
        patch.setitem(weights.KNOWN, NAME, ROW)
        patch.setattr(fetch, "fetch", functools.partial(fetch.fetch, endpoint=hub.address))
        yield hub


def command(out: Path, *options: str) -> list[str]:
    return ["first-contact", NAME, "--out", str(out / "found"), "--fetched", str(out / "weights"), *options]


def main(arguments: Sequence[str]) -> int:
    folder, out, *options = arguments
    with rehearsing(Path(folder)):
        return cli.main(command(Path(out), *options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
