"""hibari-tts 0.2.1 → `english.bin` and `unknown.onnx` of appliance/text/phones."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from appliance.durable import replace_file
from appliance.text.phones import lexicon, pieces, table, tagger

ACCENT = "us"
DEFAULT, SPELT = "DEFAULT", None
"""Key of an entry's usual reading; the value of one that is spelt."""
LEAST_HALVED = 500
"""Numbers of a tensor that is stored in half precision."""
_SAME = str.maketrans({"ɾ": "T", "ʔ": "t"})
"""Symbols that the voice does not tell apart."""


def compile_phones(assets: Path, out: Path) -> None:
    """Write both files; the bytes depend on `assets`, of the package `hibari`, alone."""
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "english.bin", packed(entries(assets)))
    replace_file(
        out / "unknown.onnx", network(assets / "oov.onnx", _read(assets / "oov.json")).SerializeToString()
    )


def entries(assets: Path) -> Iterator[tuple[str, str, bytes]]:
    """(kind, key, value) of the table."""
    gold, silver = (_read(assets / f"lexicon_{ACCENT}_{name}.json.gz") for name in ("gold", "silver"))
    for word, readings in gold.items():
        yield lexicon.KIND, word, _entry(readings, is_gold=True)
    for word, readings in silver.items():
        # A word of the better dictionary is found first, in the other case of its first letter too.
        if not {word, *_other_case(word)} & gold.keys():
            yield lexicon.KIND, word, _entry(readings, is_gold=False)
    for word, tokens in _read(assets / "tokenizer_exceptions.json").items():
        if word.isascii() and any(map(str.isalpha, word)) and not any(map(str.isdigit, word)):
            yield pieces.KIND, word, bytes(map(len, tokens))
    yield from _tags(_read(assets / "tagger.json.gz"))


def packed(entries: Iterable[tuple[str, str, bytes]]) -> bytes:
    """File of a table. Raises ValueError for two keys that it cannot tell apart and for a long value."""
    buckets: list[dict[bytes, bytes]] = [{} for _ in range(table.BUCKETS)]
    for kind, key, value in entries:
        bucket, mark = table.place(kind, key)
        if mark in buckets[bucket]:
            raise ValueError(f"{kind} {key!r}: has the digest of another key")
        if len(value) > table.LONGEST:
            raise ValueError(f"{kind} {key!r}: must have at most {table.LONGEST} bytes, not {len(value)}")
        buckets[bucket][mark] = mark + bytes([len(value)]) + value
    records = [b"".join(record for _, record in sorted(bucket.items())) for bucket in buckets]
    first = len(table.MAGIC) + 4 * (table.BUCKETS + 1)
    starts = np.cumsum([first, *map(len, records)]).astype("<u4")
    return table.MAGIC + starts.tobytes() + b"".join(records)


def network(path: Path, meta: Mapping[str, Any]) -> onnx.ModelProto:
    """The network with its large tensors in half precision, computed in single, and with its alphabets."""
    model = onnx.load(path)
    graph, casts = model.graph, []
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) >= LEAST_HALVED:
            name, numbers = tensor.name, onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(numbers.astype(np.float16), f"{name}_half"))
            cast = onnx.helper.make_node("Cast", [tensor.name], [name], to=onnx.TensorProto.FLOAT)
            casts.append(cast)
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    properties = {
        "characters": "".join(meta["in"]),
        "symbols": "".join(meta["out"]),
        "longest": str(meta["maxlen"]),
    }
    onnx.helper.set_model_props(model, properties)
    onnx.checker.check_model(model)
    return model


def _tags(model: Mapping[str, Any]) -> Iterator[tuple[str, str, bytes]]:
    names = sorted(model["tags"], reverse=True)
    numbers = {name: number for number, name in enumerate(names)}
    yield tagger.NAMES, "", " ".join(names).encode()
    for word, tag in model["tagdict"].items():
        yield tagger.ONE_TAG, word, tag.encode()
    for word in model["vocab"]:
        yield tagger.KNOWN, word, b""
    for feature, weights in model["weights"].items():
        rows = [(numbers[tag], round(10 * weight)) for tag, weight in weights.items()]
        yield tagger.WEIGHTS, feature, np.array(sorted(rows), tagger.WEIGHT).tobytes()


def _entry(readings: str | Mapping[str, str | None], is_gold: bool) -> bytes:
    by_tag = {DEFAULT: readings} if isinstance(readings, str) else dict(readings)
    said = {tag: "" if reading is SPELT else reading.translate(_SAME) for tag, reading in by_tag.items()}
    return lexicon.packed(lexicon.Entry(is_gold, said.pop(DEFAULT), said))


def _other_case(word: str) -> set[str]:
    small = word.lower()
    return {small, small.capitalize()} if word in (small, small.capitalize()) else set()


def _read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
