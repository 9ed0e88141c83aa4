"""The Voices service over real gRPC: voices, files that are no recording, and uploads during other calls."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from appliance.errors import Cancelled
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from appliance.rpc.voices import UPLOAD_THREADS, UPLOADS_WAITING
from appliance.voices.records import Place, Voice
from tests.harness.patience import PATIENCE_S
from tests.rpc.conftest import Box, refusal, refused, reply_of, request, speech_wav

Stub = appliance_pb2_grpc.VoicesStub


def create(**fields: Any) -> pb.CreateVoiceRequest:
    audio = fields.pop("audio", None) or speech_wav(kind="FLAC")
    return pb.CreateVoiceRequest(**{"name": "bea", "audio": audio, "transcript": "Good day.", **fields})


async def test_a_voice_from_creation_to_deletion(voices: Stub) -> None:
    message = create(consent_note="Bea agreed.")
    bea = await voices.CreateVoice(message)
    assert (bea.name, bea.transcript, bea.consent_note) == ("bea", "Good day.", "Bea agreed.")
    assert (bea.sha256, bea.size_bytes) == (hashlib.sha256(message.audio).hexdigest(), len(message.audio))
    assert bea.duration_s == pytest.approx(2.05, abs=0.01)
    assert any(warning.startswith("only 2.0 s of speech:") for warning in bea.warnings)
    assert await voices.GetVoice(pb.GetVoiceRequest(name="bea")) == bea
    assert await voices.CreateVoice(message) == bea
    listed = await voices.ListVoices(pb.ListVoicesRequest())
    assert [voice.name for voice in listed.voices] == ["ann", "bea"]
    assert listed.next_page_token == ""
    await voices.DeleteVoice(pb.DeleteVoiceRequest(name="bea"))
    await refused(voices.GetVoice(pb.GetVoiceRequest(name="bea")), code="NOT_FOUND")


async def test_pages(voices: Stub) -> None:
    for name in ("c", "b", "d"):
        await voices.CreateVoice(create(name=name))
    first = await voices.ListVoices(pb.ListVoicesRequest(page_size=3))
    assert [voice.name for voice in first.voices] == ["ann", "b", "c"]
    second = await voices.ListVoices(pb.ListVoicesRequest(page_size=3, page_token=first.next_page_token))
    assert [voice.name for voice in second.voices] == ["d"]
    await refused(voices.ListVoices(pb.ListVoicesRequest(page_size=1_001)), field="page_size")


async def test_a_voice_with_other_content_or_consent_is_not_overwritten(voices: Stub) -> None:
    await refused(voices.CreateVoice(create(name="ann")), code="ALREADY_EXISTS", reason="VOICE_EXISTS")
    voice = await voices.CreateVoice(create(consent_note="Bea agreed."))
    other = voices.CreateVoice(create(consent_note="Bea agreed to more."))
    await refused(other, "another consent note", code="ALREADY_EXISTS")
    assert await voices.GetVoice(pb.GetVoiceRequest(name="bea")) == voice


async def test_a_damaged_voice_is_repaired_over_the_wire(voices: Stub, box: Box, tmp_path: Path) -> None:
    record = tmp_path / "voices" / "ann" / "voice.yaml"
    for mend in ("delete", "create"):
        record.write_text("name: ann\nage: 30\n")
        error, details = await refusal(voices.GetVoice(pb.GetVoiceRequest(name="ann")))
        assert (error.code().name, details["ErrorInfo"].reason) == ("FAILED_PRECONDITION", "VOICE_DAMAGED")
        assert str(tmp_path) not in str(error.details())
        [listed] = (await voices.ListVoices(pb.ListVoicesRequest())).voices
        assert (listed.name, listed.state, listed.problem) == ("ann", pb.DAMAGED, error.details())
        if mend == "delete":
            await voices.DeleteVoice(pb.DeleteVoiceRequest(name="ann"))
        voice = await voices.CreateVoice(create(name="ann"))
        assert await voices.GetVoice(pb.GetVoiceRequest(name="ann")) == voice


async def test_fields_of_a_voice_can_be_changed(voices: Stub) -> None:
    voice = await voices.CreateVoice(create(display_name="ベア", pronunciations={"GG": "good game"}))
    assert (voice.display_name, voice.state) == ("ベア", pb.READY)
    assert dict(voice.pronunciations) == {"GG": "good game"}
    changed = await voices.UpdateVoice(pb.UpdateVoiceRequest(name="bea", display_name=""))
    voice.display_name = ""
    assert changed == voice == await voices.GetVoice(pb.GetVoiceRequest(name="bea"))
    changed = await voices.UpdateVoice(pb.UpdateVoiceRequest(name="bea", pronunciations={}))
    voice.pronunciations.clear()
    assert changed == voice
    wrong = pb.UpdateVoiceRequest(name="bea", pronunciations=pb.Pronunciations(words={"x" * 65: "y"}))
    await refused(voices.UpdateVoice(wrong), field="pronunciations")
    await refused(voices.UpdateVoice(pb.UpdateVoiceRequest(name="cea")), code="NOT_FOUND")


BAD = {
    "not audio": (lambda: b"not audio " * 100, "is not audio"),
    "cut off": (lambda: speech_wav()[:20_000], ""),
    "silent": (lambda: speech_wav(level=0.0), "is silent"),
    "13 seconds": (lambda: speech_wav(13.0), "at most 12 s"),
}


async def test_audio_that_cannot_be_a_reference(voices: Stub, box: Box) -> None:
    for make, message in BAD.values():
        audio = make()
        await refused(voices.CreateVoice(create(audio=audio)), message, field="audio")
    assert box.store.index.names() == ["ann"]
    assert (await voices.CreateVoice(create())).name == "bea"


async def test_fields_that_are_refused(voices: Stub) -> None:
    for wrong in ({"name": ""}, {"name": "../bea"}, {"transcript": "  "}, {"consent_note": "x" * 2_001}):
        await refused(voices.CreateVoice(create(**wrong)), field=next(iter(wrong)))


async def test_more_than_the_receive_cap_is_refused_and_the_daemon_goes_on(voices: Stub) -> None:
    await refused(voices.CreateVoice(create(audio=bytes((16 << 20) + 1))), code="RESOURCE_EXHAUSTED")
    details = await refused(voices.CreateVoice(create(audio=bytes((12 << 20) + 1))))
    assert "at most 12582912" in details["BadRequest"].field_violations[0].description
    assert (await voices.CreateVoice(create())).name == "bea"


class Uploads:
    """Uploads that stop at their first checkpoint until `go` is set."""

    def __init__(self, box: Box) -> None:
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.go = threading.Event()
        self._create = box.store.create
        box.store.create = self.create  # type: ignore[method-assign]

    def create(self, place: Place, *content: Any, checkpoint: Callable[[], None], **more: Any) -> Voice:
        self.begun.append(place.name)
        while not self.go.wait(0.005):
            try:
                checkpoint()
            except Cancelled:
                self.stopped.append(place.name)
                raise
        return self._create(place, *content, checkpoint=checkpoint, **more)


@pytest.fixture
def uploads(box: Box) -> Iterator[Uploads]:
    held = Uploads(box)
    yield held
    held.go.set()


@pytest_asyncio.fixture
async def local(box: Box) -> AsyncIterator[Stub]:
    """Stub of another caller."""
    async with grpc.aio.insecure_channel(f"unix:{box.socket}") as channel:
        yield appliance_pb2_grpc.VoicesStub(channel)


async def fill(voices: Stub, local: Stub, uploads: Uploads, box: Box) -> list[asyncio.Future[pb.Voice]]:
    """Begin as many uploads as the daemon takes; most of them wait."""
    calls: list[asyncio.Future[pb.Voice]] = []
    for number in range(UPLOAD_THREADS + UPLOADS_WAITING):
        stub = voices if number % 2 else local
        calls.append(asyncio.ensure_future(reply_of(stub.CreateVoice(create(name=f"v{number}")))))
        # Await each arrival: calls of one connection may otherwise arrive in another order.
        await box.soon(lambda: box.arrived.count("CreateVoice") == len(calls))
    await box.soon(lambda: len(uploads.begun) == UPLOAD_THREADS)
    return calls


async def test_speech_and_lists_do_not_wait_for_uploads(
    voices: Stub, local: Stub, synthesizer: Any, box: Box, uploads: Uploads
) -> None:
    calls = await fill(voices, local, uploads, box)
    assert (await synthesizer.Synthesize(request(), timeout=PATIENCE_S)).audio
    assert len((await voices.ListVoices(pb.ListVoicesRequest(), timeout=PATIENCE_S)).voices) == 1
    assert (await voices.GetVoice(pb.GetVoiceRequest(name="ann"), timeout=PATIENCE_S)).name == "ann"
    await voices.DeleteVoice(pb.DeleteVoiceRequest(name="ann"), timeout=PATIENCE_S)
    uploads.go.set()
    stored = await asyncio.gather(*calls)
    assert sorted(voice.name for voice in stored) == box.store.index.names()


async def test_only_a_few_uploads_may_wait(voices: Stub, local: Stub, box: Box, uploads: Uploads) -> None:
    calls = await fill(voices, local, uploads, box)
    details = await refused(voices.CreateVoice(create()), code="RESOURCE_EXHAUSTED", reason="UPLOADS_FULL")
    assert details["RetryInfo"].retry_delay.ToSeconds() == 1
    uploads.go.set()
    await asyncio.gather(*calls)
    assert (await voices.CreateVoice(create())).name == "bea"


async def test_cancelled_uploads_end_early(voices: Stub, local: Stub, box: Box, uploads: Uploads) -> None:
    calls = await fill(voices, local, uploads, box)
    begun, (first, remaining, *waiting) = uploads.begun[0], calls
    for call in waiting:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    # The places of the uploads are free at once.
    more = asyncio.ensure_future(reply_of(voices.CreateVoice(create())))
    await box.soon(lambda: box.arrived.count("CreateVoice") == len(calls) + 1)
    first.cancel()
    await box.soon(lambda: uploads.stopped == [begun])
    uploads.go.set()
    names = {(await remaining).name, (await more).name}
    assert set(uploads.begun) == {begun, *names}
    assert box.store.index.names() == sorted({"ann", *names})


async def test_a_style_from_creation_to_deletion(voices: Stub, box: Box) -> None:
    voice = await voices.CreateVoice(create(consent_note="Bea agreed."))
    message = pb.CreateStyleRequest(
        voice="bea", style="happy", audio=speech_wav(1.5), transcript="I am glad.", consent_note="Again."
    )
    checked = pb.CreateStyleRequest()
    checked.CopyFrom(message)
    checked.validate_only = True
    (style,) = (await voices.CreateStyle(checked)).styles
    assert style.name == "happy" and await voices.GetVoice(pb.GetVoiceRequest(name="bea")) == voice
    whole = await voices.CreateStyle(message)
    assert [(one.name, one.transcript, one.consent_note, one.state) for one in whole.styles] == [
        ("happy", "I am glad.", "Again.", pb.READY)
    ]
    assert whole.sha256 == voice.sha256 != whole.styles[0].sha256
    assert await voices.CreateStyle(message) == await voices.GetVoice(pb.GetVoiceRequest(name="bea")) == whole
    assert list((await voices.ListVoices(pb.ListVoicesRequest())).voices)[-1] == whole
    assert (await voices.UpdateVoice(pb.UpdateVoiceRequest(name="bea"))).styles == whole.styles
    for changes, code, field in (
        ({"transcript": "I am sad."}, "ALREADY_EXISTS", ""),
        ({"voice": "cea"}, "NOT_FOUND", ""),
        ({"style": "neutral"}, "INVALID_ARGUMENT", "style"),
        ({"style": "../x"}, "INVALID_ARGUMENT", "style"),
        ({"style": "sad", "audio": b"RIFF"}, "INVALID_ARGUMENT", "audio"),
    ):
        wrong = pb.CreateStyleRequest()
        wrong.CopyFrom(message)
        wrong.MergeFrom(pb.CreateStyleRequest(**changes))
        await refused(voices.CreateStyle(wrong), code=code, field=field)

    for style in ("happy", "HAPPY", "neutral"):
        assert (await box.say("Hi.", voice="bea", style=style)).audio
    error = "voice 'bea' has no style 'angry'; it has neutral, happy"
    await refused(box.say("Hi.", voice="bea", style="angry"), error, field="style")
    await refused(box.say("Hi.", voice="cea", style="happy"), code="NOT_FOUND")

    await voices.DeleteStyle(pb.DeleteStyleRequest(voice="bea", style="happy"))
    await refused(voices.DeleteStyle(pb.DeleteStyleRequest(voice="bea", style="happy")), code="NOT_FOUND")
    assert await voices.GetVoice(pb.GetVoiceRequest(name="bea")) == voice
