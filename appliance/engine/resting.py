"""An engine that frees its memory while nobody speaks, and is loaded again for the next request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from appliance.engine.engine import Synthesizer
from appliance.engine.ort import shrink_memory
from appliance.request import FloatArray, Lane, Segment

logger = logging.getLogger(__name__)


class RestingEngine:
    """Engine for the scheduler. At rest it has only its estimates, with which requests are admitted."""

    def __init__(self, engine: Synthesizer, load: Callable[[], Synthesizer], nfe: int, idle_s: float) -> None:
        """`load` loads the same engine again; its paths run with `nfe` steps. It rests after `idle_s`."""
        self._awake: Synthesizer | None = engine
        self.idle_s = idle_s
        self._load, self._nfe, self._captures = load, nfe, engine.captures
        self.backend, self.passed_over, self.costs = engine.backend, engine.passed_over, engine.costs
        self.max_lanes, self.max_batch = engine.max_lanes, engine.max_batch
        self.can_interrupt = engine.can_interrupt
        self.wake_s = engine.ready_s
        """Seconds that the last wake took; before the first wake, the seconds of the start without builds."""

    def rest(self) -> None:
        """Free graphs, tensors and the device. No lane may be open."""
        if self._awake is not None:
            self._awake.shutdown()
            self._awake = None
            shrink_memory()

    def wake(self) -> None:
        """Load the engine, and run its paths. Raises what `load_for` raises."""
        if self._awake is None:
            begun = time.monotonic()
            engine = self._load()
            engine.run_paths(self._nfe)
            engine.captures = self._captures
            self._awake, self.wake_s = engine, time.monotonic() - begun
            logger.info("the engine is loaded again after %.2f s", self.wake_s)

    @property
    def _engine(self) -> Synthesizer:
        self.wake()
        assert self._awake is not None
        return self._awake

    def open(self, segment: Segment) -> Lane:
        return self._engine.open(segment)

    def step(self, lane_ids: Sequence[int]) -> None:
        self._engine.step(lane_ids)

    def finish(self, lane_id: int) -> FloatArray:
        return self._engine.finish(lane_id)

    def close(self, lane_id: int) -> None:
        self._engine.close(lane_id)

    def interrupt(self, on: bool) -> None:
        if self._awake is not None:
            self._awake.interrupt(on)

    def self_test(self, segment: Segment | None = None) -> None:
        self._engine.self_test(segment)

    def shutdown(self) -> None:
        self.rest()
