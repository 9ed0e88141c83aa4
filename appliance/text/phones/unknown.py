"""Readings of words that no dictionary has, by hibari's network of characters."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from pathlib import Path

import numpy as np

MOST_CACHED = 4096
"""Words whose readings stay in memory."""


class Network:
    """The network. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises onnxruntime's errors for a missing or damaged file."""
        # The import is here, because a daemon whose bundle has no phones does not need it.
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False
        # The weights stay in half precision.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        properties = self._session.get_modelmeta().custom_metadata_map
        self._numbers = {character: number for number, character in enumerate(properties["characters"], 1)}
        self._symbols = properties["symbols"]
        self._longest = int(properties["longest"])
        self._cached_read = lru_cache(maxsize=MOST_CACHED)(self._read)

    def __call__(self, word: str) -> str:
        """Reading of a word. Characters that the network does not know are dropped; a long word is cut."""
        letters = "".join(character for character in word if character in self._numbers)
        parts = (letters[at : at + self._longest] for at in range(0, len(letters), self._longest))
        return "".join(map(self._cached_read, parts))

    def _read(self, letters: str) -> str:
        numbers = np.array([[self._numbers[letter] for letter in letters]], np.int64)
        [[symbols]] = self._session.run(None, {"chars": numbers})
        # Repeats are one symbol and 0 is none, as in CTC.
        return "".join(self._symbols[number - 1] for number, _ in groupby(symbols.tolist()) if number)
