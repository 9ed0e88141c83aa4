"""The Synthesizer service: whole replies, streams, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from appliance.errors import Cancelled, RequestNotFound
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.context import Context
from appliance.rpc.replies import timings_message, word_messages
from appliance.rpc.session import SessionCall
from appliance.rpc.speaking import Speaking


class SynthesizerService(appliance_pb2_grpc.SynthesizerServicer):
    """The methods of Synthesizer in appliance.proto."""

    def __init__(self, speaking: Speaking) -> None:
        self._speaking = speaking

    async def Synthesize(self, message: pb.SynthesizeRequest, context: Context) -> None:
        await self._speaking.answer(message, context)

    async def StreamSynthesize(self, message: pb.SynthesizeRequest, context: Context) -> None:
        wish = self._speaking.wish(message, context, stream=True)
        async with self._speaking.call(wish, context) as call:
            await self._speaking.begin(context)
            await call.write(pb.StreamSynthesizeResponse(header=call.header()))
            end = pb.End()
            try:
                async for audio, samples in call.audio():
                    await call.write(pb.StreamSynthesizeResponse(audio=audio), samples)
                    end.samples += samples
            except asyncio.CancelledError:
                end.heard_characters = call.heard_characters
                await call.send_last(pb.StreamSynthesizeResponse(end=end), end.samples)
            end.timings.CopyFrom(timings_message(call.finish()))
            end.words.extend(word_messages(call.words))
            end.heard_characters = call.heard_characters
            await call.write(pb.StreamSynthesizeResponse(end=end))

    async def Session(self, messages: AsyncIterator[pb.SessionRequest], context: Context) -> None:
        await SessionCall(self._speaking, context, self._speaking.session_idle_s).serve(messages)

    async def CancelSynthesis(
        self, message: pb.CancelSynthesisRequest, context: Context
    ) -> pb.CancelSynthesisResponse:
        if not self._speaking.cancel(message.request_id, Cancelled("cancelled by CancelSynthesis")):
            raise RequestNotFound(f"no request {message.request_id!r} waits or sounds")
        return pb.CancelSynthesisResponse()
