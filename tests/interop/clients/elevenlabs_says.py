"""The elevenlabs SDK's calls: `python elevenlabs_says.py URL [written KEY]` → JSON."""

import asyncio
import base64
import contextlib
import hashlib
import json
import sys

from elevenlabs import AsyncElevenLabs, ElevenLabs, VoiceSettings
from elevenlabs.core.api_error import ApiError
from websockets.exceptions import InvalidStatus

TEXT = "One, two, 3."
EXACT = {"additional_body_parameters": {"nfe": 2}}
LINE = {"voice_id": "Ann", "text": TEXT, "seed": 7, "request_options": EXACT}
FORMATS = (
    *("mp3_44100_128", "mp3_22050_32", "pcm_16000", "pcm_24000", "pcm_44100", "ulaw_8000", "opus_48000_64"),
    "wav_24000",
)


def encoded(parts) -> str:
    return base64.b64encode(b"".join(parts)).decode()


def aligned(alignment) -> dict:
    return {
        "text": "".join(alignment.characters),
        "starts": alignment.character_start_times_seconds,
        "ends": alignment.character_end_times_seconds,
    }


def blocking(client: ElevenLabs) -> dict:
    """Each format whole and streamed, with time stamps, voices, models, and errors."""
    speech, found = client.text_to_speech, {"whole": {}, "streamed": {}}
    for form in FORMATS:
        found["whole"][form] = encoded(speech.convert(output_format=form, **LINE))
        found["streamed"][form] = encoded(speech.stream(output_format=form, **LINE))
    timed = speech.convert_with_timestamps(output_format="pcm_24000", **LINE)
    found["timed"] = {
        "audio": timed.audio_base_64,
        "alignment": aligned(timed.alignment),
        "normalized": aligned(timed.normalized_alignment),
    }
    pieces = list(speech.stream_with_timestamps(output_format="pcm_24000", **LINE))
    found["pieces"] = {
        "audio": encoded(base64.b64decode(piece.audio_base_64) for piece in pieces),
        "alignment": [aligned(piece.alignment) for piece in pieces if piece.alignment],
    }
    faster = {**LINE, "voice_settings": VoiceSettings(speed=1.2, stability=0.4)}
    found["faster"] = len(b"".join(speech.convert(output_format="pcm_24000", **faster)))
    found["default"] = encoded(speech.convert(**LINE))
    found["voices"] = [[one.voice_id, one.name, one.category] for one in client.voices.get_all().voices]
    found["search"] = [voice.voice_id for voice in client.voices.search().voices]
    found["voice"] = client.voices.get("ANN").voice_id
    found["models"] = [[model.model_id, model.can_do_text_to_speech] for model in client.models.list()]
    found["errors"] = []
    fast = VoiceSettings(speed=9)
    for change in ({"voice_id": "bob"}, {"voice_settings": fast}, {"output_format": "pcm_11025"}):
        try:
            b"".join(speech.convert(**{**LINE, **change}))
        except ApiError as error:
            detail = error.body["detail"]
            found["errors"].append([error.status_code, detail["status"], detail["param"]])
    return found


def written(url: str, key: str) -> dict:
    """A text in pieces; a text without a token; a text in an unknown voice."""
    found: dict = {"refused": []}
    for api_key, voice in ((key, "ann"), ("none", "ann"), (key, "bob")):
        speech = ElevenLabs(base_url=url, api_key=api_key).text_to_speech
        try:
            found["written"] = len(connected(speech, voice))
        except InvalidStatus as error:
            name = "none" if api_key == "none" else voice
            found["refused"].append([name, error.response.status_code])
    return found


def connected(speech, voice: str) -> bytes:
    """The text in this voice. The SDK uses the threaded client of websockets 15.0.1.

    Over TLS some of its connections never send their request, even to its own server: 27 of 2,822 on CPython
    3.13.0. Its asyncio client sent all of 3,641 to the gateway.
    """

    def said() -> bytes:
        text = iter(("Hello, ", "chat. ", "Welcome."))
        return b"".join(speech.convert_realtime(voice, text=text, output_format="pcm_24000"))

    for _ in range(3):
        with contextlib.suppress(TimeoutError):
            return said()
    return said()


async def asynchronous(url: str) -> dict:
    """Sixteen streams at a time, then a stream that the client leaves after its first bytes."""
    client = AsyncElevenLabs(base_url=url, api_key="none")

    async def once() -> str:
        said = client.text_to_speech.stream(output_format="pcm_24000", **LINE)
        return hashlib.sha256(b"".join([part async for part in said])).hexdigest()

    together = await asyncio.gather(*(once() for _ in range(16)))
    more = {"additional_body_parameters": {"channel": "sdk", "nfe": 7}}
    long = client.text_to_speech.stream("ann", text="A long story. " * 100, request_options=more)
    async for part in long:
        left = len(part)
        break
    await long.aclose()
    return {"together": together, "left": left}


if __name__ == "__main__":
    url, *how = sys.argv[1:]
    if how:
        print(json.dumps(written(url, how[1])))
    else:
        found = blocking(ElevenLabs(base_url=url, api_key="none"))
        print(json.dumps({**found, **asyncio.run(asynchronous(url))}))
