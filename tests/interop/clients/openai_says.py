"""The calls of OpenAI's SDK: `python openai_says.py BASE_URL` → JSON."""

import asyncio
import base64
import hashlib
import json
import sys

import openai

LINE = {"model": "tts-1", "voice": "ann", "input": "One, two, three.", "extra_body": {"seed": 7, "nfe": 2}}
LONG = {**LINE, "input": "A long story. " * 100, "extra_body": {"channel": "sdk", "nfe": 7}}


def blocking(client: openai.OpenAI) -> dict:
    """Every format whole and streamed, models, and errors by their classes."""
    found: dict = {"whole": {}, "streamed": {}, "parts": {}}
    for form in ("mp3", "opus", "flac", "wav", "pcm"):
        whole = client.audio.speech.create(response_format=form, **LINE).read()
        found["whole"][form] = base64.b64encode(whole).decode()
        with client.audio.speech.with_streaming_response.create(response_format=form, **LINE) as reply:
            parts = list(reply.iter_bytes())
        found["streamed"][form] = hashlib.sha256(b"".join(parts)).hexdigest()
        found["parts"][form] = len(parts)
    found["models"] = [model.id for model in client.models.list()]
    found["model"] = client.models.retrieve("tts-1").id
    found["errors"] = []
    for change in ({"voice": "bob"}, {"speed": 9}, {"response_format": "aac"}):
        try:
            client.audio.speech.create(**{**LINE, **change})
        except openai.APIStatusError as error:
            found["errors"].append([type(error).__name__, error.status_code, error.param, error.code])
    return found


async def asynchronous(url: str) -> dict:
    """A streamed reply, sixteen at a time, then a stream that the client leaves after its first bytes."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def once() -> str:
            call = client.audio.speech.with_streaming_response.create(response_format="pcm", **LINE)
            async with call as reply:
                return hashlib.sha256(b"".join([part async for part in reply.iter_bytes()])).hexdigest()

        together = await asyncio.gather(*(once() for _ in range(16)))
        call = client.audio.speech.with_streaming_response.create(response_format="pcm", **LONG)
        async with call as reply:
            async for part in reply.iter_bytes():
                left = len(part)
                break
    return {"together": together, "left": left}


if __name__ == "__main__":
    with openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0) as client:
        found = blocking(client)
    print(json.dumps({**found, **asyncio.run(asynchronous(sys.argv[1]))}))
