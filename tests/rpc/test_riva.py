"""Riva's service, called by the stubs of nvidia-riva-client, with a fake engine."""

import asyncio
import io
import struct
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import soundfile
from riva.client.proto import riva_tts_pb2 as riva
from riva.client.proto import riva_tts_pb2_grpc
from riva.client.proto.riva_audio_pb2 import AudioEncoding
from riva.client.proto.riva_common_pb2 import RequestId

from appliance.audio import encode
from appliance.audio.compress import Compressor
from appliance.audio.ogg import OpusPackets
from appliance.config import USUAL_NFE as NFE
from appliance.contract.sampler import Sampler
from appliance.encodings import Encoding
from appliance.errors import VoiceNotFound
from appliance.request import Handling, SpokenText
from appliance.rpc import riva as module
from appliance.rpc.server import riva_services
from appliance.voices.index import VoiceIndex
from appliance.voices.prompts import Prompts
from appliance.voices.records import Place
from tests.harness.engine import samples_of
from tests.harness.patience import PATIENCE_S
from tests.harness.rows import rows
from tests.harness.segments import segment
from tests.rpc.conftest import Box, FakeFront, connection, refusal, refused, speech_wav


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return riva_tts_pb2_grpc.RivaSpeechSynthesisStub(channel)


def asked(text: str = "one. two", **fields: Any) -> Any:
    defaults = {"voice_name": "F5.ann", "language_code": "en-US", "sample_rate_hz": 24_000, "encoding": 1}
    return riva.SynthesizeSpeechRequest(text=text, **{**defaults, **fields})


@pytest.fixture
def read_as(box: Box) -> list[tuple[Handling, dict[str, str], str]]:
    """Handling, words and language of the texts that were read; each text becomes "one"."""
    calls: list[tuple[Handling, dict[str, str], str]] = []

    def speakable(text: str, handling: Handling, words: Any, language: str, *_: Any) -> SpokenText:
        calls.append((handling, dict(words), language))
        return SpokenText("one")

    box.change(front=FakeFront(speakable=speakable))
    return calls


@pytest.fixture
def used(box: Box) -> list[tuple[str, str]]:
    """Voices and styles of the references that the planner looked up."""
    calls: list[tuple[str, str]] = []
    resolve = box.planner.reference
    box.planner.reference = lambda *of: calls.append(of) or resolve(*of)  # type: ignore[func-returns-value]
    return calls


def zero_shot(audio: bytes = b"", **fields: Any) -> dict[str, Any]:
    return {"voice_name": "", "zero_shot_data": {"audio_prompt": audio or speech_wav(1.5), **fields}}


async def streamed(stub: Any, *messages: Any) -> list[Any]:
    return [reply async for reply in stub.SynthesizeOnline(iter(messages))]


async def test_voices_are_listed_by_language(box: Box, stub: Any, tmp_path: Path) -> None:
    box.store.create(Place("bo"), speech_wav(1.0), "Good day.")
    box.store.create(Place("mei"), speech_wav(1.2), "你好，大家好。")
    (tmp_path / "voices" / "ruin").mkdir()
    reply = await stub.GetRivaSynthesisConfig(riva.RivaSynthesisConfigRequest())
    assert [
        (one.parameters["language_code"], one.parameters["voice_name"], one.parameters["subvoices"])
        for one in reply.model_config
    ] == [("en-US", "F5", "ann:0,bo:1"), ("zh-CN", "F5", "mei:0")]
    name = reply.model_config[1].model_name
    only = await stub.GetRivaSynthesisConfig(riva.RivaSynthesisConfigRequest(model_name=name))
    assert [one.model_name for one in only.model_config] == [name]


def expected(*texts: str) -> bytes:
    samples = [samples_of(segment(t, index=i, nfe=NFE, seed=5)) for i, t in enumerate(texts)]
    return encode.pcm16(np.concatenate(samples))


def seeded(box: Box, **changes: Any) -> None:
    box.change(usual=replace(box.speech.usual, seed=5), **changes)


async def test_unary_is_the_engines_samples(box: Box, stub: Any) -> None:
    seeded(box)
    reply = await stub.Synthesize(asked(id=RequestId(value="chat-1")))
    assert reply.audio == expected("one", "two")
    assert (reply.id.value, reply.meta.text, reply.meta.processed_text) == ("chat-1", "one. two", "one. two")


async def test_messages_of_a_stream_sound_in_order(box: Box, stub: Any) -> None:
    seeded(box, front=FakeFront(speakable=lambda text, *_: SpokenText(text.replace("!!!", ""))))
    replies = await streamed(stub, asked("one. two"), asked("!!!"), asked("three", voice_name="ann"))
    assert list(dict.fromkeys(reply.meta.text for reply in replies)) == ["one. two", "!!!", "three"]
    assert b"".join(reply.audio for reply in replies) == expected("one", "two") + expected("three")
    assert len(box.skipped) == 1 and box.observed[-1] == ("SynthesizeOnline", "OK", "")


@pytest.mark.parametrize("server_keys", [{"session_idle_s": 1.0, "max_calls": 1}])
async def test_a_stream_is_counted_and_ends_when_nothing_comes(stub: Any) -> None:
    call = stub.SynthesizeOnline()
    await call.write(asked())
    assert (await call.read()).audio
    # The call writes no message: grpc.aio reports INTERNAL if it writes to a refused call.
    await refused(stub.SynthesizeOnline().read(), code="RESOURCE_EXHAUSTED")

    async def read_on() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    await refused(read_on(), code="DEADLINE_EXCEEDED", exactly="nothing was written for 1 s")


@pytest.mark.parametrize("fails", [False, True])
async def test_texts_of_a_connection_stay_in_order_despite_a_slow_prompt(
    box: Box, stub: Any, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    asked_for, go = threading.Event(), threading.Event()
    prepare = VoiceIndex.unstored

    def slowly(index: VoiceIndex, *prompt: Any) -> Any:
        asked_for.set()
        assert go.wait(PATIENCE_S)
        return prepare(index, *prompt)

    monkeypatch.setattr(VoiceIndex, "unstored", slowly)
    slow = asyncio.ensure_future(streamed(stub, asked("slow", **zero_shot(transcript="Hello there."))))
    await box.soon(asked_for.is_set)
    arrived = len(box.arrived)
    quick = asyncio.ensure_future(stub.Synthesize(asked("quick")))
    await box.soon(lambda: len(box.arrived) > arrived)
    async with connection(box) as channel:
        other = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(channel)
        assert (await other.Synthesize(asked("elsewhere"))).audio
    if fails:
        slow.cancel()
        await asyncio.wait([slow])
    go.set()
    assert (await quick).audio
    await asyncio.wait([slow])
    assert box.opened == ["elsewhere", *([] if fails else ["slow"]), "quick"]


async def test_a_client_of_before_2_25_sends_one_message(channel: grpc.aio.Channel) -> None:
    call = channel.unary_stream(
        f"/{module.SERVICE}/SynthesizeOnline",
        request_serializer=riva.SynthesizeSpeechRequest.SerializeToString,
        response_deserializer=riva.SynthesizeSpeechResponse.FromString,
    )
    assert len([reply async for reply in call(asked())]) > 1


NO_MODEL = "Model is not available on server: Voice"
REFUSALS: list[tuple[dict[str, Any], str]] = [
    *rows(__file__, "riva_refused.jsonl"),
    (zero_shot(b"RIFF nothing"), "zero_shot_data.transcript: is needed"),
    (zero_shot(b"RIFF nothing", transcript="Hello."), "zero_shot_data.audio_prompt: is not audio"),
    ({"id": RequestId(value="a b")}, "id: must be 1 to 64"),
    ({"custom_dictionary": "a  b," * 100_000}, "custom_dictionary"),
]


async def test_errors_are_about_rivas_fields(stub: Any) -> None:
    for fields, error_text in REFUSALS:
        message = asked(**{"text": "one", **fields})
        for call in (stub.Synthesize(message), streamed(stub, message)):
            error, _ = await refusal(call)
            code = "UNIMPLEMENTED" if "none of Riva's" in error_text else "INVALID_ARGUMENT"
            assert (error.code().name, str(error.details())[: len(error_text)]) == (code, error_text)


async def test_a_languages_nearest_voice_speaks(box: Box, stub: Any, used: list[tuple[str, str]]) -> None:
    box.store.create(Place("mei"), speech_wav(1.4), "你好，大家好。")
    await stub.Synthesize(asked(voice_name="", language_code="zh-CN"))
    box.store.create(Place("jo"), speech_wav(1.2), "Guten Tag allerseits.")
    box.change(front=FakeFront(("de", "zh"), lambda text: "zh" if "你" in text else "de"))
    listed = await stub.GetRivaSynthesisConfig(riva.RivaSynthesisConfigRequest())
    assert [one.parameters["language_code"] for one in listed.model_config] == ["de-DE", "zh-CN"]
    for code in ("de-AT", "de", "", "zh-TW"):
        await stub.Synthesize(asked(voice_name="", language_code=code))
    assert [voice for voice, _ in used] == ["mei", "ann", "ann", "ann", "mei"]
    error = f"{NO_MODEL}  for language ja-JP not found. There are voices for de-DE, zh-CN."
    await refused(stub.Synthesize(asked(voice_name="", language_code="ja-JP")), exactly=error)


@pytest.mark.parametrize(("languages", "code", "spoken_language"), [
    (("de",), "de-AT", "de-AT"),
    (("de",), "en-US", ""),  # clients send it if their user chose no language
    (("de", "en"), "en-US", "en-US"),
    ((), "en-US", ""),
    ((), "zh-CN", "zh-CN"),
    ((), "xx-XX", ""),
])  # fmt: skip
async def test_a_language_that_was_chosen_reads_the_numbers(
    box: Box, stub: Any, read_as: list[Any], languages: tuple[str, ...], code: str, spoken_language: str
) -> None:
    box.speech.front.languages = languages  # type: ignore[misc]
    await stub.Synthesize(asked(voice_name="ann", language_code=code))
    assert [language for _, _, language in read_as] == [spoken_language]


async def test_encodings(stub: Any) -> None:
    pcm = np.frombuffer((await stub.Synthesize(asked(encoding=0))).audio, "<i2")
    assert len(pcm)
    for encoding, subtype in ((AudioEncoding.ALAW, "ALAW"), (AudioEncoding.MULAW, "ULAW")):
        coded = b"".join(r.audio for r in await streamed(stub, asked(encoding=encoding, sample_rate_hz=8000)))
        decoded, _ = soundfile.read(
            io.BytesIO(coded), samplerate=8_000, channels=1, format="RAW", subtype=subtype, dtype="int16"
        )
        assert abs(len(decoded) - len(pcm) / 3) < 2
    flac = (await stub.Synthesize(asked(encoding=AudioEncoding.FLAC))).audio
    assert len(soundfile.read(io.BytesIO(flac))[0]) == len(pcm)
    opus = (await stub.Synthesize(asked(encoding=AudioEncoding.OGGOPUS))).audio
    assert 0.0 <= 0.02 * len(packets(opus)) - len(pcm) / 24_000 < 0.06


def packets(framed: bytes) -> list[bytes]:
    """Packets, read as Riva's C++ client reads them."""
    parts = []
    while framed:
        (length,) = struct.unpack_from("<i", framed)
        parts.append(framed[4 : 4 + length])
        framed = framed[4 + length :]
    return parts


def test_opus_packets_do_not_depend_on_how_the_pages_are_cut() -> None:
    samples = (8_000 * np.sin(np.arange(48_000) / 9)).astype(np.int16)
    pages = Compressor(Encoding.OGG_OPUS, 24_000).whole(samples)
    whole = OpusPackets().push(pages)
    parser = OpusPackets()
    assert b"".join(parser.push(pages[i : i + 1]) for i in range(len(pages))) == whole
    assert all(len(packet) < 1_276 for packet in packets(whole))


async def test_quality_is_the_nearest_number_of_steps_that_the_bundle_takes(box: Box, stub: Any) -> None:
    async def check(**steps: int) -> None:
        for quality, nfe in steps.items():
            call = stub.Synthesize(asked(**zero_shot(transcript="Hello there.", quality=int(quality[1:]))))
            await call
            assert dict(await call.trailing_metadata())["x-nfe"] == str(nfe)

    await check(q0=NFE, q20=NFE, q40=2 * NFE, q1=1, q1000=32)
    few = Sampler(guidance="none", steps=(2, 4, 8))
    box.set_sampler(few, guidance=0.0)
    await check(q20=8, q40=8, q10=4, q1=2)


@pytest.mark.parametrize("how", ["transcript", "configuration", "earlier", "stored", "named"])
async def test_the_words_of_a_prompt(box: Box, stub: Any, how: str) -> None:
    prompt = speech_wav(1.7)
    fields: dict[str, Any] = zero_shot(prompt)
    if how == "transcript":
        fields = zero_shot(prompt, transcript="Good day.")
    elif how == "configuration":
        fields["custom_configuration"] = {"transcript": "Good day."}
    elif how == "earlier":
        await stub.Synthesize(asked(**zero_shot(prompt, transcript="Good day.")))
    elif how == "stored":
        box.store.create(Place("bo"), prompt, "Good day.")
    else:
        fields["voice_name"] = "F5.ann"
    transcripts: list[str] = []
    resolve = box.planner.reference
    box.planner.reference = lambda voice, style: (
        transcripts.append(resolve(voice, style).transcript) or resolve(voice, style)  # type: ignore[func-returns-value]
    )
    assert any(reply.audio for reply in await streamed(stub, asked(**fields)))
    assert transcripts == ["Hello there. " if how == "named" else "Good day. "]
    assert box.store.index.names() == (["ann", "bo"] if how == "stored" else ["ann"])


async def test_bare_samples_of_a_prompt_get_a_header(stub: Any) -> None:
    bare = speech_wav(1.3)[44:]
    fields = zero_shot(bare, transcript="Hi.", encoding=AudioEncoding.LINEAR_PCM, sample_rate_hz=16_000)
    assert (await stub.Synthesize(asked(**fields))).audio


async def test_prompts_are_bounded_and_a_used_one_stays(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.voices.prompts.KEPT", 3)
    prompts = Prompts(box.store.index)
    name, held = await prompts.prepare(speech_wav(0.5), "Hi.")
    names = [(await prompts.prepare(speech_wav(0.3 + number / 100), "Hi."))[0] for number in range(5)]
    assert prompts.reference(name) is held
    assert prompts.reference(names[-1])
    for dropped in names[:2]:
        with pytest.raises(VoiceNotFound):
            prompts.reference(dropped)


async def test_a_dictionary_of_plain_words_and_ssml(stub: Any, read_as: list[Any]) -> None:
    await stub.Synthesize(asked("Ask Xx_Anna", custom_dictionary="Xx_Anna  Anna,GPU gee pee you"))
    await stub.Synthesize(asked(" <speak>one</speak>"))
    words = {"Xx_Anna": "Anna", "GPU": "gee pee you"}
    assert [reading[:2] for reading in read_as] == [(Handling.CHAT, words), (Handling.SSML, {})]


@pytest.mark.parametrize(("text", "configured", "handling"), rows(__file__, "riva_ssml.jsonl"))
async def test_a_text_is_ssml_as_riva_says_or_as_its_sender_says(
    stub: Any, read_as: list[Any], text: str, configured: str, handling: str
) -> None:
    configuration = {"text_handling": configured} if configured else {}
    await stub.Synthesize(asked(text, custom_configuration=configuration))
    assert [read_handling.name for read_handling, _, _ in read_as] == [handling]


async def test_word_times(stub: Any) -> None:
    message = asked("one. two", enable_word_time_offsets=True)
    words = list((await stub.Synthesize(message)).meta.words)
    assert [word.word for word in words] == ["one", "two"]
    assert all(0 <= word.start_time < word.end_time <= 2_000 for word in words)
    last = (await streamed(stub, message))[-1]
    assert [word.word for word in last.meta.words] == ["one", "two"] and not last.audio


async def test_a_cancelled_stream_leaves_the_engine_idle(box: Box, stub: Any) -> None:
    with box.held() as go:
        call = stub.SynthesizeOnline(iter([asked("one. two. three. four")] * 3))
        await box.soon(lambda: box.scheduler.load.running == 1)
        call.cancel()
        go.set()
        await box.soon(lambda: box.scheduler.load.running == 0 and not box.speaking.planning)
    await box.speaking.idle()
    await box.soon(lambda: [one[:2] for one in box.observed] == [("SynthesizeOnline", "CANCELLED")])


async def test_an_unreadable_message_is_invalid(channel: grpc.aio.Channel) -> None:
    await refused(channel.unary_unary(f"/{module.SERVICE}/Synthesize")(b"\xff\xff"))


def test_a_daemon_without_rivas_messages_starts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, box: Box
) -> None:
    monkeypatch.setitem(sys.modules, "riva.client.proto", None)
    monkeypatch.delitem(sys.modules, "appliance.rpc.riva")
    monkeypatch.delattr("appliance.rpc.riva")
    with caplog.at_level("INFO"):
        assert riva_services(box.speaking, box.store.index, Prompts(box.store.index)) == {}
    assert "Riva's clients are not served (extra riva)" in caplog.text


async def test_a_style_is_a_key_of_a_configuration(box: Box, stub: Any, used: list[tuple[str, str]]) -> None:
    box.store.create(Place("ann", "happy"), speech_wav(1.2), "I am glad.")
    await stub.Synthesize(asked("one", custom_configuration={"style": "Happy"}))
    assert used == [("ann", "happy")]
    message = asked("one", custom_configuration={"style": "angry"})
    error = "custom_configuration[\"style\"]: voice 'ann' has no style 'angry'; it has neutral, happy"
    await refused(stub.Synthesize(message), exactly=error)
    message = asked("one", custom_configuration={"style": "happy", "transcript": "Hello."})
    message.zero_shot_data.audio_prompt = speech_wav(1.3)
    await refused(stub.Synthesize(message), "an audio prompt has none")
