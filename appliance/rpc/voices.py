"""The Voices service: the reference-voice store over the wire."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import grpc

from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.voices import Voice, VoiceStore

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")


class Voices(appliance_pb2_grpc.VoicesServicer):
    """Lists, shows, makes and removes voices; see appliance.proto."""

    def __init__(self, store: Callable[[], VoiceStore], workers: Executor) -> None:
        """`store` raises Unavailable until there is one."""
        self._store = store
        self._workers = workers

    async def ListVoices(self, message: pb.ListVoicesRequest, context: Context) -> pb.ListVoicesResponse:
        page = await self._work(lambda store: store.page(message.page_size, message.page_token))
        return pb.ListVoicesResponse(
            voices=[voice_message(voice) for voice in page.voices], next_page_token=page.next_token
        )

    async def GetVoice(self, message: pb.GetVoiceRequest, context: Context) -> pb.Voice:
        return voice_message(await self._work(lambda store: store.get(message.name)))

    async def CreateVoice(self, message: pb.CreateVoiceRequest, context: Context) -> pb.Voice:
        voice = await self._work(
            lambda store: store.create(
                message.name,
                message.audio,
                message.transcript,
                message.consent_note,
                validate_only=message.validate_only,
            )
        )
        return voice_message(voice)

    async def DeleteVoice(self, message: pb.DeleteVoiceRequest, context: Context) -> pb.DeleteVoiceResponse:
        await self._work(lambda store: store.delete(message.name))
        return pb.DeleteVoiceResponse()

    async def _work(self, action: Callable[[VoiceStore], T]) -> T:
        """Decoding and the disk are too slow for the event loop."""
        store = self._store()
        return await asyncio.get_running_loop().run_in_executor(self._workers, action, store)


def voice_message(voice: Voice) -> pb.Voice:
    """The same fields under the same names."""
    return pb.Voice(**dataclasses.asdict(voice))
