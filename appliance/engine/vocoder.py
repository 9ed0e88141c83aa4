"""Log-mel frames → samples."""

from __future__ import annotations

import numpy as np

from appliance.contract.bundle import Vocoder
from appliance.engine.backend import Backend, Graph, Tensor
from appliance.request import FloatArray


class Decoder:
    """Computes the samples of log-mels with the vocoder's graph."""

    def __init__(
        self, graph: Graph, backend: Backend, vocoder: Vocoder, hop: int, mels: int, max_frames: int
    ) -> None:
        self._graph, self._backend, self._vocoder, self._hop = graph, backend, vocoder, hop
        self._frames = backend.empty((max_frames, mels), "float32")
        self._samples = backend.empty((max_frames * hop,), "float32")

    def frames(self, count: int, skip: int = 0) -> Tensor:
        """(count, M) of the input, to be written before `run`."""
        return self._backend.view(self._frames, (count, self._frames.shape[1]), (skip,))

    def run(self, frames: int, *, release: bool = False) -> FloatArray:
        """(samples,) of the first frames, at the model's rate. `release` returns working memory."""
        length = self._vocoder.samples(frames, self._hop)
        if length == 0:
            return np.zeros(0, np.float32)
        samples = self._backend.view(self._samples, (length,))
        bound = self._graph.bind({"log_mel": self.frames(frames)}, {"samples": samples})
        bound.run(release=release)
        return self._backend.download(samples)
