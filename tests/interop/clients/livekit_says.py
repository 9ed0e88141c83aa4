"""LiveKit's NVIDIA plugin: its voices, and both ways to speak: `python livekit_says.py ADDRESS` → JSON."""

import asyncio
import json
import sys

from livekit.plugins import nvidia


async def main():
    tts = nvidia.TTS(server=sys.argv[1], voice="F5.ann", use_ssl=False)
    told = {"voices": tts.list_voices()}
    whole = await tts.synthesize("Hello, chat. Welcome to the stream.").collect()
    told["whole"] = {"rate": whole.sample_rate, "seconds": whole.duration}
    stream = tts.stream()
    for piece in ("Hello, chat. ", "Welcome to ", "the stream."):
        stream.push_text(piece)
    stream.end_input()
    told["stream"] = sum([event.frame.duration async for event in stream])
    await stream.aclose()
    await tts.aclose()
    print(json.dumps(told))


asyncio.run(main())
