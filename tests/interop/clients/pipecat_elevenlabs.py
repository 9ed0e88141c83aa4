"""Pipecat's ElevenLabs services in a pipeline, elsewhere: `python pipecat_elevenlabs.py HOST:PORT`."""

import asyncio
import json
import sys

import aiohttp
from loguru import logger
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.tests.utils import SleepFrame, run_test

logger.remove()
address = sys.argv[1]
LINES = "Hello, my 5 friends. Welcome to the stream."
WORDS = [f"{word} " for word in LINES.split()]


def told(frames):
    down, up = frames
    audio = [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]
    return {
        "bytes": sum(len(frame.audio) for frame in audio),
        "frames": len(audio),
        "rate": audio[0].sample_rate if audio else 0,
        "words": [frame.text for frame in down if isinstance(frame, TTSTextFrame)],
        "stopped": sum(isinstance(frame, TTSStoppedFrame) for frame in down),
        "errors": [frame.error for frame in [*down, *up] if isinstance(frame, ErrorFrame)],
    }


def websocket(**more):
    settings = ElevenLabsTTSService.Settings(voice="Ann")
    return ElevenLabsTTSService(
        api_key="none", url=f"ws://{address}", sample_rate=24000, settings=settings, **more
    )


async def main():
    found = {}
    found["spoken"] = told(
        await run_test(websocket(), frames_to_send=[TTSSpeakFrame(LINES), SleepFrame(2.0)])
    )
    tokens = [LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS), LLMFullResponseEndFrame()]
    found["written"] = told(await run_test(websocket(), frames_to_send=[*tokens, SleepFrame(2.0)]))
    long = [LLMFullResponseStartFrame(), LLMTextFrame("A long story. " * 100), LLMFullResponseEndFrame()]
    frames = [*long, SleepFrame(1.0), InterruptionFrame(), SleepFrame(0.5)]
    found["interrupted"] = told(await run_test(websocket(), frames_to_send=frames))
    # Ten turns that are interrupted at once, then one that is not.
    frames = [*long, SleepFrame(0.02), InterruptionFrame()] * 10
    found["after"] = told(await run_test(websocket(), frames_to_send=[*frames, *tokens, SleepFrame(2.0)]))
    async with aiohttp.ClientSession() as session:
        http = ElevenLabsHttpTTSService(
            api_key="none",
            base_url=f"http://{address}",
            aiohttp_session=session,
            sample_rate=24000,
            settings=ElevenLabsHttpTTSService.Settings(voice="Ann"),
        )
        found["http"] = told(await run_test(http, frames_to_send=[TTSSpeakFrame(LINES), SleepFrame(2.0)]))
    print(json.dumps(found))


asyncio.run(main())
