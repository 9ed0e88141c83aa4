"""The Queue service: it lists the requests that wait and sound, and has a moderator's verbs on them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from appliance.errors import ApplianceError, Cancelled, Cleared, InvalidRequest, Rejected, Skipped
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.callers import current_call
from appliance.rpc.context import Context
from appliance.rpc.listen import Broadcaster
from appliance.rpc.replies import utterance_message
from appliance.rpc.requests import checked_key
from appliance.scheduler.job import State, Utterance
from appliance.scheduler.queue import Queue, next_change
from appliance.scheduler.workload import Clock

MAX_IDS = 1_000
"""Limit of ids in one CancelUtterances, Approve or Reject."""
MOVED_S = 0.05
"""Smallest change of an expected start, in seconds, that watchers get."""


class QueueService(appliance_pb2_grpc.QueueServicer):
    """See appliance.proto."""

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        end_call: Callable[[str, ApplianceError], object],
        broadcaster: Broadcaster,
        save: Callable[[], object] = lambda: None,
    ) -> None:
        """Must be constructed on the event loop that serves it."""
        self._queue, self._clock, self._end_call = queue, clock, end_call
        self._broadcaster, self._save = broadcaster, save
        self._loop = asyncio.get_running_loop()
        self._watchers: set[asyncio.Event] = set()
        queue.watch(self._changed)

    async def ListUtterances(
        self, message: pb.ListUtterancesRequest, context: Context
    ) -> pb.ListUtterancesResponse:
        channel = checked_key("channel", message.channel)
        present, _, _ = self._queue.utterances()
        utterances = [utterance_message(u, self._clock()) for u in present if _is_among(u, channel)]
        return pb.ListUtterancesResponse(utterances=utterances, **self._modes(channel))

    async def WatchQueue(self, message: pb.WatchQueueRequest, context: Context) -> None:
        channel = checked_key("channel", message.channel)
        call, changed = current_call(), asyncio.Event()
        self._watchers.add(changed)
        try:
            _, _, number = self._queue.utterances()
            sent: dict[str, tuple[State, float]] = {}
            last_modes: dict[str, Iterable[Any]] = {}
            while True:
                changed.clear()
                present, ended, number = self._queue.utterances(number)
                here = [u for u in present if _is_among(u, channel)]
                ended_here = [u for u in ended if _is_among(u, channel)]
                new = [u for u in here if _differs(u, sent.get(u.job.terms.key))]
                sent = {u.job.terms.key: (u.state, u.starts) for u in here}
                modes = self._modes(channel)
                if ended_here or new or modes != last_modes:
                    utterances = [utterance_message(u, self._clock()) for u in (*ended_here, *new)]
                    last_modes = modes
                    await call.send(pb.QueueEvent(utterances=utterances, **modes))
                with contextlib.suppress(asyncio.TimeoutError):
                    left_s = max(next_change(here, now := self._clock()) - now, 0.0) + 1e-3
                    await asyncio.wait_for(changed.wait(), left_s if math.isfinite(left_s) else None)
        finally:
            self._watchers.discard(changed)

    async def Listen(self, message: pb.ListenRequest, context: Context) -> None:
        await self._broadcaster.listen(checked_key("channel", message.channel))

    async def CancelUtterances(
        self, message: pb.CancelUtterancesRequest, context: Context
    ) -> pb.EndedUtterances:
        ids, user = _ids_of(message), checked_key("user_key", message.user_key)
        channel = checked_key("channel", message.channel)
        if not (ids or user or channel):
            raise InvalidRequest("request_ids", "or user_key or channel must say which requests to end")

        why = Cancelled("cancelled by CancelUtterances")
        return await self._end(lambda u: _is_among(u, channel, ids=ids, user=user), why)

    async def Skip(self, message: pb.ChannelRequest, context: Context) -> pb.EndedUtterances:
        channel, why = _channel_of(message), Skipped("skipped by a moderator")
        return await self._end(lambda u: _is_among(u, channel, State.SOUNDING), why)

    async def Clear(self, message: pb.ChannelRequest, context: Context) -> pb.EndedUtterances:
        channel, why = _channel_of(message), Cleared("cleared by a moderator")
        return await self._end(lambda u: _is_among(u, channel, State.WAITING, State.HELD), why)

    async def Pause(self, message: pb.ChannelRequest, context: Context) -> pb.ChannelResponse:
        return await self._set(message, self._queue.pause)

    async def Resume(self, message: pb.ChannelRequest, context: Context) -> pb.ChannelResponse:
        return await self._set(message, self._queue.resume)

    async def Moderate(self, message: pb.ChannelRequest, context: Context) -> pb.ChannelResponse:
        return await self._set(message, partial(self._queue.moderate, on=True))

    async def Unmoderate(self, message: pb.ChannelRequest, context: Context) -> pb.ChannelResponse:
        return await self._set(message, partial(self._queue.moderate, on=False))

    async def _set(self, message: pb.ChannelRequest, verb: Callable[[str], None]) -> pb.ChannelResponse:
        verb(_channel_of(message))
        await asyncio.to_thread(self._save)
        return pb.ChannelResponse()

    async def Approve(self, message: pb.ApprovalRequest, context: Context) -> pb.ApprovedUtterances:
        channel, ids = _channel_of(message), _ids_of(message)
        approved = self._queue.approve(lambda u: _is_among(u, channel, ids=ids))
        await asyncio.to_thread(self._save)
        return pb.ApprovedUtterances(utterances=[utterance_message(u, self._clock()) for u in approved])

    async def Reject(self, message: pb.ApprovalRequest, context: Context) -> pb.EndedUtterances:
        channel, ids, why = _channel_of(message), _ids_of(message), Rejected("rejected by a moderator")
        states = () if ids else (State.HELD,)
        return await self._end(lambda u: _is_among(u, channel, *states, ids=ids), why)

    async def Preview(self, message: pb.PreviewRequest, context: Context) -> pb.PreviewResponse:
        audio = await self._broadcaster.preview(_channel_of(message), message.request_id)
        return pb.PreviewResponse(audio=audio)

    async def _end(self, is_chosen: Callable[[Utterance], bool], why: ApplianceError) -> pb.EndedUtterances:
        """End the chosen utterances and their calls, and store the queue's state."""
        ended = self._queue.end(is_chosen, why)
        for utterance in ended:
            # Finished audio may still be on its way to the reader.
            self._end_call(utterance.job.terms.key, why)
        await asyncio.to_thread(self._save)
        # The state before the end, with the reason of the end.
        with_reason = (replace(utterance, why=why) for utterance in ended)
        return pb.EndedUtterances(utterances=[utterance_message(u, self._clock()) for u in with_reason])

    def _modes(self, channel: str) -> dict[str, Iterable[Any]]:
        """Fields of a reply: paused channels, since when, and moderated channels."""
        paused = {name: since for name, since in self._queue.paused.items() if channel in ("", name)}
        moderated = [name for name in self._queue.moderated if channel in ("", name)]
        return {"paused": [*paused], "paused_since": [*paused.values()], "moderated": moderated}

    def _changed(self) -> None:
        # This runs under the scheduler's lock. A closed event loop has no watcher left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for changed in self._watchers:
            changed.set()
        self._broadcaster.changed.set()


def _is_among(
    utterance: Utterance, channel: str, *states: State, ids: Collection[str] = (), user: str = ""
) -> bool:
    """True if the utterance matches every argument; an empty argument matches all utterances."""
    terms = utterance.job.terms
    is_its = channel in ("", terms.channel) and user in ("", terms.user)
    return is_its and (not ids or terms.request_id in ids) and (not states or utterance.state in states)


def _ids_of(message: pb.CancelUtterancesRequest | pb.ApprovalRequest) -> set[str]:
    if len(message.request_ids) > MAX_IDS:
        raise InvalidRequest("request_ids", f"are {len(message.request_ids)}; at most {MAX_IDS} are allowed")
    return set(message.request_ids)


def _channel_of(message: pb.ChannelRequest | pb.ApprovalRequest | pb.PreviewRequest) -> str:
    if not (channel := checked_key("channel", message.channel)):
        raise InvalidRequest("channel", "is missing")
    return channel


def _differs(utterance: Utterance, sent: tuple[State, float] | None) -> bool:
    if sent is None:
        return True
    state, starts = sent
    return utterance.state is not state or (
        state is State.WAITING and abs(utterance.starts - starts) > MOVED_S
    )
