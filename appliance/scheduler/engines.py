"""The engine in use and its replacement, tests and faults."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

from appliance import heap
from appliance.errors import DeviceLost, EngineFault, OutOfDeviceMemory, Unavailable
from appliance.request import PassedOver, Segment
from appliance.scheduler.interface import Engine, Restful
from appliance.scheduler.workload import NO_CALL, EngineCall, Workload

logger = logging.getLogger(__name__)

FAULTS_IN_A_ROW = 3
"""Failed calls in a row, without a finished segment between them, after which the engine is tested."""
SELF_TEST_NFE = 2
"""Steps of a test segment."""


@dataclass(frozen=True)
class Test:
    """A self-test that waits for the engine."""

    engine: Engine | None
    result: Future[float]


class Engines:
    """The engines in use, their lanes, and engines that were replaced."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._retired: list[Engine] = []
        self._tests: list[Test] = []
        self._has_freed = False
        self.faults = 0
        self._idle_since = math.inf
        """Time at which the last job or test stopped needing the engine."""
        self._failed: Segment | None = None
        self._longest: Segment | None = None
        """Longest segment that the current engine has spoken."""

    # Any thread may call what follows.

    @property
    def current(self) -> Engine | None:
        return self.of("")

    @property
    def generation(self) -> int:
        return self._workload.generation

    def of(self, bundle: str) -> Engine | None:
        """Engine for jobs of a bundle, by its key; "" is the current one."""
        return self._workload.engine_of.get(bundle)

    @property
    def backend(self) -> str:
        return next((engine.backend for engine in self._slowest_first), "")

    @property
    def is_resting(self) -> bool:
        return self._workload.call.kind == "wake"

    @property
    def passed_over(self) -> Sequence[PassedOver]:
        return next((engine.passed_over for engine in self._slowest_first), ())

    @property
    def _slowest_first(self) -> list[Engine]:
        """Engines, and first those that could not use their preferred backend, which are slower."""
        return sorted(self._workload.engines, key=lambda engine: not engine.passed_over)

    def add(self, bundle: str, engine: Engine) -> None:
        """Add an engine for jobs of `bundle`."""
        with self._workload.changed:
            self._workload.engine_of[bundle] = engine

    def forget_costs(self) -> None:
        for engine in self._workload.engines:
            engine.costs.reset()

    def test(self, engine: Engine | None = None) -> Future[float]:
        """Test an engine, else the current one, between two calls; return a future of its seconds."""
        test = Test(engine, Future())
        test.result.set_running_or_notify_cancel()  # from now on nobody can cancel it
        with self._workload.changed:
            self._workload.check_running()
            self._tests.append(test)
            self._workload.notify()
        return test.result

    def replace(self, engine: Engine, switch: Callable[[], None]) -> None:
        """Give new jobs to another engine. `switch` makes requests plan for that engine; it runs under the
        lock. Raises Unavailable.
        """
        workload = self._workload
        with workload.changed:
            workload.check_running()
            self._retired.append(workload.engine_of[""])
            workload.engine_of[""] = engine
            if self.is_resting:
                workload.call = NO_CALL
            workload.generation += 1
            self._longest = None
            switch()
            workload.notify()

    # The engine's thread, under the lock.

    def failed(self, segment: Segment, fault: EngineFault) -> None:
        """Count a fault of the engine.

        Too little memory does not count: a restarted process might get even less.
        """
        self.faults += not isinstance(fault, OutOfDeviceMemory)
        self._failed = segment

    def finished(self, engine: Engine, segment: Segment) -> None:
        self.faults = 0
        if engine is self.current and (self._longest is None or segment.frames > self._longest.frames):
            self._longest = segment

    def close_lanes(self) -> None:
        for engine, lane in self._workload.unclosed:
            engine.close(lane)
        self._workload.unclosed.clear()

    def shut_down_idle(self) -> None:
        """Shut down replaced engines that no unfinished job needs."""
        workload = self._workload
        for engine in list(self._retired):
            if all(job.is_done or job.engine is not engine for job in workload.jobs.values()):
                self._retired.remove(engine)
                # Replies that are finished and still play must not keep the engine in memory.
                for job in chain.from_iterable(channel.jobs for channel in workload.channels.values()):
                    if job.engine is engine:
                        job.engine = workload.engine_of[""]
                engine.shutdown()
                self._has_freed = True

    def next_test(self) -> Test | None:
        """First test whose engine has a free lane; None if there is none."""
        for number, test in enumerate(self._tests):
            if self._has_free_lane(self._tested(test)):
                return self._tests.pop(number)
        return None

    def _tested(self, test: Test) -> Engine:
        return test.engine or self._workload.engine_of[""]

    def _has_free_lane(self, engine: Engine) -> bool:
        return len(self._workload.holders(engine)) < engine.max_lanes

    # The engine's thread, without the lock.

    def rest_or_wake(self) -> None:
        """Wake the engine for a job or a test, or let it rest after `idle_s` without any.

        Raises the errors of a load.
        """
        workload, engine = self._workload, cast("Restful", self.current)
        if not hasattr(engine, "rest"):  # an isinstance of a protocol takes 15 µs, at each call of the engine
            return
        with workload.changed:
            now = workload.clock()
            # A cached reply wakes no engine, nor does a test of a replacement.
            is_needed = not all(job.is_done for job in workload.jobs.values())
            is_needed = is_needed or any(test.engine is None for test in self._tests)
            self._idle_since = math.inf if is_needed else min(self._idle_since, now)
            rests = now - self._idle_since >= engine.idle_s
            if rests is self.is_resting:
                return
            # A promise made before the engine is awake allows for the wake, as for any call under way.
            workload.call = EngineCall("wake", (), math.inf if rests else now, engine.wake_s)
        if rests:
            engine.rest()
            self._has_freed = True
            logger.info("no request for %g s: the engine's memory is released", engine.idle_s)
        else:
            engine.wake()
            with workload.changed:
                workload.call = NO_CALL

    def give_back(self) -> None:
        """Return the memory of engines that were shut down to the system."""
        if self._has_freed:
            self._has_freed = False
            gc.collect()
            heap.trim()

    def run_test(self, test: Test) -> None:
        begun = self._workload.clock()
        try:
            self._tested(test).self_test()
        except Exception as error:
            test.result.set_exception(error)
        else:
            test.result.set_result(self._workload.clock() - begun)

    def test_after_faults(self, engine: Engine) -> None:
        """Test the engine after FAULTS_IN_A_ROW with the segment that failed. Raises EngineFault.

        If that segment fails again, the longest segment spoken so far shows whether the text is at fault.
        """
        if self.faults < FAULTS_IN_A_ROW:
            return
        with self._workload.changed:
            self.close_lanes()
            if not self._has_free_lane(engine):
                return
        logger.error("the engine has failed %d times in a row; testing it", self.faults)
        fault = self._fault_with(engine, self._failed)
        if fault is not None and self._longest is not None and engine is self.current:
            fault = self._fault_with(engine, self._longest)
        if fault is not None:
            raise EngineFault(f"the engine fails every call: {type(fault).__name__}: {fault}") from fault
        logger.warning("the engine passes its test, so the requests were at fault")
        self.faults = 0

    def _fault_with(self, engine: Engine, segment: Segment | None) -> Exception | None:
        """The exception that a self-test raises, by a silence or by `segment`; None if it passes."""
        try:
            engine.self_test(segment and replace(segment, times=segment.times[: SELF_TEST_NFE + 1]))
        except (DeviceLost, OutOfDeviceMemory):
            raise
        except Exception as error:
            return error
        return None

    def stop(self) -> None:
        for test in self._tests:
            test.result.set_exception(Unavailable("the daemon stops"))
        for engine in (*self._retired, *self._workload.engines[1:]):
            engine.shutdown()
