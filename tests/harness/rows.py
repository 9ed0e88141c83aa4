"""Tables of data in files next to their tests."""

import json
from pathlib import Path
from typing import Any


def rows(test: str, name: str) -> list[Any]:
    """Return the rows of the file `name` next to a test: each line is a JSON value."""
    return [json.loads(line) for line in (Path(test).parent / name).read_text("utf-8").splitlines()]
