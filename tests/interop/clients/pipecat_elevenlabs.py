"""Pipecat's ElevenLabs services in a pipeline, at another address: `python pipecat_elevenlabs.py
HOST:PORT`."""

import asyncio
import json
import sys
from itertools import chain

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
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.tests.utils import SleepFrame, run_test

logger.remove()
address = sys.argv[1]
LINES = "Hello, my 5 friends. Welcome to the stream."
WORDS = [f"{word} " for word in LINES.split()]


class Heard(FrameProcessor):
    """Signals the first audio, and the end of a turn that was played to its last word."""

    def __init__(self):
        super().__init__()
        self.audio, self.turn = asyncio.Event(), asyncio.Event()
        self.words, self.stopped = [], False

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio.set()
        elif isinstance(frame, TTSTextFrame):
            self.words.append(frame.text.strip())
        elif isinstance(frame, TTSStartedFrame | TTSStoppedFrame):
            self.stopped = isinstance(frame, TTSStoppedFrame)
        if self.stopped and " ".join(self.words).endswith(LINES):
            self.turn.set()
        await self.push_frame(frame, direction)


def until(event):
    """Sleep until the event is set."""
    for _ in range(6000):
        if event.is_set():
            return
        yield SleepFrame(0.02)


async def run(service, send):
    """Summary of a pipeline's frames; `send` yields the input frames and can wait for `Heard`'s events."""
    heard = Heard()
    frames = await run_test(Pipeline([service, heard]), frames_to_send=send(heard), start_timeout=120)
    return told(frames)


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
    speak = TTSSpeakFrame(LINES)
    tokens = [LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS), LLMFullResponseEndFrame()]
    long = [LLMFullResponseStartFrame(), LLMTextFrame("A long story. " * 100), LLMFullResponseEndFrame()]
    # Ten turns that are interrupted at once, followed by a whole turn.
    turns = [*[*long, SleepFrame(0.02), InterruptionFrame()] * 10, *tokens]
    found = {
        "spoken": await run(websocket(), lambda heard: chain([speak], until(heard.turn))),
        "written": await run(websocket(), lambda heard: chain(tokens, until(heard.turn))),
        "interrupted": await run(
            websocket(), lambda heard: chain(long, until(heard.audio), [InterruptionFrame(), SleepFrame(0.5)])
        ),
        "after": await run(websocket(), lambda heard: chain(turns, until(heard.turn))),
    }
    async with aiohttp.ClientSession() as session:
        http = ElevenLabsHttpTTSService(
            api_key="none",
            base_url=f"http://{address}",
            aiohttp_session=session,
            sample_rate=24000,
            settings=ElevenLabsHttpTTSService.Settings(voice="Ann"),
        )
        found["http"] = await run(http, lambda heard: chain([speak], until(heard.turn)))
    print(json.dumps(found))


asyncio.run(main())
