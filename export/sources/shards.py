"""Shards: the weights of one model in several files, and an index of them in the same folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

INDEX = "*.index.json"
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(\.\w+)")


def files(path: Path) -> tuple[Path, ...]:
    """The shards of an index, or of the index that a shard belongs to; none for other files.

    Raises ValueError if the index or a shard is missing.
    """
    index = path
    if shard := _SHARD.fullmatch(path.name):
        index = path.with_name(f"{shard[1]}{shard[2]}.index.json")
        if not index.is_file():
            raise ValueError(f"is one shard of several, but their index {index.name} is not in its folder")
    if not index.match(INDEX) or not index.is_file():
        return ()
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{index.name} is not an index of shards: it has no weight_map") from error
    shards = tuple(index.with_name(Path(str(name)).name) for name in names)
    if absent := [shard.name for shard in shards if not shard.is_file()]:
        raise ValueError(
            f"{index.name} names {len(shards)} shards; missing in its folder: {', '.join(absent)}"
        )
    return shards


def is_shard(path: Path) -> bool:
    return _SHARD.fullmatch(path.name) is not None
