"""Parse YAML; `appliance.fields` reads the result."""

from __future__ import annotations

from typing import Any

import yaml


def parse_yaml(text: bytes | str, where: object, error: type[Exception]) -> Any:
    """Raises `error` with `where` in front of a message of one line."""
    try:
        return yaml.safe_load(text.decode("utf-8") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError, yaml.YAMLError) as invalid:
        raise error(f"{where}: unreadable: {' '.join(str(invalid).split())}") from invalid
