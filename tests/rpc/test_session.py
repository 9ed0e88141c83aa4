"""Sessions, which speak a text while its caller still writes it, over real gRPC with a fake engine."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest

from appliance.config import LanguageRow
from appliance.contract.tokens import Vocabulary
from appliance.request import RequestCounts
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import turns
from appliance.rpc.callers import PlacedCall
from appliance.rpc.replies import utterance_message
from appliance.rpc.session import MAX_WAITING
from appliance.text.pieces.arriving import TextSplitter
from appliance.text.pieces.split import Budgets
from appliance.text.polyglot import LanguageTable
from appliance.text.sayable import FrontEnd
from appliance.voices.records import Place
from tests.harness.engine import samples_of
from tests.harness.patience import PATIENCE_S, scaled
from tests.harness.segments import segment
from tests.rpc.conftest import Box, refused, request, sentences, speech_wav, start
from tests.rpc.test_synthesizer import Stub


def configure(**fields: Any) -> pb.SessionRequest:
    return pb.SessionRequest(configure=request("", **{"nfe_steps": 2, "seed": 7, **fields}))


def text(piece: str) -> pb.SessionRequest:
    return pb.SessionRequest(text=piece)


def cancel(number: int) -> pb.SessionRequest:
    return pb.SessionRequest(cancel=pb.CancelUtterance(utterance=number))


FLUSH = pb.SessionRequest(flush=pb.Flush())


class SessionClient:
    """Messages of a session, by utterance."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.texts: dict[int, list[str]] = {}
        self.audio: dict[int, bytes] = {}
        self.ends: dict[int, str] = {}
        self.heard: dict[int, int] = {}
        self.skipped: dict[int, str] = {}
        self.order: list[tuple[int, str]] = []
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            number, kind = message.utterance, message.WhichOneof("message")
            self.order.append((number, kind))
            if kind == "header":
                self.texts.setdefault(number, []).append(message.header.text)
                if message.header.skipped_reason:
                    self.skipped[number] = message.header.skipped_reason
            elif kind == "audio":
                audio = self.audio.get(number, b"")
                assert message.audio.sample_offset == len(audio) // 2
                self.audio[number] = audio + message.audio.data
            elif kind == "end":
                assert message.end.samples == len(self.audio.get(number, b"")) // 2
                self.ends[number], self.heard[number] = "END", message.end.heard_characters
            else:
                self.ends[number], self.heard[number] = message.error.reason, message.error.heard_characters

    async def until(self, box: Box, number: int, end: str) -> None:
        await box.soon(lambda: self.ends.get(number) == end)

    async def write(self, *messages: str | pb.SessionRequest) -> None:
        for message in messages:
            await self.call.write(text(message) if isinstance(message, str) else message)

    async def end(self, *messages: str | pb.SessionRequest) -> None:
        """Write the messages, end the input, and read to the end."""
        await self.write(*messages)
        await self.call.done_writing()
        await asyncio.wait_for(self.task, PATIENCE_S)


async def session(box: Box, **fields: Any) -> SessionClient:
    client = SessionClient(box.synthesizer.Session())
    await client.write(configure(**fields))
    return client


def read_english(box: Box, **changes: Any) -> None:
    """Read texts with the front end of an English bundle."""
    front = FrontEnd(Vocabulary(tuple(map(chr, range(32, 127)))), languages=("en",))
    box.change(front=front, **changes)


def spoken(*clauses: str) -> bytes:
    """PCM16 of the fake engine's sound for each clause."""
    return b"".join(
        np.rint(np.clip(samples_of(segment(clause, nfe=2, seed=7)), -1, 1) * 32767).astype("<i2").tobytes()
        for clause in clauses
    )


async def test_an_end_may_wait_until_all_sent_is_played(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, float]] = []
    send = PlacedCall.send

    async def noted(call: PlacedCall, message: Any, played: float = -math.inf) -> None:
        sent.append((message, played))
        await send(call, message, played)

    monkeypatch.setattr(PlacedCall, "send", noted)
    client = await session(box)
    begun = time.monotonic()
    await client.end("One. Two. ", FLUSH)
    [(message, played)] = sent
    assert begun < played - message.end.timings.audio_ms / 1e3 < time.monotonic()


async def test_clauses_sound_before_the_rest_is_written(box: Box) -> None:
    client = await session(box, request_id="chat")
    await client.write("Thanks for the raid, e")
    await box.soon(lambda: client.texts.get(1) == ["Thanks for the raid,"])
    await client.write("veryone! ")
    assert client.ends == {}
    await client.write(FLUSH)
    await client.until(box, 1, "END")
    await client.end("And now, news")
    assert client.texts == {1: ["Thanks for the raid,", "everyone!"], 2: ["And now, news"]}
    assert client.audio == {1: spoken("Thanks for the raid,", "everyone!"), 2: spoken("And now, news")}
    assert client.ends == {1: "END", 2: "END"}
    present, ended, _ = box.scheduler.queue.utterances()
    assert [u.job.terms.request_id for u in ended + present] == ["chat.1", "chat.1-2", "chat.2"]
    assert {u.job.terms.channel for u in ended + present} == {"chat"}


async def test_a_cancelled_utterance_leaves_the_next_untouched(box: Box) -> None:
    client = await session(box)
    with box.held():
        await client.write("One two three four. Five six seven eight. ", "Never said")
        await box.soon(lambda: box.scheduler.load.running == 1)
        await client.write(cancel(1), "The next one.", FLUSH)
        await client.until(box, 1, "CANCELLED")
    await client.until(box, 2, "END")
    await client.end(cancel(1))  # this utterance has ended
    assert client.audio == {2: spoken("The next one.")}
    assert not any("Never" in name for name in box.engine.calls)


async def test_an_utterance_that_is_refused_does_not_end_the_session(box: Box) -> None:
    client = await session(box)
    await client.write("x" * 501, FLUSH)
    await client.until(box, 1, "INVALID_REQUEST")
    await client.write("\u200b ", FLUSH)
    await client.until(box, 2, "END")
    await client.end("Good.")
    assert client.audio == {3: spoken("Good.")}


async def test_text_without_words_is_spoken_as_in_a_request_or_reported_as_skipped(box: Box) -> None:
    read_english(box)
    client = await session(box)
    await client.end("🙂", FLUSH, "... !", FLUSH, "Well.")
    kinds = {number: [kind for n, kind in client.order if n == number] for number in (1, 2, 3)}
    assert client.texts == {1: ["slightly smiling face"], 2: [""], 3: ["Well."]}
    assert kinds[2] == ["header", "end"] and client.skipped == {2: "nothing in it can be spoken"}
    assert set(client.audio) == {1, 3} and len(box.skipped) == 1


async def test_two_sessions_do_not_wait_for_one_another(box: Box) -> None:
    both = [await session(box) for _ in range(2)]
    await both[1].end("Said at once.")
    await both[0].end("Said later.")
    assert [client.audio for client in both] == [{1: spoken("Said later.")}, {1: spoken("Said at once.")}]


async def test_a_short_line_waits_for_one_cut_of_a_long_message_of_its_caller(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 0)  # makes the planner's thread cut
    cuts, plain = list[TextSplitter](), TextSplitter.cut

    def cut(splitter: TextSplitter) -> str | None:
        cuts.append(splitter)
        assert begin_cuts.wait(PATIENCE_S)
        return plain(splitter)

    monkeypatch.setattr(TextSplitter, "cut", cut)
    begin_cuts, client = Event(), await session(box)
    with box.planning("Hello") as (reached, go):
        await client.write(sentences(90) + " ")
        await box.soon(lambda: bool(cuts))
        short = start(box.say("Hello"))
        await box.soon(lambda: box.speaking.planning == 1)
        begin_cuts.set()
        await box.soon(reached.is_set)
        assert len(cuts) == 1
        go.set()
        assert (await short).audio
    await client.end()
    assert len(cuts) > 10


async def test_a_client_that_leaves_a_session_leaves_nothing_behind(box: Box) -> None:
    with box.held():
        call = box.synthesizer.Session()
        await call.write(configure())
        await call.write(text("One two three four. Five six seven eight. "))
        await box.soon(lambda: box.scheduler.load.running == 1)
        call.cancel()
        await asyncio.wait_for(box.speaking.idle(), PATIENCE_S)
    await box.soon(lambda: box.scheduler.load == RequestCounts())
    assert (await start(box.say())).audio
    assert {code for _, code, _ in box.observed} == {"CANCELLED", "OK"}


REFUSED = [
    ([text("Hello")], "configure: must be in the first message, and in no other"),
    ([FLUSH], "configure: must be in the first message, and in no other"),
    ([configure(), configure()], "configure: must be in the first message, and in no other"),
    ([pb.SessionRequest(configure=request("Hi"))], "configure.text: must be empty"),
    ([configure(supersede_key="a")], "configure.supersede_key: has no meaning in a session"),
    ([configure(playout="OVERLAP")], "configure.playout: must be SERIAL"),
    ([configure(request_id="x" * 49)], "configure.request_id: has at most 48 characters"),
    ([configure(nfe_steps=65)], "nfe_steps: "),
    ([configure(style="angry")], "style: voice 'ann' has no style 'angry'; it has neutral"),
    ([configure(), cancel(1)], "cancel.utterance: must be 1 to 0, not 1"),
]


async def test_refusals_of_a_session(synthesizer: Stub) -> None:
    async def all_of(*messages: pb.SessionRequest) -> None:
        async for _ in synthesizer.Session(iter(messages)):
            pass

    for messages, error in REFUSED:
        await refused(all_of(*messages), error)
    await refused(all_of(configure(audio_config={"encoding": "WAV"})), code="UNIMPLEMENTED")
    await refused(all_of(pb.SessionRequest(configure={"voice": "nobody"})), code="NOT_FOUND")


async def test_words_are_timed_within_their_utterance(synthesizer: Stub, box: Box) -> None:
    async def said() -> AsyncIterator[pb.SessionRequest]:
        for message in (configure(word_timings=True), text("One two, three. Four. "), FLUSH):
            yield message

    headers, ends = [], []
    async for message in synthesizer.Session(said()):
        if message.HasField("header"):
            headers += list(message.header.words)
        elif message.HasField("end"):
            ends.append(message.end)
    [end] = ends
    for words in (headers, list(end.words)):
        assert " ".join(word.word for word in words) == "One two, three. Four."
        times = [time for word in words for time in (word.start_s, word.end_s)]
        assert times == sorted(times) and times[-1] <= end.samples / 24_000 + 1e-9
        assert [word.segment for word in words] == sorted(word.segment for word in words)
        assert words[-1].segment == end.timings.segments - 1
    assert end.timings.nfe_steps == 2


async def test_a_silent_session_ends_not_while_it_speaks(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box.speaking, "session_idle_s", scaled(0.2))
    client = await session(box)
    with box.held():
        await client.write("One two three four. Five", FLUSH)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(client.task), scaled(0.5))
    await client.until(box, 1, "END")
    with pytest.raises(grpc.aio.AioRpcError, match=r"nothing was written for \d"):
        await asyncio.wait_for(client.task, PATIENCE_S)
    assert client.audio[1]
    assert {code for _, code, _ in box.observed} == {"DEADLINE_EXCEEDED"}


@pytest.mark.parametrize("server_keys", [{"max_calls": 1}, {"max_calls_of_peer": 1}])
async def test_sessions_are_counted(synthesizer: Stub, box: Box) -> None:
    call = synthesizer.Session()
    await call.write(configure())
    await call.initial_metadata()
    await refused(synthesizer.Session().read(), code="RESOURCE_EXHAUSTED", reason="TOO_MANY_CALLS")
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_session_that_stays_open_speaks_more_than_may_wait(box: Box) -> None:
    """Utterances come singly, each after the end of the previous one; then all at once."""
    client = await session(box, nfe_steps=1)
    many = MAX_WAITING + 6
    for number in range(1, many + 1):
        await client.write("Hi.", FLUSH)
        await client.until(box, number, "END")
    await client.write(*many * ("Hi.", FLUSH))
    await client.until(box, 2 * many, "END")
    await client.end()
    assert len(client.ends) == 2 * many


@pytest.mark.parametrize("style", ["", "sad"])
async def test_a_tag_holds_for_the_clauses_after_it(box: Box, style: str) -> None:
    for number, name in enumerate(("happy", "sad")):
        box.store.create(Place("ann", name), speech_wav(1.2 + number), "Hello there.")
    read_english(box)
    requests, client = box.record(), await session(box, style=style)
    await client.write(
        "Hello to all of you. [hap", "py] Thank you for the follow. It is nice of you", ". [neutral] "
    )
    await client.write("Now to the game we play. ", "[laugh] And on it goes.", " [SAD] ", FLUSH)
    await client.end("Another one begins anew. ")
    assert client.ends == {1: "END", 2: "END"}
    assert [(run.speaker[1], run.text.strip()) for inputs in requests for run in inputs.runs] == [
        (style, "Hello to all of you."),
        ("happy", "Thank you for the follow."),
        ("happy", "It is nice of you."),
        ("", "Now to the game we play."),
        ("", "And on it goes."),
        (style, "Another one begins anew."),
    ]


async def test_a_voice_that_is_removed_is_followed_by_the_session_s_own(box: Box) -> None:
    for place in (Place("bob"), Place("bob", "calm")):
        box.store.create(place, speech_wav(1.2), "Hello there.")
    read_english(box)
    requests, client = box.record(), await session(box, voice_tags=True)
    await client.write("Hello to all of you. [voice:bob] [calm] Thank you for the follow. It is so kind. ")
    await box.soon(lambda: len(client.texts.get(1, ())) == 3)
    box.store.delete(Place("bob"))
    await client.end("It is nice of you. ")
    assert client.ends == {1: "END"} and client.texts[1][3:] == ["It is nice of you."]
    speakers = [run.speaker for inputs in requests for run in inputs.runs]
    assert speakers == [("ann", ""), ("bob", "calm"), ("bob", "calm"), ("ann", "")]
    present, ended, _ = box.scheduler.queue.utterances()
    voices = [list(utterance_message(one, 0.0).voices) for one in (*ended, *present)]
    assert voices == [["ann"], ["bob"], ["bob"], ["ann"]]


async def test_the_first_clause_and_not_the_opening_decides_the_language(box: Box) -> None:
    box.store.create(Place("bob"), speech_wav(1.2), "Hello there.")
    box.change(table=LanguageTable({"en": LanguageRow("ann"), "ru": LanguageRow("bob")}))
    sizes = {"ann": Budgets(40, 60, 80), "bob": Budgets(10, 40, 80)}
    box.planner.budgets = lambda request: sizes[request.voice]  # type: ignore[method-assign]
    fields = {"voice": "", "channel": "chat"}
    assert (await box.say("Привет, как дела", **fields)).header.voice == "bob"
    client, silent = await session(box, **fields), await session(box, language_code="en", **fields)
    for opened in (client, silent):
        await opened.call.initial_metadata()
    assert (await box.say("666", **fields)).header.voice == "bob"
    await client.end("Hello to all of you. It is nice of you. Thank you all for the follow. ")
    assert client.texts[1] == ["Hello to all of you.", "It is nice of you. Thank you all for the follow."]
    assert (await box.say("666", **fields)).header.voice == "ann"


async def test_a_clause_without_speech_ends_no_utterance_early(box: Box) -> None:
    read_english(box)
    client = await session(box)
    with box.held() as go:
        await client.write("Hello to all of you. ", "[laugh]", FLUSH)
        await client.call.done_writing()
        # Both clauses were read while the engine still makes the first one.
        await box.soon(lambda: bool(box.engine.calls))
        await box.say("!!!")
        go.set()
        await asyncio.wait_for(client.task, PATIENCE_S)
    assert client.order[-1] == (1, "end") and client.ends == {1: "END"}
    assert client.audio[1] == spoken("Hello to all of you.")
