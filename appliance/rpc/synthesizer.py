"""The Synthesizer service: a message becomes a request, a request a job, its packets the reply."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc
import numpy as np

from appliance.audio import encode
from appliance.config import ServerConfig
from appliance.errors import DeadlineMissed
from appliance.job import FloatArray, Packet, Request, Segment, Timings
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.mailbox import Mailbox
from appliance.rpc.requests import Defaults, header_of, request_of, timings_of, trailers_of
from appliance.scheduler import Clock, Job, Join, Scheduler

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, eq=False)
class Plan:
    """A request made ready for the engine."""

    segments: tuple[Segment, ...]
    join: Join


class Observer(Protocol):
    """Who counts what was spoken."""

    def spoken(self, timings: Timings) -> None: ...


@dataclass(frozen=True)
class Speech:
    """What the service needs from the rest of the daemon."""

    plan: Callable[[Request], Plan]
    """Called on a worker; raises ApplianceError."""
    workers: Executor
    scheduler: Scheduler
    defaults: Callable[[], Defaults]
    """Raises Unavailable until the bundle is read."""
    observer: Observer
    clock: Clock
    degraded: Callable[[], str] = lambda: ""
    """Why requests are served worse than they should be, in one word for machines; else empty."""
    backend: Callable[[], str] = lambda: ""
    """Label of the engine's backend."""


class Synthesizer(appliance_pb2_grpc.SynthesizerServicer):
    """Speaks; see appliance.proto."""

    def __init__(self, speech: Speech, server: ServerConfig) -> None:
        self._speech = speech
        self._message_s = server.message_s
        self._buffer_s = server.stream_buffer_s
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Returns when no reply is being sent."""
        await self._idle.wait()

    async def Synthesize(self, message: pb.SynthesizeRequest, context: Context) -> pb.SynthesizeResponse:
        async with self._job(message, context, stream=False) as (request, plan, mailbox):
            parts: list[FloatArray] = []
            while isinstance(result := await mailbox.get(), Packet):
                parts.append(result.samples)
            samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
            self._finish(context, result)
            return pb.SynthesizeResponse(
                audio=encode.encode(samples, request.encoding, request.sample_rate_hz),
                header=header_of(request, len(plan.segments), self._speech.backend()),
                timings=timings_of(result),
            )

    async def StreamSynthesize(self, message: pb.SynthesizeRequest, context: Context) -> None:
        async with self._job(message, context, stream=True) as (request, plan, mailbox):
            header = header_of(request, len(plan.segments), self._speech.backend())
            await context.write(pb.StreamSynthesizeResponse(header=header))
            encoder = encode.Encoder(request.encoding, request.sample_rate_hz)
            sequence = offset = 0
            while isinstance(result := await mailbox.get(), Packet):
                for piece in pieces(result.samples, round(self._message_s * request.sample_rate_hz)):
                    audio = pb.Audio(
                        data=encoder.push(piece),
                        sequence=sequence,
                        sample_offset=offset,
                        segment=result.segment,
                    )
                    # Returns when the transport has taken it: a slow reader holds this up and nothing else.
                    await context.write(pb.StreamSynthesizeResponse(audio=audio))
                    mailbox.sent(len(piece))
                    sequence, offset = sequence + 1, offset + len(piece)
            self._finish(context, result)
            end = pb.End(samples=offset, timings=timings_of(result))
            await context.write(pb.StreamSynthesizeResponse(end=end))

    @asynccontextmanager
    async def _job(
        self, message: pb.SynthesizeRequest, context: Context, *, stream: bool
    ) -> AsyncIterator[tuple[Request, Plan, Mailbox]]:
        """A job in the scheduler's line, which leaves it with this context however that ends."""
        speech, arrived = self._speech, self._speech.clock()
        deadline = self._deadline(context, arrived)
        speech.scheduler.check_room()
        request = request_of(message, speech.defaults(), stream=stream)
        plan = await asyncio.get_running_loop().run_in_executor(speech.workers, speech.plan, request)
        limit = self._buffer_s * request.sample_rate_hz if stream else math.inf
        mailbox = Mailbox(limit, speech.scheduler.wake)
        job = Job(
            plan.segments,
            plan.join,
            mailbox.put,
            rate_hz=request.sample_rate_hz,
            arrived=arrived,
            deadline=deadline,
            has_room=mailbox.has_room,
        )
        speech.scheduler.submit(job)
        self._calls += 1
        self._idle.clear()
        try:
            yield request, plan, mailbox
        finally:
            speech.scheduler.cancel(job)
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    def _deadline(self, context: Context, arrived: float) -> float:
        # None where the caller set no deadline, which the declared type does not say.
        left = cast("float | None", context.time_remaining())
        if left is None:
            return math.inf
        if left <= 0.0:
            raise DeadlineMissed("the deadline passed before the request arrived")
        return arrived + left

    def _finish(self, context: Context, timings: Timings) -> None:
        context.set_trailing_metadata(trailers_of(timings, self._speech.degraded()))
        logger.info(
            "%.2f s of audio in %.2f s, waited %.2f s", timings.audio_s, timings.total_s, timings.queue_s
        )
        self._speech.observer.spoken(timings)


def pieces(samples: FloatArray, longest: int) -> list[FloatArray]:
    """Equal stretches of at most `longest` samples, so none is under half of that but a lone short one."""
    if not len(samples):
        return []
    return np.array_split(samples, math.ceil(len(samples) / longest))
