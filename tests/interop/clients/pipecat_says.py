"""Pipecat's NvidiaTTSService in a pipeline: `python pipecat_says.py ADDRESS PROMPT.wav`. Prints JSON."""

import asyncio
import json
import os
import sys

from loguru import logger
from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.services.nvidia.tts import NvidiaTTSService, NvidiaTTSSynthesisMode
from pipecat.tests.utils import SleepFrame, run_test

logger.remove()
address, prompt = sys.argv[1:]
LINES = "Hello, chat. Welcome to the stream."


async def say(mode, prompt=None):
    settings = NvidiaTTSService.Settings(voice="F5.ann", synthesis_mode=mode)
    tts = NvidiaTTSService(
        server=address,
        use_ssl=False,
        sample_rate=24000,
        settings=settings,
        zero_shot_audio_prompt_file=prompt,
        # Pipecat's default of 3 s is too short on a busy machine.
        stop_frame_timeout_s=30.0 * float(os.environ.get("F5_PATIENCE", "1")),
    )
    down, up = await run_test(tts, frames_to_send=[TTSSpeakFrame(LINES), SleepFrame(0.1)])
    errors = [frame.error for frame in [*down, *up] if isinstance(frame, ErrorFrame)]
    audio = [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]
    return {"bytes": sum(len(frame.audio) for frame in audio), "frames": len(audio), "errors": errors}


async def main():
    told = {mode.value: await say(mode) for mode in NvidiaTTSSynthesisMode}
    told["zero-shot"] = await say(NvidiaTTSSynthesisMode.PER_SENTENCE, prompt)
    print(json.dumps(told))


asyncio.run(main())
