"""A new voice speaks its own transcript once, when the engine has nothing else to do."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from appliance.errors import ApplianceError
from appliance.request import (
    FloatArray,
    Playout,
    Priority,
    Reference,
    Request,
    Segment,
    Segmentation,
    SegmentAudio,
    Terms,
)
from appliance.rpc.speech import Speech
from appliance.scheduler.job import Job, Result

MOST_ENGINE_S = 2.0
"""Voices that would take the engine longer are not tried."""
WAIT_S = 5.0
"""For the reply, which waits for all requests."""
SEED = 1


@dataclass(frozen=True)
class Trial:
    present: Callable[[], Speech]

    async def reply(self, reference: Reference, caller: str) -> FloatArray | None:
        """(samples,) of the transcript in the reference's voice; None without a free engine.

        `caller` is the uploader's key.
        """
        results: asyncio.Queue[Result] = asyncio.Queue()
        try:
            job = await self._admit(reference, caller, results)
        except ApplianceError:
            return None
        if job is None:
            return None
        made: list[FloatArray] = []
        try:
            while isinstance(result := await results.get(), SegmentAudio):
                made.append(result.samples)
                if result.last:
                    return np.concatenate(made)
            return None
        finally:
            self.present().scheduler.queue.cancel(job)

    async def _admit(self, reference: Reference, caller: str, results: asyncio.Queue[Result]) -> Job | None:
        """None where the engine is not ready, or this costs too much. Raises ApplianceError."""
        speech, loop = self.present(), asyncio.get_running_loop()
        engine = speech.scheduler.engines.present
        if engine is None:
            return None
        segments = await asyncio.to_thread(_plan, speech, reference)
        if sum(engine.costs.of(segment).whole_s for segment in segments) > MOST_ENGINE_S:
            return None

        def deliver(result: Result) -> None:
            with contextlib.suppress(RuntimeError):  # a closed loop has no reader left
                loop.call_soon_threadsafe(results.put_nowait, result)

        terms = Terms(
            f"trial-{secrets.token_hex(8)}",
            caller=caller,
            priority=Priority.BULK,
            playout=Playout.OVERLAP,
        )
        now = speech.clock()
        job = Job(terms, deliver, now, deadline=now + WAIT_S, stream=False)
        return None if speech.scheduler.admit(job, [segments], None, speech.generation) is None else job


def _plan(speech: Speech, reference: Reference) -> list[Segment]:
    """Raises InvalidRequest."""
    planner = replace(speech.planner, reference=lambda voice, style: reference)
    request = Request(
        text=reference.transcript.strip(),
        voice="",
        nfe=speech.defaults.nfe,
        seed=SEED,
        guidance=speech.defaults.guidance,
        segmentation=Segmentation.UPSTREAM,
    )
    return planner.plan(request)
