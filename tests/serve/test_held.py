"""A moderator's decisions apply in the next process too, whichever client sends the line again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.client import CallFailed, Piece
from appliance.client.retries import Attempts
from appliance.errors import Cancelled, Cleared, Rejected, Skipped, StorageError
from appliance.rpc import appliance_pb2 as pb
from appliance.scheduler.job import State
from appliance.scheduler.queue import Queue
from appliance.scheduler.workload import DECISIONS, HISTORY, QueueState
from appliance.serve.held import NAME, RESENT_S, HeldFile
from tests.harness.engine import EVEN, FakeEngine, raising
from tests.harness.scheduler import Bench
from tests.harness.segments import pieces
from tests.scheduler.test_queue import SERIAL, made, say, seen

LINE, CHANNEL = "line", "stage"
STATES = {"held": State.HELD, "paused": State.WAITING, "waiting": State.WAITING, "sounding": State.SOUNDING}
VERBS: dict[str, Callable[[Queue], object]] = {
    "moderate": lambda queue: queue.moderate(CHANNEL, True),
    "pause": lambda queue: queue.pause(CHANNEL),
    "reject": lambda queue: queue.end(lambda u: u.job.terms.request_id == LINE, Rejected("")),
    "ban": lambda queue: queue.end(lambda u: u.job.terms.user == "troll", Cancelled("")),
    "clear": lambda queue: queue.end(lambda u: u.state in (State.WAITING, State.HELD), Cleared("")),
    "skip": lambda queue: queue.end(lambda u: u.state is State.SOUNDING, Skipped("")),
    "approve": lambda queue: queue.approve(lambda u: True),
    "resume": lambda queue: queue.resume(CHANNEL),
}
ENDS = {
    "reject": (*STATES,),
    "ban": (*STATES,),
    "clear": ("held", "paused", "waiting"),
    "skip": ("sounding",),
}
"""Verb → states of a line that it ends."""
RETRIES: dict[str, dict[str, Any]] = {
    "http": {"retries": 0, "hold_s": 60.0},
    "elevenlabs": {"retries": 0, "hold_s": 60.0},
    "grpc, 0 retries": {"retries": 0},
    "grpc, 5 retries": {"retries": 5},
    "session": {},
}
"""API → arguments of its client's attempts; a session makes a single attempt."""
AWAY = CallFailed("UNAVAILABLE", "the connection is lost, or the daemon stops")


class Life:
    """A daemon's process: its scheduler, and the file that it shares with the previous process."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.folder, self.bench = folder, Bench(**config)
        self.queue = self.bench.scheduler.queue
        self.file = HeldFile(folder, self.queue)

    def do(self, *verbs: str) -> None:
        for verb in verbs:
            VERBS[verb](self.queue)
        self.file.save()

    def put(self, state: str, door: str) -> None:
        """Bring the line into a state; of a sounding line, the first half has been played."""
        if state == "waiting":
            say(self.bench, "before", CHANNEL, 9)
            self.bench.until("before")
        self.do(*{"held": ["moderate"], "paused": ["pause"]}.get(state, []))
        self.say(door)
        if state == "sounding":
            self.bench.until(LINE)
        assert seen(self.bench)[LINE] is STATES[state]
        self.file.save()

    def say(self, door: str) -> None:
        say(self.bench, LINE, CHANNEL, 2, user="troll", stream=door != "elevenlabs")

    @property
    def heard(self) -> int:
        """Number of halves of the line that the last client has got."""
        return made(self.bench, LINE) if LINE in self.bench.results else 0

    def terminated(self, door: str) -> Life:
        self.bench.serve()
        self.file.save()
        return self.killed(door)

    def killed(self, door: str) -> Life:
        """The next process, after a retrying client has sent the line again."""
        life = Life(self.folder)
        is_ended = any(type(r) in (Rejected, Cancelled, Cleared, Skipped) for r in self.bench.results[LINE])
        if is_ended:  # its client may not know of the end
            with pytest.raises(Rejected):
                life.say(door)
        elif self.heard < 2 and sends_again(door, self.heard):
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
        """End the calls of a gateway with it; its clients call the next gateway."""
        job = self.bench.scheduler._workload.jobs.get(LINE)
        if job is not None and door in ("http", "elevenlabs") and not job.segments_done:
            self.queue.cancel(job)
            self.say(door)
        return self


def sends_again(door: str, heard: int) -> bool:
    """True if the client's rule is to retry after the daemon goes away."""
    if not RETRIES[door]:
        return False
    request = pb.SynthesizeRequest(channel=CHANNEL)
    attempts = Attempts(lambda: None, request, timeout=60.0, address="", **RETRIES[door])
    for event in [pb.Header(), *[Piece(b"", 0, 0, 0)] * heard] if door != "elevenlabs" else []:
        attempts.received(event)
    with contextlib.suppress(CallFailed):
        return attempts.wait_s(AWAY) >= 0.0
    return False


@pytest.mark.parametrize("how", ["terminated", "killed", "reloaded", "swapped", "without_gateway"])
@pytest.mark.parametrize("verb", ["moderate", "pause", *ENDS])
@pytest.mark.parametrize("state", STATES)
def test_no_forbidden_line_sounds_and_no_allowed_line_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, how: str, state: str
) -> None:
    monkeypatch.setattr("gc.collect", lambda: 0)  # slow, and runs after each swap
    is_ended, is_held = state in ENDS.get(verb, ()), state in ("held", "paused") or verb == "pause"
    for door in RETRIES:
        (folder := tmp_path / door).mkdir()
        first = Life(folder)
        first.put(state, door)
        before = first.heard
        first.do(verb)
        modes = first.queue.moderated, [*first.queue.paused]
        last = getattr(first, how)(door)
        assert modes == (last.queue.moderated, [*last.queue.paused])
        for lifting in ((), ("approve", "resume")):
            last.do(*lifting)
            last.bench.work()
            if is_ended or (is_held and not lifting):
                heard = first.heard + (last.heard if last is not first else 0)
                assert heard == before, f"{door}: it is heard though a verb forbids it"
        if not is_ended and max(first.heard, last.heard) < 2:
            assert last is not first and not sends_again(door, before), f"{door}: it is lost, nobody is told"


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
    life.queue.end(lambda u: u.job.terms.request_id == "a", Cancelled(""))
    say(life.bench, "a", CHANNEL)
    assert list(seen(life.bench)) == ["new", "c", LINE, "later", "a"], "it has had its place"


def test_a_held_line_is_held_again_on_an_unmoderated_channel(tmp_path: Path) -> None:
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
    first.do("pause", "approve")
    for text, is_held in (("", False), ("Something else.", True)):
        second = Life(tmp_path)
        job = second.bench.job(LINE, channel=CHANNEL, playout=SERIAL)
        job.request = replace(job.request, written=text)
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
    assert say(Life(tmp_path).bench, LINE, CHANNEL).channel.unapproved


def test_a_full_disk_delays_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)
    with monkeypatch.context() as full:
        full.setattr("os.fsync", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(StorageError, match="in force until the daemon ends, but not stored: No space"):
            life.do("pause")
    assert list(life.queue.paused) == [CHANNEL] and list(tmp_path.iterdir()) == []
    life.file.save()
    assert list(Life(tmp_path).queue.paused) == [CHANNEL]


def test_the_file_is_its_owners_alone_bounded_and_forgets_old_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    life.queue.restore(QueueState(order={f"old {number}": True for number in range(HISTORY + 5)}))
    for number in range(DECISIONS + 5):
        say(life.bench, f"new {number}", CHANNEL)
        life.queue.end(lambda u: True, Rejected("no"))
    life.file.save()
    file = tmp_path / NAME
    kept = json.loads(file.read_text())
    assert list(kept["order"])[-1] == f"old {HISTORY + 4}" and len(kept["order"]) == HISTORY
    assert list(kept["decisions"])[-1] == f"new {DECISIONS + 4}" and len(kept["decisions"]) == DECISIONS
    assert file.stat().st_mode & 0o777 == 0o600
    life = Life(tmp_path)
    with pytest.raises(Rejected):
        say(life.bench, "new 100", CHANNEL)
    say(life.bench, "new 100", CHANNEL)  # the caller has got its refusal
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + RESENT_S)
    say(Life(tmp_path).bench, "new 100", CHANNEL)
