"""Log-mel frames to samples."""

from __future__ import annotations

import numpy as np

from appliance.contract.bundle import Vocoder
from appliance.engine.backend import Backend, Graph
from appliance.job import FloatArray


class Decoder:
    """The vocoder graph at a segment's true length."""

    def __init__(self, graph: Graph, backend: Backend, vocoder: Vocoder, hop: int) -> None:
        self._graph, self._backend, self._vocoder, self._hop = graph, backend, vocoder, hop

    def __call__(self, log_mel: FloatArray) -> FloatArray:
        """(frames, M) → (samples,) at the model's rate; nothing from fewer frames than make one sample."""
        length = self._vocoder.samples(len(log_mel), self._hop)
        if length == 0:
            return np.zeros(0, np.float32)
        frames = self._backend.empty(log_mel.shape, "float32")
        self._backend.upload(log_mel, frames)
        samples = self._backend.empty((length,), "float32")
        self._graph.run({"log_mel": frames}, {"samples": samples})
        return self._backend.download(samples)
