"""The demo's vocabulary: phones of US English."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.text.phones.alphabet import TOKENS

_INDEX = {token: index for index, token in enumerate(TOKENS)}


def ids(phones: Sequence[str]) -> NDArray[np.int64]:
    """(T,) indices into `TOKENS`."""
    return np.array([_INDEX[token] for token in phones], dtype=np.int64)
