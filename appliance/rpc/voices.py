"""The Voices service: the reference-voice store over the wire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from appliance.errors import Cancelled, UploadsFull
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.context import Context
from appliance.text.pronounce import check as check_pronunciations
from appliance.voices.prompts import run_below_engine
from appliance.voices.records import Place, Recorded, Voice
from appliance.voices.store import VoiceStore

Recording = pb.CreateVoiceRequest | pb.CreateStyleRequest
T = TypeVar("T")

UPLOAD_THREADS = 1
"""Threads for uploads. Each may take 0.5 s of a core and 100 MB from the synthesis of speech."""
UPLOADS_WAITING = 4
LOOKUP_THREADS = 2


class VoicesService(appliance_pb2_grpc.VoicesServicer):
    """See appliance.proto."""

    def __init__(self, store: VoiceStore) -> None:
        self._store = store
        self._upload_pool = ThreadPoolExecutor(
            UPLOAD_THREADS, thread_name_prefix="upload", initializer=run_below_engine
        )
        self._lookup_pool = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="voices")
        self._upload_slots = asyncio.Semaphore(UPLOAD_THREADS)
        self._uploads = 0

    def close(self) -> None:
        """Start no further work. Work that has begun finishes."""
        for pool in (self._upload_pool, self._lookup_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def ListVoices(self, message: pb.ListVoicesRequest, context: Context) -> pb.ListVoicesResponse:
        def listed(store: VoiceStore) -> pb.ListVoicesResponse:
            page = store.index.page(message.page_size, message.page_token)
            return pb.ListVoicesResponse(
                voices=map(voice_message, page.voices), next_page_token=page.next_token
            )

        return await self._work(listed)

    async def GetVoice(self, message: pb.GetVoiceRequest, context: Context) -> pb.Voice:
        return voice_message(await self._work(lambda store: store.index.described(message.name)))

    async def CreateVoice(self, message: pb.CreateVoiceRequest, context: Context) -> pb.Voice:
        check_pronunciations(message.pronunciations)
        notes = {"display_name": message.display_name, "pronunciations": dict(message.pronunciations)}
        return voice_message(await self._upload(message, Place(message.name), **notes))

    async def CreateStyle(self, message: pb.CreateStyleRequest, context: Context) -> pb.Voice:
        return voice_message(await self._upload(message, Place(message.voice, message.style)))

    async def UpdateVoice(self, message: pb.UpdateVoiceRequest, context: Context) -> pb.Voice:
        check_pronunciations(message.pronunciations.words)
        name = message.display_name if message.HasField("display_name") else None
        words = dict(message.pronunciations.words) if message.HasField("pronunciations") else None
        return voice_message(await self._work(lambda store: store.update(message.name, name, words)))

    async def DeleteVoice(self, message: pb.DeleteVoiceRequest, context: Context) -> pb.DeleteVoiceResponse:
        await self._work(lambda store: store.delete(Place(message.name)))
        return pb.DeleteVoiceResponse()

    async def DeleteStyle(self, message: pb.DeleteStyleRequest, context: Context) -> pb.DeleteStyleResponse:
        await self._work(lambda store: store.delete(Place(message.voice, message.style)))
        return pb.DeleteStyleResponse()

    async def _work(self, action: Callable[[VoiceStore], T]) -> T:
        """Run an action on the store in a thread: the disk is too slow for the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._lookup_pool, action, self._store)

    async def _upload(self, message: Recording, place: Place, **notes: Any) -> Voice:
        """Create a voice from an upload, one upload after the other. Raises UploadsFull."""
        if self._uploads >= UPLOAD_THREADS + UPLOADS_WAITING:
            raise UploadsFull(f"{UPLOADS_WAITING} uploads wait already, which is the limit")
        self._uploads += 1
        try:
            # An upload that is cancelled while it waits here gives up its place in the queue, and its audio.
            async with self._upload_slots:
                return await self._create(message, place, **notes)
        finally:
            self._uploads -= 1

    async def _create(self, message: Recording, place: Place, **notes: Any) -> Voice:
        """Store a recording in a thread. A cancelled upload stops at the next checkpoint."""
        cancelled = threading.Event()

        def checkpoint() -> None:
            if cancelled.is_set():
                raise Cancelled("the upload was cancelled")

        create = partial(
            self._store.create,
            *(place, message.audio, message.transcript, message.consent_note),
            validate_only=message.validate_only,
            checkpoint=checkpoint,
            **notes,
        )
        creating = asyncio.get_running_loop().run_in_executor(self._upload_pool, create)
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            cancelled.set()
            # The thread stops at the next checkpoint, and only then is the slot free.
            await asyncio.gather(creating, return_exceptions=True)
            raise


def voice_message(voice: Voice) -> pb.Voice:
    styles = [pb.Style(**vars(style), state=_state(style)) for style in voice.styles]
    return pb.Voice(**{**vars(voice), "styles": styles}, state=_state(voice))


def _state(recorded: Recorded) -> pb.VoiceState:
    return pb.DAMAGED if recorded.problem else pb.READY
