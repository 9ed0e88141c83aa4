"""Options of a request's text, over real gRPC with a fake engine and the demo bundle's vocabulary."""

import io
from dataclasses import replace

import pytest
import soundfile

from appliance.config import LanguageRow
from appliance.contract import bundle
from appliance.contract.tokens import Vocabulary
from appliance.request import Direction
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.requests import wish_of
from appliance.text.polyglot import LanguageTable
from appliance.text.sayable import FrontEnd
from appliance.voices.records import Place
from tests.harness.daemons import ROOT
from tests.harness.engine import FakeEngine
from tests.rpc.conftest import Box, refused, request, speech_wav
from tests.rpc.test_session import configure, session
from tests.rpc.test_synthesizer import Stub

NOTHING = "nothing in it can be spoken"


@pytest.fixture(autouse=True)
def front(box: Box) -> None:
    vocabulary = bundle.read(ROOT / "appliance/demo/bundle").vocabulary()
    box.change(front=FrontEnd(vocabulary, languages=("en",)))


def changes(header: pb.Header) -> list[tuple[str, str, str]]:
    return [(c.kind, c.before, c.after) for c in header.changes]


async def test_the_header_has_the_spoken_text_and_its_changes(box: Box) -> None:
    reply = await box.say("see www.example.com 主播 50%")
    assert reply.header.text == "see link fifty percent"
    link, percent = ("link", "www.example.com", "link"), ("percent", "50%", "fifty percent")
    assert changes(reply.header) == [link, percent, ("unsayable", "主播", "")]
    assert "open see link fifty percent" in box.engine.calls
    [utterance] = box.scheduler.queue.utterances()[1]
    assert [change.before for change in utterance.job.request.changes] == ["www.example.com", "50%", "主播"]
    reply = await box.say("GG LETS GO!!!", text_handling="VERBATIM")
    assert (reply.header.text, changes(reply.header)) == ("GG LETS GO!!!", [])


async def test_nothing_to_say_is_no_error_and_costs_nothing(synthesizer: Stub, box: Box) -> None:
    for encoding in ("WAV", "PCM16", "FLAC", "MP3", "OGG_OPUS", "MULAW", "ALAW"):
        message = request("主播", audio_config={"encoding": encoding})
        reply = await synthesizer.Synthesize(message)
        assert (reply.header.text, reply.header.skipped_reason) == ("", NOTHING)
        assert changes(reply.header) == [("unsayable", "主播", "")]
        if encoding == "WAV":
            assert soundfile.info(io.BytesIO(reply.audio)).frames == 0
        elif encoding in ("PCM16", "MULAW", "ALAW"):
            assert reply.audio == b""
        messages = [m async for m in synthesizer.StreamSynthesize(message)]
        assert [m.WhichOneof("message") for m in messages] == ["header", "end"]
        assert messages[0].header.skipped_reason == NOTHING and messages[1].end.samples == 0
    assert box.engine.calls == [] and len(box.skipped) == 14
    assert {code for _, code, _ in box.observed} == {"OK"}


async def test_an_empty_text_is_an_error_all_the_same(box: Box) -> None:
    for nothing in ("", " \u200b "):
        await refused(box.say(nothing), "is empty")


async def test_a_merged_text_is_rewritten_in_words(box: Box) -> None:
    reply = await box.say("Ann sent a rose", merge_key="r", merge_count=12)
    assert reply.header.text == "Ann sent a rose, twelve times"
    for text, merged in (("玫瑰", "玫瑰，3次"), ("花をどうぞ", "花をどうぞ, 3x")):
        wish = wish_of(request(text), stream=False, client="", caller="", reach="")
        assert wish.speaking_for(3).text == merged


async def test_the_requests_language_precedes_the_bundles(box: Box) -> None:
    vocabulary = Vocabulary((*map(chr, range(32, 127)), *"一二三十百点"))
    front = FrontEnd(replace(vocabulary, tokenizer="char"), languages=("en",))
    box.change(front=front)
    for code, word in (("", "three"), ("en-GB", "three"), ("zh-CN", "三")):
        reply = await box.say("3", language_code=code)
        assert reply.header.text == word, code
    for code, error in (
        ("english", "language_code: must be a tag like"),
        ("de_" + "x" * 99, "language_code: must be a tag like"),
        ("tlh", "language_code: 'tlh' is not known; "),
    ):
        await refused(box.say("3", language_code=code), error, field="language_code")


async def test_a_row_sets_voice_style_and_bundle_if_the_request_does_not(box: Box) -> None:
    for number, place in enumerate((Place("ann", "happy"), Place("ann", "sad"), Place("auto"))):
        box.store.create(place, speech_wav(1.2 + number), "Hello there.")
    box.scheduler.engines.add("/en", own := FakeEngine())
    secondary = {"en": replace(box.speech, bundle="/en", generation=None)}
    box.change(table=LanguageTable({"en": LanguageRow("ann", "happy")}), secondary=secondary)
    requests = box.record()
    for voice, style in (("", ""), ("", "sad"), ("auto", "")):
        await box.say("Hello", voice=voice, style=style)
    assert [(one.voice, one.style) for one in requests] == [("ann", "happy"), ("ann", "sad"), ("auto", "")]
    assert [engine.calls.count("open Hello") for engine in (own, box.engine)] == [2, 1]


async def test_text_of_unknown_language_gets_no_words(box: Box) -> None:
    front = FrontEnd(Vocabulary(tuple(map(chr, range(32, 127)))))
    box.change(front=front)
    reply = await box.say("Danke, 3 Leute", merge_key="r", merge_count=2)
    assert reply.header.text == "Danke, 3 Leute, 2x"


async def test_names_sound_as_the_voice_or_the_request_defines(box: Box) -> None:
    box.store.update("ann", pronunciations={"Xx_Bea": "Bea", "GG": "good game"})
    reply = await box.say("GG @xx_bea", pronunciations={"GG": "well played"})
    assert reply.header.text == "well played Bea"
    assert ("pronunciation", "xx_bea", "Bea") in changes(reply.header)
    await refused(box.say("GG", pronunciations={"GG": ""}), field="pronunciations")
    await refused(box.say("GG", voice="nobody"), code="NOT_FOUND")


async def test_stage_directions_reach_the_planner(box: Box) -> None:
    requests = box.record()
    await box.say("*waves* hi [laugh]")
    [inputs] = requests
    assert (inputs.text, inputs.written) == ("hi", "*waves* hi [laugh]")
    assert inputs.directions == (Direction(0, "waves"), Direction(2, "laugh"))


async def test_ssml_is_read_as_a_whole(box: Box) -> None:
    document = "<speak>Ann sent <say-as interpret-as='ordinal'>2</say-as> 5<break/></speak>"
    message = request(document, text_handling="SSML", merge_key="r", merge_count=12)
    reply = await box.synthesizer.Synthesize(message)
    assert reply.header.text == "Ann sent second five twelve times"
    await refused(box.say("<speak>", text_handling="SSML"), "not well-formed", field="text")
    reply = await box.say("<speak><break/></speak>", text_handling="SSML")
    assert (reply.header.text, reply.header.skipped_reason) == ("", NOTHING)
    call = box.synthesizer.Session()
    await call.write(configure(text_handling="SSML"))
    await refused(call.read(), "configure.text_handling: must be CHAT or VERBATIM")


async def test_a_session_drops_unspeakable_text(synthesizer: Stub, box: Box) -> None:
    client = await session(box)
    await client.end("主播好主播好主播好。", " It costs 5$.")
    assert client.texts == {1: ["It costs five dollars."]} and client.ends == {1: "END"}
