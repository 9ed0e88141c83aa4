"""Wyoming's own client with Home Assistant's requests: `python wyoming_says.py HOST:PORT` → JSON."""

import asyncio
import base64
import json
import sys

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

uri = f"tcp://{sys.argv[1]}"
TEXT = "Hello, my 5 friends. Welcome to the stream."
LONG = "A long story. " * 100


async def read(client, last):
    """Read events until an event of the type `last`, an error, or the end."""
    types, audio, rate, error = [], b"", 0, None
    while event := await client.read_event():
        if not types or types[-1] != event.type:
            types.append(event.type)
        if AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            audio, rate = audio + chunk.audio, chunk.rate
        if Error.is_type(event.type):
            error = Error.from_event(event)
        if last.is_type(event.type):
            break
    return {
        "types": types,
        "audio": base64.b64encode(audio).decode(),
        "rate": rate,
        "error": error and [error.code, error.text],
    }


async def whole(text=TEXT, voice=None):
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(Synthesize(text=text, voice=voice).event())
        return await read(client, AudioStop)


async def written(voice):
    """Home Assistant streams so: it sends the whole text again for servers that cannot stream."""
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(SynthesizeStart(voice=voice).event())
        for word in TEXT.split():
            await client.write_event(SynthesizeChunk(text=f"{word} ").event())
        await client.write_event(Synthesize(text=TEXT, voice=voice).event())
        await client.write_event(SynthesizeStop().event())
        return await read(client, SynthesizeStopped)


async def early():
    """True if sound comes before the text has ended."""
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(SynthesizeStart(voice=SynthesizeVoice(name="ann")).event())
        await client.write_event(SynthesizeChunk(text="This is the first sentence of a story. And ").event())
        heard = await read(client, AudioChunk)
        await client.write_event(SynthesizeChunk(text="here is more.").event())
        await client.write_event(SynthesizeStop().event())
        rest = await read(client, SynthesizeStopped)
    return {"first": len(heard["audio"]), "rest": len(rest["audio"])}


async def left():
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(Synthesize(text=LONG).event())
        return AudioStart.is_type((await client.read_event()).type)


async def main():
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(Ping(text="here").event())
        pong = Pong.from_event(await client.read_event())
        await client.write_event(Describe().event())
        (program,) = Info.from_event(await client.read_event()).tts
        found = {
            "pong": pong.text,
            "streams": program.supports_synthesize_streaming,
            "voices": [[voice.name, voice.languages, voice.installed] for voice in program.voices],
        }
    ann = SynthesizeVoice(name="Ann")
    found["whole"] = await whole(voice=ann)
    found["speaker"] = await whole(voice=SynthesizeVoice(name="f5", speaker="ann"))
    found["default"] = await whole()
    found["language"] = await whole(voice=SynthesizeVoice(language="en"))
    found["blank"] = await whole(" ")
    found["wrong"] = await whole(voice=SynthesizeVoice(name="bob"))
    found["too long"] = await whole("word " * 1_000)
    found["written"] = await written(ann)
    found["nothing"] = await read_nothing()
    found["wrong written"] = await written(SynthesizeVoice(name="bob"))
    found["early"] = await early()
    together = await asyncio.gather(*(whole(voice=ann) for _ in range(4)))
    found["together"] = [len(one["audio"]) for one in together]
    found["left"] = await left()
    print(json.dumps(found))


async def read_nothing():
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(SynthesizeStart().event())
        await client.write_event(SynthesizeStop().event())
        return await read(client, SynthesizeStopped)


asyncio.run(main())
