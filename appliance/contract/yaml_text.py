"""Parses YAML; `appliance.fields` reads the result."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer

MOST_KEYS = 10_000
"""Most keys in one mapping, including merged keys."""


class _Loader(Composer, yaml.CSafeLoader):
    """libyaml scans and parses; its own composer overflows the stack at deep nesting, Python's raises."""

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Raise YAMLError, with the line, whatever a constructor raises: `!!bool foo` raises KeyError."""
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"not a value of {kind}", node.start_mark
            ) from error

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge `<<`. Aliases of aliases multiply the keys."""
        super().flatten_mapping(node)
        if len(node.value) > MOST_KEYS:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {MOST_KEYS} keys", node.start_mark
            )


def parse_yaml(text: bytes | str, where: object, error: type[Exception]) -> Any:
    """Value of a YAML text. Raises `error` with a message of one line that begins with `where`."""
    try:
        # CSafeLoader constructs plain values alone.
        return yaml.load(text.decode("utf-8") if isinstance(text, bytes) else text, _Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as invalid:
        raise error(f"{where}: unreadable: {' '.join(str(invalid).split())}") from invalid
