"""LiveKit's ElevenLabs plugin at another address: `python livekit_elevenlabs.py HOST:PORT` → JSON."""

import asyncio
import json
import sys

import aiohttp
from livekit.plugins import elevenlabs

WORDS = ("Hello, ", "my 5 friends. ", "Welcome to ", "the stream.")


async def written(tts, words=WORDS):
    stream = tts.stream()
    for piece in words:
        stream.push_text(piece)
    stream.end_input()
    frames = [event.frame async for event in stream]
    await stream.aclose()
    timed = [word for frame in frames for word in frame.userdata.get("lk.timed_transcripts", [])]
    words = [[str(word), word.start_time] for word in timed]
    return {"seconds": sum(frame.duration for frame in frames), "rate": frames[0].sample_rate, "words": words}


async def left(tts):
    """Close a stream at its first sound."""
    stream = tts.stream()
    stream.push_text("A long story. " * 100)
    stream.flush()
    async for event in stream:
        await stream.aclose()
        return event.frame.duration


async def main():
    async with aiohttp.ClientSession() as session:
        tts = elevenlabs.TTS(
            base_url=f"http://{sys.argv[1]}/v1",
            api_key="none",
            voice_id="Ann",
            encoding="pcm_24000",
            http_session=session,
        )
        found = {"voices": [voice.id for voice in await tts.list_voices()]}
        whole = await tts.synthesize("Hello, chat. Welcome to the stream.").collect()
        found["whole"] = {"rate": whole.sample_rate, "seconds": whole.duration}
        found["written"] = await written(tts)
        found["together"] = [one["seconds"] for one in await asyncio.gather(written(tts), written(tts))]
        found["left"] = await left(tts)
        found["nothing"] = [(await written(tts, (text,)))["seconds"] for text in ("...", "\U0001f3fb")]
        await tts.aclose()
        mp3 = elevenlabs.TTS(
            base_url=f"http://{sys.argv[1]}/v1", api_key="none", voice_id="Ann", http_session=session
        )
        found["mp3"] = (await written(mp3))["seconds"]
        await mp3.aclose()
    print(json.dumps(found))


asyncio.run(main())
