"""NVIDIA Riva's speech synthesis service: translates its requests into ours, and our audio into its replies.

Never import the health messages of nvidia-riva-client: gRPC's own have the same names.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from riva.client.proto import riva_tts_pb2 as riva
from riva.client.proto import riva_tts_pb2_grpc
from riva.client.proto.riva_audio_pb2 import AudioEncoding
from riva.client.proto.riva_common_pb2 import RequestId

from appliance.audio.ogg import OpusPackets
from appliance.audio.wav import wav_header
from appliance.errors import (
    DeadlineMissed,
    InvalidReference,
    InvalidRequest,
    UnsupportedEncoding,
    VoiceNotFound,
)
from appliance.fields import shown
from appliance.request import Reference
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.context import Context
from appliance.rpc.replies import word_messages
from appliance.rpc.speaking import Speaking
from appliance.text import ssml
from appliance.text.languages import LANGUAGES, base_code
from appliance.text.pronounce import MOST_SAY, MOST_WORD, MOST_WORDS
from appliance.voices.index import MAX_PAGE, VoiceIndex
from appliance.voices.prompts import Prompts

SERVICE = "nvidia.riva.tts.RivaSpeechSynthesis"
add_to_server = riva_tts_pb2_grpc.add_RivaSpeechSynthesisServicer_to_server
VOICE = "F5"
"""Riva's name of the model, as in "F5.anna"."""
ENCODINGS = {
    AudioEncoding.ENCODING_UNSPECIFIED: pb.PCM16,
    AudioEncoding.LINEAR_PCM: pb.PCM16,
    AudioEncoding.FLAC: pb.FLAC,
    AudioEncoding.MULAW: pb.MULAW,
    AudioEncoding.OGGOPUS: pb.OGG_OPUS,
    AudioEncoding.ALAW: pb.ALAW,
}
FIELDS = {
    "voice": "voice_name",
    "audio": "zero_shot_data.audio_prompt",
    "transcript": "zero_shot_data.transcript",
    "nfe_steps": "zero_shot_data.quality",
    "audio_config.sample_rate_hertz": "sample_rate_hz",
    "pronunciations": "custom_dictionary",
    "request_id": "id",
    "style": 'custom_configuration["style"]',
}
"""Our names of fields → Riva's."""
HANDLING = "text_handling"
HANDLINGS = {"chat": pb.CHAT, "verbatim": pb.VERBATIM, "ssml": pb.SSML}
DEFAULT_QUALITY = 20
"""Riva's `quality` (1 to 40) that stands for the daemon's default number of steps."""
CONTAINERS = (b"RIFF", b"RIFX", b"RF64", b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xf3")
"""First bytes of audio files: clients seldom name the encoding of their prompt."""
HAN = re.compile("[\u3400-\u9fff]")
REGIONS = {
    **{"en": "en-US", "zh": "zh-CN", "de": "de-DE", "es": "es-US", "fr": "fr-FR", "it": "it-IT"},
    **{"pt": "pt-BR", "ru": "ru-RU", "ja": "ja-JP", "ko": "ko-KR", "hi": "hi-IN", "ar": "ar-AR"},
}
"""Language code → Riva's code. Languages that are missing here keep their own code."""
UNASKED = "en"
"""Language that Riva's clients send if their user chose none."""
LONGEST_DICTIONARY = MOST_WORDS * (MOST_WORD + MOST_SAY + len("  , "))
PHONEMES = re.compile("[\u0250-\u02ff\u1d00-\u1dbf\u0361æðøœħŋβθχ{}@/]|\\b[A-Z]{2}[0-2]\\b")
"""IPA, and the ARPAbet of Riva's dictionaries. The model reads neither."""
NO_TRANSCRIPT = (
    "is needed: F5 needs the words of the prompt. Send it here, or as "
    'custom_configuration["transcript"], or once in an earlier call with the same prompt, or register the '
    "audio as a voice"
)


class ModelNotAvailable(InvalidRequest):
    """Error for a voice that does not exist; the message begins as Riva's own does."""

    def __init__(self, voice: str, language: str, there: Iterable[str] = ()) -> None:
        super().__init__("voice_name", "")
        languages = ", ".join(sorted(there))
        self.args = (
            f"Model is not available on server: Voice {voice} for language {language or 'en-US'} not found."
            + (f" There are voices for {languages}." if languages else ""),
        )


class RivaService:
    """See riva/proto/riva_tts.proto."""

    def __init__(self, speaking: Speaking, store: VoiceIndex, prompts: Prompts) -> None:
        self._speaking, self._store, self._prompts = speaking, store, prompts
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _turn(self, context: Context) -> asyncio.Lock:
        """Lock of a connection. It keeps the connection's texts in order of arrival."""
        peer = context.peer()
        # Connections over a Unix socket have no identity (as in `Terms.line`), so each call has a lock.
        return asyncio.Lock() if peer.startswith("unix") else self._turns.setdefault(peer, asyncio.Lock())

    async def GetRivaSynthesisConfig(self, message: Any, context: Context) -> Any:
        manifest = self._speaking.speech.manifest
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

    async def Synthesize(self, message: Any, context: Context) -> None:
        with _errors_of_riva(message):
            async with self._translated(message, context) as request:
                await self._speaking.answer(request, context, partial(_whole_reply, message))

    async def SynthesizeOnline(self, messages: AsyncIterator[Any], context: Context) -> None:
        """Speak each message before reading the next."""
        is_first = True
        while (message := await _next(messages, self._speaking.session_idle_s)) is not None:
            with _errors_of_riva(message):
                async with self._translated(message, context) as request:
                    await self._stream(message, request, context, is_first=is_first)
            is_first = False

    async def _stream(
        self, message: Any, request: pb.SynthesizeRequest, context: Context, *, is_first: bool
    ) -> None:
        wish = self._speaking.wish(request, context, stream=True)
        async with self._speaking.call(wish, context) as call:
            if is_first:
                await self._speaking.begin(context)
            header, encoder = call.header(), _encoder(message)
            if call.is_empty:
                await call.write(_reply(message, header))
            async for audio, samples in call.audio():
                await call.write(_reply(message, header, encoder(audio.data)), samples)
            call.finish()
            if call.words:
                _add_words(reply := _reply(message, header), word_messages(call.words))
                await call.write(reply)

    @contextlib.asynccontextmanager
    async def _translated(self, message: Any, context: Context) -> AsyncIterator[pb.SynthesizeRequest]:
        """Our form of a request. The context holds the reference of the request's prompt in memory."""
        async with self._turn(context):
            request, _reference = await self._translate(message)
        yield request

    async def _translate(self, message: Any) -> tuple[pb.SynthesizeRequest, Reference | None]:
        """Our form of a request, and the reference if the request brings its own prompt."""
        if message.encoding not in ENCODINGS:
            raise UnsupportedEncoding(f"encoding: {message.encoding} is none of Riva's")
        request = pb.SynthesizeRequest(
            text=message.text,
            audio_config={"encoding": ENCODINGS[message.encoding], "sample_rate_hertz": _rate(message)},
            request_id=message.id.value,
            word_timings=message.enable_word_time_offsets,
            text_handling=self._handling(message),
            language_code=self._language(message.language_code),
            style=message.custom_configuration.get("style", ""),
            pronunciations=_pronunciations(message.custom_dictionary),
        )
        zero_shot = message.zero_shot_data
        if zero_shot.quality:
            speech = self._speaking.speech
            nfe = round(speech.usual.nfe_steps * zero_shot.quality / DEFAULT_QUALITY)
            request.nfe_steps = speech.manifest.sampler.nearest(max(1, min(nfe, speech.synthesis.max_nfe)))
        if not zero_shot.audio_prompt:
            request.voice = await self._voice(message)
            return request, None
        audio = _file_of(zero_shot)
        transcript = zero_shot.transcript or message.custom_configuration.get("transcript", "")
        transcript = transcript or await self._prompts.transcript_of(audio)
        if transcript:
            request.voice, reference = await self._prompts.prepare(audio, transcript)
            return request, reference
        if (name := _own_name(message.voice_name)) not in await asyncio.to_thread(self._store.names):
            raise InvalidRequest("zero_shot_data.transcript", NO_TRANSCRIPT)
        request.voice = name
        return request, None

    def _handling(self, message: Any) -> pb.TextHandling:
        """Choose how to read a text: as `custom_configuration` says, else as SSML if it is a document, else
        as chat.

        Riva has no breaks. A line of chat may contain SSML with them, so breaks beyond the limit for chat
        make the text chat. Raises InvalidRequest.
        """
        if handling := message.custom_configuration.get(HANDLING, ""):
            if handling not in HANDLINGS:
                raise InvalidRequest(
                    f'custom_configuration["{HANDLING}"]',
                    f"must be one of {', '.join(HANDLINGS)}, not {shown(handling)}",
                )
            return HANDLINGS[handling]
        most = self._speaking.speech.synthesis.max_text_characters
        if len(message.text) > most or not message.text.lstrip().startswith("<"):
            return pb.CHAT
        try:
            pieces = ssml.parse(message.text.strip())
        except InvalidRequest:
            return pb.CHAT
        silence_s = sum(piece.seconds for piece in pieces if isinstance(piece, ssml.BreakTag))
        return pb.SSML if silence_s <= ssml.MAX_BREAK_S else pb.CHAT

    def _language(self, code: str) -> str:
        """The code if a user chose it: a configured language; if none is configured, any but UNASKED.

        Else "".
        """
        base, languages = base_code(code), self._speaking.speech.front.languages
        is_chosen = not languages and base != UNASKED and base in LANGUAGES
        return code if base in languages or is_chosen else ""

    async def _voice(self, message: Any) -> str:
        """Voice that a request names, else the first voice of its language in any region.

        Raises ModelNotAvailable.
        """
        if message.voice_name:
            return _own_name(message.voice_name)
        voices = await asyncio.to_thread(self._voices)
        language_code = message.language_code or next(iter(voices), "en-US")
        for code, names in voices.items():
            if base_code(code) == base_code(language_code):
                return names[0]
        raise ModelNotAvailable("", message.language_code, voices)

    def _voices(self) -> dict[str, list[str]]:
        """Usable voices by the language of their transcripts, the configured languages first."""
        front = self._speaking.speech.front
        voices: dict[str, list[str]] = {REGIONS.get(code, code): [] for code in front.languages}
        token = ""
        while True:
            page = self._store.page(MAX_PAGE, token)
            for voice in page.voices:
                if not voice.problem:
                    # Riva's clients know two languages if none is configured.
                    code = front.language_of(voice.transcript) or (
                        "zh" if HAN.search(voice.transcript) else "en"
                    )
                    voices.setdefault(REGIONS.get(code, code), []).append(voice.name)
            if not (token := page.next_token):
                return {code: names for code, names in voices.items() if names}


async def _next(messages: AsyncIterator[Any], idle_s: float) -> Any:
    """Next message; None after the last. Raises DeadlineMissed after `idle_s` without one."""
    try:
        return await asyncio.wait_for(anext(messages, None), idle_s)
    except asyncio.TimeoutError as error:
        raise DeadlineMissed.idle(idle_s) from error


@contextlib.contextmanager
def _errors_of_riva(message: Any) -> Iterator[None]:
    """Rename our fields in errors to Riva's."""
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
    """Name of our voice: "F5.anna" → "anna". The name of the model may be any."""
    return voice.rpartition(".")[2].lower()


def _rate(message: Any) -> int:
    if message.sample_rate_hz < 0:
        raise InvalidRequest("sample_rate_hz", f"must not be below 0, and is {message.sample_rate_hz}")
    return int(message.sample_rate_hz)


def _pronunciations(dictionary: str) -> dict[str, str]:
    """Words of Riva's dictionary, "word  spoken, word  spoken". Raises InvalidRequest for phonemes."""
    if len(dictionary) > LONGEST_DICTIONARY:
        raise InvalidRequest(
            "custom_dictionary", f"has {len(dictionary)} characters; at most {LONGEST_DICTIONARY} are allowed"
        )
    words = {}
    for entry in filter(None, map(str.strip, dictionary.split(","))):
        word, _, spelling = entry.partition("  " if "  " in entry else " ")
        if PHONEMES.search(spelling):
            raise InvalidRequest(
                "custom_dictionary",
                f"of {word[:64]!r} has phonemes, which F5 cannot use; spell it as it sounds",
            )
        words[word.strip()] = spelling.strip()
    return words


def _file_of(zero_shot: Any) -> bytes:
    """Prompt as a file; bare samples get a header."""
    audio: bytes = zero_shot.audio_prompt
    is_bare = zero_shot.encoding == AudioEncoding.LINEAR_PCM and zero_shot.sample_rate_hz > 0
    if is_bare and not audio.startswith(CONTAINERS):
        return wav_header(zero_shot.sample_rate_hz, len(audio) // 2) + audio[: len(audio) // 2 * 2]
    return audio


def _encoder(message: Any) -> Callable[[bytes], bytes]:
    """Encoder of our audio into the encoding that a request asks for."""
    return OpusPackets().push if message.encoding == AudioEncoding.OGGOPUS else bytes


def _reply(message: Any, header: pb.Header, audio: bytes = b"") -> Any:
    return riva.SynthesizeSpeechResponse(
        audio=audio,
        meta={"text": message.text, "processed_text": header.text},
        id=RequestId(value=header.request_id),
    )


def _whole_reply(message: Any, spoken: pb.SynthesizeResponse) -> Any:
    reply = _reply(message, spoken.header, _encoder(message)(spoken.audio))
    _add_words(reply, spoken.words)
    return reply


def _add_words(reply: Any, words: Any) -> None:
    for word in words:
        reply.meta.words.add(
            word=word.word, start_time=round(1e3 * word.start_s), end_time=round(1e3 * word.end_s)
        )
