"""What a moderator has decided holds in the next process too, whoever sends the line again."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.client import CallFailed, Piece
from appliance.client.retries import Attempts
from appliance.errors import ApplianceError, Cancelled, Cleared, Rejected, Skipped, StorageError, Unavailable
from appliance.request import SegmentAudio
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.status import reason_of, rule_for
from appliance.scheduler.job import Result, State, Utterance
from appliance.scheduler.workload import DECISIONS, HISTORY, Kept
from appliance.serve.held import NAME, RESENT_S, HeldFile
from tests.harness.engine import EVEN, FakeEngine, raising
from tests.harness.scheduler import Bench
from tests.harness.segments import pieces
from tests.scheduler.test_queue import SERIAL, made, say, seen

LINE, CHANNEL, TROLL = "line", "stage", "troll"
ENDINGS: dict[str, tuple[type[ApplianceError], tuple[str, ...]]] = {
    "reject": (Rejected, ("held", "paused", "waiting", "sounding")),
    "ban": (Cancelled, ("held", "paused", "waiting", "sounding")),
    "clear": (Cleared, ("held", "paused", "waiting")),
    "skip": (Skipped, ("sounding",)),
}
"""Verb → the error of the line that it ends, and the states in which it does."""
STATES = {
    "held": State.HELD,
    "paused": State.WAITING,
    "waiting": State.WAITING,
    "sounding": State.SOUNDING,
}
DOORS: dict[str, dict[str, float]] = {
    "http": {"retries": 0, "hold_s": 60.0},
    "elevenlabs": {"retries": 0, "hold_s": 60.0},
    "grpc, 0 retries": {"retries": 0},
    "grpc, 5 retries": {"retries": 5},
    "session": {},
}
"""Door → arguments of the client's attempts; a session has one attempt."""


class Life:
    """A daemon's process: its scheduler, and the file that it shares with the process before."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.folder, self.bench = folder, Bench(**config)
        self.queue = self.bench.scheduler.queue
        self.file = HeldFile(folder, self.queue)
        self.played = 0
        """Halves that callers have heard who are gone."""

    def do(self, verb: str) -> None:
        """A moderator's verb on the line or its channel, stored as the service stores it."""
        chosen: dict[str, Callable[[Utterance], bool]] = {
            "reject": lambda u: u.job.terms.request_id == LINE,
            "ban": lambda u: u.job.terms.user == TROLL,
            "clear": lambda u: u.state in (State.WAITING, State.HELD),
            "skip": lambda u: u.state is State.SOUNDING,
        }
        if verb in chosen:
            self.queue.end(chosen[verb], ENDINGS[verb][0](verb))
        elif verb == "approve":
            self.queue.approve(lambda u: u.job.terms.request_id == LINE)
        elif verb == "moderate":
            self.queue.moderate(CHANNEL, True)
        else:
            getattr(self.queue, verb)(CHANNEL)
        self.file.save()

    def say(self, door: str) -> None:
        say(self.bench, LINE, CHANNEL, 2, user=TROLL, stream=door != "elevenlabs")

    def put(self, state: str, door: str) -> None:
        """Have the line in a state; of one that sounds the first half is heard."""
        if state == "waiting":
            say(self.bench, "before", CHANNEL, 9)
            self.bench.until("before")
        self.do({"held": "moderate", "paused": "pause"}.get(state, "resume"))
        self.say(door)
        if state == "sounding":
            self.bench.until(LINE)
        assert seen(self.bench)[LINE] is STATES[state]
        self.file.save()

    @property
    def results(self) -> list[Result]:
        return self.bench.results.get(LINE, [])

    @property
    def heard(self) -> int:
        """Halves of the line."""
        return self.played + sum(isinstance(result, SegmentAudio) for result in self.results)

    def killed(self, door: str) -> Life:
        return self._next(door, CallFailed("UNAVAILABLE", "the connection is lost"))

    def terminated(self, door: str) -> Life:
        self.bench.serve()
        self.file.save()
        [error] = [result for result in self.results if isinstance(result, ApplianceError)] or [Cancelled("")]
        return self._next(door, CallFailed(rule_for(error).code.name, "", reason_of(type(error))))

    def _next(self, door: str, lost: CallFailed) -> Life:
        """The process after this one, to which a client that tries again has sent the line."""
        life = Life(self.folder)
        ended_by = [result for result in self.results if isinstance(result, ApplianceError)]
        if ended_by and not isinstance(ended_by[0], Unavailable):
            # Its client may have missed why.
            with pytest.raises(Rejected):
                life.say(door)
        elif self.heard < 2 and sends_again(door, self.heard, lost):
            life.say(door)
        return life

    def reloaded(self, door: str) -> Life:
        self.bench.scheduler.config = replace(self.bench.scheduler.config, weights={CHANNEL: 2.0})
        return self

    def swapped(self, door: str) -> Life:
        engine = FakeEngine(EVEN)
        engine.on_call = self.bench.tick
        self.bench.scheduler.engines.replace(engine, lambda: None)
        return self

    def without_gateway(self, door: str) -> Life:
        """The calls of a gateway end with it, and its clients ask the next one."""
        job = self.bench.scheduler._workload.jobs.get(LINE)
        if job is not None and door in ("http", "elevenlabs"):
            self.queue.cancel(job)
            self.played = self.heard
            self.say(door)
        return self


def sends_again(door: str, heard: int, lost: CallFailed) -> bool:
    """True if the client's own rule has it try again after this failure."""
    if not DOORS[door]:
        return False
    request = pb.SynthesizeRequest(channel=CHANNEL)
    attempts = Attempts(lambda: None, request, timeout=60.0, address="", **DOORS[door])  # type: ignore[arg-type]
    for event in [pb.Header(), *[Piece(b"", 0, 0, 0)] * heard][: (1 + heard) * (door != "elevenlabs")]:
        attempts.received(event)
    try:
        return attempts.wait_s(lost) >= 0.0
    except CallFailed:
        return False


@pytest.mark.parametrize("how", ["terminated", "killed", "reloaded", "swapped", "without_gateway"])
@pytest.mark.parametrize("verb", ["moderate", "pause", *ENDINGS])
@pytest.mark.parametrize("state", STATES)
def test_nothing_forbidden_is_heard_and_nothing_allowed_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, how: str, state: str
) -> None:
    monkeypatch.setattr("gc.collect", lambda: 0)  # dear, and after each swap
    is_ended = verb in ENDINGS and state in ENDINGS[verb][1]
    is_held = state in ("held", "paused") or verb == "pause"
    for door in DOORS:
        folder = tmp_path / door
        folder.mkdir()
        first = Life(folder)
        first.put(state, door)
        before = first.heard
        first.do(verb)
        last = getattr(first, how)(door)
        last.bench.work()
        lives = dict.fromkeys((first, last))
        if is_ended or is_held:
            assert sum(life.heard for life in lives) == before, "it is heard though a verb forbids it"
        last.do("approve")
        last.do("resume")
        last.bench.work()
        if is_ended:
            assert sum(life.heard for life in lives) == before, "it is heard though a verb has ended it"
        elif last.heard < 2 and first.heard < 2:
            lost = CallFailed("UNAVAILABLE", "")
            assert last is not first and not sends_again(door, before, lost), "it is lost, and nobody is told"


@pytest.mark.parametrize("how", ["terminated", "killed"])
@pytest.mark.parametrize("verb", ["moderate", "pause"])
def test_a_line_comes_back_to_its_old_place(tmp_path: Path, verb: str, how: str) -> None:
    life = Life(tmp_path)
    for _ in range(2):  # the second restart comes before all lines are back
        life.do(verb)
        for name in ("new", "c", "a", LINE):
            if name not in seen(life.bench):
                say(life.bench, name, CHANNEL)
        life.file.save()
        life = getattr(life, how)("session")
        say(life.bench, "c", CHANNEL)
    order = list(seen(life.bench))
    for name in (LINE, "later", "a", "new"):
        say(life.bench, name, CHANNEL)
        order = list(seen(life.bench))
    assert order == ["new", "c", "a", LINE, "later"]


def test_what_was_held_is_held_again_though_its_channel_is_no_more_moderated(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.put("held", "http")
    first.queue.moderate(CHANNEL, False)
    second = first.terminated("http")
    assert second.queue.moderated == [] and seen(second.bench) == {LINE: State.HELD}
    say(second.bench, "new", CHANNEL)
    second.bench.work()
    assert second.heard == 0 and made(second.bench, "new") == 1


def test_an_approval_is_of_one_text_under_one_id(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.put("held", "http")
    first.do("pause")
    first.do("approve")
    for text, is_held in (("", False), ("Something else.", True)):
        second = Life(tmp_path)
        job = second.bench.job(LINE, channel=CHANNEL, playout=SERIAL)
        job.written = text
        second.bench.scheduler.admit(job, [pieces(LINE, 1)])
        assert job.channel.unapproved is is_held and list(second.queue.paused) == [CHANNEL]


def test_unmoderate_holds_until_the_next_start_where_the_configuration_moderates(tmp_path: Path) -> None:
    for _ in range(2):
        life = Life(tmp_path, approval_channels=(CHANNEL,))
        assert life.queue.moderated == [CHANNEL]
        life.queue.moderate(CHANNEL, False)
        life.file.save()
        assert life.queue.moderated == []


@pytest.mark.parametrize(
    "content", ["", "[]", '{"paused": {"stage": "x"}}', '{"order": ["a"]}', "[" * 9_999, None]
)
def test_a_damaged_file_holds_every_named_channel_and_stays(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / NAME
    file.mkdir() if content is None else file.write_text(content)
    life = Life(tmp_path)
    assert "is damaged" in life.file.damage and life.file.damage in caplog.text
    line, free = say(life.bench, LINE, CHANNEL), say(life.bench, "free", "")
    assert line.channel.unapproved and not free.channel.unapproved and life.queue.moderated == [CHANNEL]
    life.do("pause")
    life.queue.moderate(CHANNEL, False)
    assert life.queue.moderated == []
    life.file.save()
    assert content is None or file.read_text() == content
    assert Life(tmp_path).queue.moderate(CHANNEL, True) is None


def test_a_full_disk_is_told_and_stored_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)
    with monkeypatch.context() as full:
        full.setattr("os.fsync", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(
            StorageError, match="in force until the daemon ends, but not stored: No space left"
        ):
            life.do("pause")
    assert list(life.queue.paused) == [CHANNEL] and list(tmp_path.iterdir()) == []
    life.file.save()
    assert list(Life(tmp_path).queue.paused) == [CHANNEL]


def test_the_file_is_its_owners_alone_bounded_and_forgets_old_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    life.queue.restore(Kept(order={f"old {number}": True for number in range(HISTORY + 5)}))
    for number in range(DECISIONS + 5):
        say(life.bench, f"new {number}", CHANNEL)
        life.queue.end(lambda u: True, Rejected("no"))
    life.file.save()
    file = tmp_path / NAME
    kept = json.loads(file.read_text())
    assert list(kept["order"])[-1] == f"old {HISTORY + 4}" and len(kept["order"]) == HISTORY
    assert list(kept["decisions"])[-1] == f"new {DECISIONS + 4}" and len(kept["decisions"]) == DECISIONS
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Rejected):
        say(Life(tmp_path).bench, "new 100", CHANNEL)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + RESENT_S)
    say(Life(tmp_path).bench, "new 100", CHANNEL)
