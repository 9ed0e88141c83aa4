"""The Voices service over real gRPC: what a bot may send, and what it is told when that cannot be a voice."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import grpc
import pytest

from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from tests.rpc.conftest import Box, speech_wav
from tests.rpc.test_synthesizer import refusal

Stub = appliance_pb2_grpc.VoicesStub


def create(**fields: Any) -> pb.CreateVoiceRequest:
    audio = fields.pop("audio", None) or speech_wav(kind="FLAC")
    return pb.CreateVoiceRequest(**{"name": "bea", "audio": audio, "transcript": "Good day.", **fields})


async def test_a_voice_from_creation_to_deletion(voices: Stub) -> None:
    asked = create(consent_note="Bea agreed.")
    made = await voices.CreateVoice(asked)
    assert (made.name, made.transcript, made.consent_note) == ("bea", "Good day.", "Bea agreed.")
    assert (made.sha256, made.size_bytes) == (hashlib.sha256(asked.audio).hexdigest(), len(asked.audio))
    assert made.duration_s == pytest.approx(2.05, abs=0.01)
    assert [warning.split(":")[0] for warning in made.warnings] == ["only 2.0 s of speech"]
    assert await voices.GetVoice(pb.GetVoiceRequest(name="bea")) == made
    assert await voices.CreateVoice(asked) == made
    listed = await voices.ListVoices(pb.ListVoicesRequest())
    assert [voice.name for voice in listed.voices] == ["ann", "bea"]
    assert listed.next_page_token == ""
    await voices.DeleteVoice(pb.DeleteVoiceRequest(name="bea"))
    error, _ = await refusal(voices.GetVoice(pb.GetVoiceRequest(name="bea")))
    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_pages(voices: Stub) -> None:
    for name in ("c", "b", "d"):
        await voices.CreateVoice(create(name=name))
    first = await voices.ListVoices(pb.ListVoicesRequest(page_size=3))
    assert [voice.name for voice in first.voices] == ["ann", "b", "c"]
    second = await voices.ListVoices(pb.ListVoicesRequest(page_size=3, page_token=first.next_page_token))
    assert [voice.name for voice in second.voices] == ["d"]
    error, details = await refusal(voices.ListVoices(pb.ListVoicesRequest(page_size=1_001)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == "page_size"


async def test_validate_only_stores_nothing(voices: Stub, box: Box) -> None:
    made = await voices.CreateVoice(create(validate_only=True))
    assert made.duration_s == pytest.approx(2.05, abs=0.01)
    assert box.store.names() == ["ann"]


async def test_a_voice_with_other_content_is_not_overwritten(voices: Stub) -> None:
    error, details = await refusal(voices.CreateVoice(create(name="ann")))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert details["ErrorInfo"].reason == "VOICE_EXISTS"


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
async def test_every_kind_of_file(voices: Stub, kind: str) -> None:
    made = await voices.CreateVoice(create(audio=speech_wav(kind=kind, rate_hz=44_100)))
    assert made.duration_s == pytest.approx(2.05, abs=0.08)


BAD = {
    "no audio": (lambda: b"not audio " * 100, "is not audio"),
    "truncated wav": (lambda: speech_wav()[:20_000], ""),
    "truncated flac": (lambda: speech_wav(kind="FLAC", level=0.3)[:3_000], ""),
    "a wav's header alone": (lambda: speech_wav()[:44], ""),
    "silent": (lambda: speech_wav(level=0.0), "is silent"),
    "nearly silent": (lambda: speech_wav(level=1e-3), "is silent"),
    "13 seconds": (lambda: speech_wav(13.0), "at most 12 s"),
    "40 minutes": (lambda: speech_wav(2_400.0, kind="FLAC", rate_hz=8_000), "lasts 2400 s"),
}


@pytest.mark.parametrize("what", BAD)
async def test_audio_that_cannot_be_a_reference(voices: Stub, box: Box, what: str) -> None:
    make, message = BAD[what]
    audio = make()
    begun = time.monotonic()
    error, details = await refusal(voices.CreateVoice(create(audio=audio)))
    assert time.monotonic() - begun < 2.0
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == "audio"
    assert message in str(error.details())
    assert box.store.names() == ["ann"]
    assert (await voices.CreateVoice(create())).name == "bea"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "../bea"}, "name"),
        ({"transcript": "  "}, "transcript"),
        ({"consent_note": "x" * 2_001}, "consent_note"),
    ],
)
async def test_fields_that_are_refused(voices: Stub, fields: dict[str, str], field: str) -> None:
    error, details = await refusal(voices.CreateVoice(create(**fields)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == field


async def test_more_than_the_receive_cap_is_refused_and_the_daemon_goes_on(voices: Stub) -> None:
    error, _ = await refusal(voices.CreateVoice(create(audio=bytes((16 << 20) + 1))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error, details = await refusal(voices.CreateVoice(create(audio=bytes((12 << 20) + 1))))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 12582912" in details["BadRequest"].field_violations[0].description
    assert (await voices.CreateVoice(create())).name == "bea"
