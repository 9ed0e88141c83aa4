"""Riva's speech synthesis service: its requests become ours, and our audio its replies.

The messages come with nvidia-riva-client, whose health messages must never be imported beside gRPC's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
from riva.client.proto import riva_tts_pb2 as riva
from riva.client.proto import riva_tts_pb2_grpc
from riva.client.proto.riva_audio_pb2 import AudioEncoding
from riva.client.proto.riva_common_pb2 import RequestId

from appliance.audio.compress import alaw
from appliance.audio.encode import wav_header
from appliance.audio.ogg import OpusPackets
from appliance.errors import (
    DeadlineMissed,
    InvalidReference,
    InvalidRequest,
    UnsupportedEncoding,
    VoiceNotFound,
)
from appliance.job import Reference
from appliance.prompts import Prompts
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.requests import words_of
from appliance.rpc.server import Face
from appliance.rpc.synthesizer import SynthesizerService
from appliance.voices import MAX_PAGE, VoiceStore

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE = "nvidia.riva.tts.RivaSpeechSynthesis"
VOICE = "F5"
"""Riva's name of the model, in front of each of its voices: F5.anna."""
ENCODINGS = {
    AudioEncoding.ENCODING_UNSPECIFIED: pb.PCM16,
    AudioEncoding.LINEAR_PCM: pb.PCM16,
    AudioEncoding.FLAC: pb.FLAC,
    AudioEncoding.MULAW: pb.MULAW,
    AudioEncoding.OGGOPUS: pb.OGG_OPUS,
    AudioEncoding.ALAW: pb.PCM16,
}
FIELDS = {
    "voice": "voice_name",
    "audio": "zero_shot_data.audio_prompt",
    "transcript": "zero_shot_data.transcript",
    "nfe_steps": "zero_shot_data.quality",
    "audio_config.sample_rate_hertz": "sample_rate_hz",
    "pronunciations": "custom_dictionary",
    "request_id": "id",
}
"""Our names of fields → Riva's."""
DEFAULT_QUALITY = 20
"""Quality, of 1 to 40, that stands for the daemon's own number of steps."""
CONTAINERS = (b"RIFF", b"RIFX", b"RF64", b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xf3")
"""First bytes of the files that are understood; clients name their encoding only now and then."""
HAN = re.compile("[\u3400-\u9fff]")
PHONEMES = re.compile("[\u0250-\u02ff\u1d00-\u1dbf\u0361æðøœħŋβθχ{}@/]|\\b[A-Z]{2}[0-2]\\b")
"""IPA, and the ARPAbet of Riva's dictionaries: what the model cannot be told."""
NO_TRANSCRIPT = (
    "is needed: F5 has to know what is said in the prompt. Send it here, or as "
    'custom_configuration["transcript"], or once in an earlier call with the same prompt, or register the '
    "audio as a voice"
)


class ModelNotAvailable(InvalidRequest):
    """No such voice, in the words that Riva's clients know."""

    def __init__(self, voice: str, language: str) -> None:
        super().__init__("voice_name", "")
        self.args = (
            f"Model is not available on server: Voice {voice} for language {language or 'en-US'} not found.",
        )


def face(synthesizer: SynthesizerService, store: VoiceStore, prompts: Prompts) -> Face:
    """Riva's service, to be added to a server."""
    servicer = Riva(synthesizer, store, prompts)
    return Face(SERVICE, lambda server: _add(servicer, server))


class Riva:
    """Speaks for Riva's clients; see riva/proto/riva_tts.proto."""

    def __init__(self, service: SynthesizerService, store: VoiceStore, prompts: Prompts) -> None:
        self._service, self._store, self._prompts = service, store, prompts

    async def GetRivaSynthesisConfig(self, message: Any, context: Context) -> Any:
        manifest = self._service.speech.planner.manifest
        reply = riva.RivaSynthesisConfigResponse()
        for language, names in sorted((await asyncio.to_thread(self._voices)).items()):
            model = f"{manifest.family}-{language}"
            if message.model_name not in ("", model):
                continue
            parameters = {
                "language_code": language,
                "voice_name": VOICE,
                "subvoices": ",".join(f"{name}:{number}" for number, name in enumerate(names)),
                "sample_rate": str(manifest.mel.sample_rate_hz),
            }
            reply.model_config.add(model_name=model, parameters=parameters)
        return reply

    async def Synthesize(self, message: Any, context: Context) -> Any:
        with _rivas_words(message):
            wanted, _held = await self._wanted(message)
            made = await self._service.Synthesize(wanted, context)
        reply = _reply(message, made.header, _encoder(message)(made.audio))
        _add_words(reply, made.words)
        return reply

    async def SynthesizeOnline(self, messages: AsyncIterator[Any], context: Context) -> None:
        """Each message is a text with its own settings, and is spoken before the next one is read."""
        with self._service.session(context) as idle_s:
            while (message := await _next(messages, idle_s)) is not None:
                with _rivas_words(message):
                    wanted, _held = await self._wanted(message)
                    await self._speak(message, wanted, context)

    async def _speak(self, message: Any, wanted: pb.SynthesizeRequest, context: Context) -> None:
        service = self._service
        asked = service.asked(wanted, context, stream=True)
        if asked.is_empty:
            await context.write(_reply(message, service.skipped(asked, context)))
            return
        async with service.call(wanted, context, stream=True, asked=asked) as call:
            header, encoder = service.header(call), _encoder(message)
            async for audio, samples in service.audio(call):
                reply = _reply(message, header, encoder(audio.data))
                await service.write(call, context, reply, samples)
            service.finish(call, context)
            if call.words:
                _add_words(reply := _reply(message, header), words_of(call.words))
                await service.write(call, context, reply)

    async def _wanted(self, message: Any) -> tuple[pb.SynthesizeRequest, Reference | None]:
        """The request in our words, and the prepared prompt, which is to be held while it is served."""
        if message.encoding not in ENCODINGS:
            raise UnsupportedEncoding(f"encoding: {message.encoding} is none of Riva's")
        wanted = pb.SynthesizeRequest(
            text=message.text,
            audio_config={"encoding": ENCODINGS[message.encoding], "sample_rate_hertz": _rate(message)},
            request_id=message.id.value,
            word_timings=message.enable_word_time_offsets,
            text_handling=pb.SSML if message.text.lstrip().startswith("<speak") else pb.CHAT,
            pronunciations=_pronunciations(message.custom_dictionary),
        )
        zero_shot = message.zero_shot_data
        if zero_shot.quality:
            synthesis = self._service.speech.defaults.synthesis
            nfe = round(synthesis.nfe * zero_shot.quality / DEFAULT_QUALITY)
            wanted.nfe_steps = max(1, min(nfe, synthesis.max_nfe))
        if not zero_shot.audio_prompt:
            wanted.voice = await self._voice(message)
            return wanted, None
        audio = _file_of(zero_shot)
        transcript = zero_shot.transcript or message.custom_configuration.get("transcript", "")
        transcript = transcript or await self._prompts.transcript_of(audio)
        if transcript:
            wanted.voice, reference = await self._prompts.lend(audio, transcript)
            return wanted, reference
        if (name := _own_name(message.voice_name)) not in await asyncio.to_thread(self._store.names):
            raise InvalidRequest("zero_shot_data.transcript", NO_TRANSCRIPT)
        wanted.voice = name
        return wanted, None

    async def _voice(self, message: Any) -> str:
        """The voice that is named, else the first of the language. Raises ModelNotAvailable."""
        if message.voice_name:
            return _own_name(message.voice_name)
        voices = await asyncio.to_thread(self._voices)
        if names := voices.get(message.language_code or "en-US"):
            return names[0]
        raise ModelNotAvailable("", message.language_code)

    def _voices(self) -> dict[str, list[str]]:
        """Names of the stored voices that can be used, by the language of what is said in them."""
        voices: dict[str, list[str]] = {}
        token = ""
        while True:
            page = self._store.page(MAX_PAGE, token)
            for voice in page.voices:
                if not voice.problem:
                    language = "zh-CN" if HAN.search(voice.transcript) else "en-US"
                    voices.setdefault(language, []).append(voice.name)
            if not (token := page.next_token):
                return voices


def _add(servicer: Riva, server: grpc.aio.Server) -> None:
    riva_tts_pb2_grpc.add_RivaSpeechSynthesisServicer_to_server(servicer, server)


async def _next(messages: AsyncIterator[Any], idle_s: float) -> Any:
    """The next message; None after the last. Raises DeadlineMissed."""
    try:
        return await asyncio.wait_for(anext(messages, None), idle_s)
    except asyncio.TimeoutError as error:
        raise DeadlineMissed(f"nothing was written for {idle_s:g} s") from error


@contextlib.contextmanager
def _rivas_words(message: Any) -> Iterator[None]:
    """Errors about our fields become errors about Riva's."""
    try:
        yield
    except VoiceNotFound as error:
        raise ModelNotAvailable(message.voice_name, message.language_code) from error
    except InvalidRequest as error:
        field = FIELDS.get(error.field)
        if field is None:
            raise
        kind = InvalidReference if isinstance(error, InvalidReference) else InvalidRequest
        raise kind(field, str(error).removeprefix(f"{error.field}: ")) from error


def _own_name(voice: str) -> str:
    """F5.anna → anna. What stands before the last dot is a model's name, whoever's it is."""
    return voice.rpartition(".")[2].lower()


def _rate(message: Any) -> int:
    if message.sample_rate_hz < 0:
        raise InvalidRequest("sample_rate_hz", f"must not be below 0, and is {message.sample_rate_hz}")
    return int(message.sample_rate_hz)


def _pronunciations(dictionary: str) -> dict[str, str]:
    """Riva's "word  said, word  said". Raises InvalidRequest for phonemes."""
    words = {}
    for entry in filter(None, map(str.strip, dictionary.split(","))):
        word, _, said = entry.partition("  " if "  " in entry else " ")
        if PHONEMES.search(said):
            raise InvalidRequest(
                "custom_dictionary",
                f"of {word[:64]!r} has phonemes, which F5 cannot be told; write it as it is said, in letters",
            )
        words[word.strip()] = said.strip()
    return words


def _file_of(zero_shot: Any) -> bytes:
    """The prompt as a file: clients send one whatever encoding they name; bare samples get a header."""
    audio: bytes = zero_shot.audio_prompt
    is_bare = zero_shot.encoding == AudioEncoding.LINEAR_PCM and zero_shot.sample_rate_hz > 0
    if is_bare and not audio.startswith(CONTAINERS):
        return wav_header(zero_shot.sample_rate_hz, len(audio) // 2) + audio[: len(audio) // 2 * 2]
    return audio


def _encoder(message: Any) -> Callable[[bytes], bytes]:
    """Return the conversion from our encoding of a text's audio to Riva's."""
    if message.encoding == AudioEncoding.OGGOPUS:
        return OpusPackets().push
    return alaw if message.encoding == AudioEncoding.ALAW else bytes


def _reply(message: Any, header: pb.Header, audio: bytes = b"") -> Any:
    return riva.SynthesizeSpeechResponse(
        audio=audio,
        meta={"text": message.text, "processed_text": header.text},
        id=RequestId(value=header.request_id),
    )


def _add_words(reply: Any, words: Any) -> None:
    for word in words:
        reply.meta.words.add(
            word=word.word, start_time=round(1e3 * word.start_s), end_time=round(1e3 * word.end_s)
        )
