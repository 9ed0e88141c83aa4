"""The gateway's life: before its daemon and after it, with tokens, with TLS, beyond loopback, and stopped."""

import contextlib
import itertools
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from appliance.access import token_file
from appliance.access.certificates import tls_context
from appliance.access.token_file import Role
from appliance.client import CallFailed, Client
from appliance.config import load
from appliance.errors import ApplianceError, ConfigError, Exit
from appliance.gateway import app, serving
from appliance.gateway.refusals import REASONS, STATUSES, refusal_of
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc.status import TABLE, reason_of
from appliance.serve.notify import Notifier
from tests.gateway.conftest import LINE, Gateway, Guarded, gateway_of, read, request
from tests.harness.daemons import (
    Program,
    Running,
    finished,
    followed,
    free_port,
    running,
    start,
    write_config,
)
from tests.harness.patience import PATIENCE_S, until
from tests.harness.rows import rows

pytestmark = pytest.mark.slow
FULL = ("prlimit", "--nofile=48")
HALF = b"POST /tts HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"


CELLS = {
    "held": (("moderate",), "", "HELD"),
    "paused": (("pause",), "", "WAITING"),
    "approved": (("pause", "moderate"), "approve", "WAITING"),
    "unmoderated": (("moderate",), "unmoderate", "HELD"),
    "rejected": (("moderate",), "reject", "REJECTED"),
    "cleared": (("pause",), "clear", "CLEARED"),
    "banned": (("pause", "moderate"), "cancel_of", "CANCELLED"),
}
"""Verbs on a channel, the verb after its line arrives, and the line's state or the reason of its end."""
DOORS = ("/v1/audio/speech", "/v1/text-to-speech/ann", 0, 5)
"""Paths of the gateway, and numbers of retries of gRPC's client."""


class Moderated:
    """Lines in a moderator's hands when the daemon ends, each alone on its channel."""

    def __init__(self, gateway: Gateway, pool: ThreadPoolExecutor, first: int) -> None:
        """`first` is the index of the first cell's door; later cells take the doors that follow."""
        self.gateway, self.address = gateway, gateway.daemon.address
        self.cells = {f"{name} {first}": cell for name, cell in CELLS.items()}
        doors = itertools.islice(itertools.cycle(DOORS), first, None)
        with Client(self.address) as client:
            for channel, (verbs, _, _) in self.cells.items():
                for verb in verbs:
                    getattr(client, verb)(channel)
            self.replies = {c: pool.submit(self.say, d, c) for c, d in zip(self.cells, doors, strict=False)}
            until(lambda: len(client.utterances()) == len(self.cells))
            for channel, (_, verb, _) in self.cells.items():
                if verb:
                    getattr(client, verb)(**{"user" if verb == "cancel_of" else "channel": channel})

    def say(self, door: str | int, channel: str) -> str:
        """Speak a line through an API; return the reason of its end, or ""."""
        line = {"channel": channel, "user": channel}
        if isinstance(door, str):
            answer = self.gateway.ask(door, {**LINE, "text": "One, two, three.", **line})
            return "" if answer.status == 200 else answer.body.decode()
        with Client(self.address, retries=door) as client, contextlib.suppress(CallFailed):
            client.speak("One, two, three.", "ann", timeout=PATIENCE_S, **line)  # type: ignore[arg-type]
            return ""
        return "CallFailed"

    def check(self) -> None:
        """Check that no forbidden line sounds; then allow all lines, and check that none is lost."""
        waiting = {c: state for c, (_, _, state) in self.cells.items() if state in ("HELD", "WAITING")}
        paused = {channel for channel, (verbs, _, _) in self.cells.items() if "pause" in verbs}
        with Client(self.address) as client:

            def present() -> dict[str, str]:
                with contextlib.suppress(CallFailed):  # gRPC backs off from an address without a server
                    queue = client.queue()
                    assert paused <= set(queue.paused) and len(queue.paused_since) == len(queue.paused)
                    lines = [one for one in queue.utterances if one.channel in self.cells]
                    return {one.channel: pb.UtteranceState.Name(one.state) for one in lines}
                return {}

            until(lambda: present() == waiting)
            assert not any(self.replies[channel].done() for channel in waiting)
            for channel in waiting:
                client.approve(channel)
                client.resume(channel)
            for channel, reply in self.replies.items():
                assert bool(reply.result(PATIENCE_S)) is (channel not in waiting)


def test_before_its_daemon_it_says_503_and_then_serves_and_outlives_it(tmp_path: Path) -> None:
    """A moderator's decisions survive the daemon's end, by SIGTERM and by a kill."""
    ports = {"server": {"listen": f"127.0.0.1:{free_port()}", "socket": ""}}
    loaded = yaml.safe_load(write_config(tmp_path, **ports).read_text())
    with (
        ThreadPoolExecutor(3 * len(CELLS)) as threads,
        gateway_of(Running(None, loaded, tmp_path)) as gateway,  # type: ignore[arg-type]
    ):
        answer = gateway.ask("/v1/audio/speech", LINE)
        assert (answer.status, answer.json["error"]["type"]) == (503, "server_error")
        assert answer.headers["retry-after"] == "2" and answer.headers["x-should-retry"] == "true"
        assert gateway.ask("/livez").status == 200 and gateway.ask("/readyz").status == 503
        with running(tmp_path, **ports) as daemon:
            until(lambda: gateway.ask("/readyz").status == 200)
            daemon.add_voice()
            assert gateway.ask("/v1/audio/speech", LINE).status == 200
            decided = Moderated(gateway, threads, 0)
            assert daemon.stop() == 0
        until(lambda: gateway.ask("/readyz").status == 503)
        # The gateway holds requests that name a channel until the daemon is back.
        paths = ("/v1/audio/speech", "/tts", "/v1/text-to-speech/ann") * 2
        sent = {**LINE, "text": "One, two, three.", "ref_audio_path": "ann.wav", "channel": "stage"}
        answers = [threads.submit(gateway.ask, path, sent) for path in paths]
        with running(tmp_path, **ports) as daemon:
            assert [answer.result(PATIENCE_S).status for answer in answers] == [200] * len(paths)
            decided.check()
            decided = Moderated(gateway, threads, 1)
            daemon.stop(signal.SIGKILL)
        until(lambda: gateway.ask("/readyz").status == 503)
        with running(tmp_path, **ports) as daemon:
            decided.check()
            assert gateway.ask("/v1/audio/speech", LINE).status == 200
            assert daemon.stop() == 0
        until(lambda: gateway.ask("/readyz").status == 503)
        assert gateway.stop() == 0


@pytest.mark.parametrize(("path", "sent", "statuses"), [
    ("/v1/audio/speech", LINE, (401, 401, 200, 403, 200)),
    ("/v1/audio/voices", None, (401, 401, 200, 200, 200)),
    ("/v1/audio/models", None, (401, 401, 200, 200, 200)), ("/tts?text=Hi", None, (401, 401, 200, 403, 200)),
    ("/api/channels/main/skip", {}, (401, 401, 403, 403, 200)),
    ("/api/users/nobody/cancel", {}, (401, 401, 403, 403, 200)),
    ("/api/queue", None, (401, 401, 200, 403, 200)), ("/livez", None, (200,) * 5),
])  # fmt: skip
def test_tokens_by_their_role(guarded: Guarded, path: str, sent: object, statuses: tuple[int, ...]) -> None:
    """Requests over TLS with the daemon's certificate: without a token, with a wrong one, and with each
    role's."""
    assert tuple(guarded.ask(path, role, sent).status for role in ("", "f5_x", *Role)) == statuses


def test_tls_and_tokens_reach_a_daemon_by_tcp(guarded: Guarded) -> None:
    daemon, certificate = guarded.gateway.daemon, str(guarded.gateway.certificate)
    with gateway_of(daemon, daemon=daemon.address, authority=certificate) as gateway:
        far = replace(guarded, gateway=gateway)
        statuses = [far.ask("/v1/audio/speech", role, LINE).status for role in ("", *Role)]
    assert statuses == [401, 200, 403, 200]


def test_a_token_in_the_address_and_a_revoked_token(guarded: Guarded) -> None:
    token = token_file.add(guarded.tokens, "leaver", [Role.SPEAK])
    assert guarded.ask(f"/v1/audio/voices?token={token}", "").status == 200
    token_file.revoke(guarded.tokens, "leaver")
    answer = guarded.ask("/v1/audio/speech", token, LINE)
    assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")
    assert guarded.ask("/tts?text=Hi", "").json["message"].startswith("a token is needed")
    assert guarded.ask("/readyz", "").status == 200


@pytest.mark.parametrize(("settings", "message"), rows(__file__, "settings_refused.jsonl"))
def test_impossible_settings_are_refused_by_name(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as refused:
        loaded = load(None, settings)
        app.address_of(loaded)
        app.credentials_of(loaded)
        if loaded.server.tls_certificate:
            tls_context(loaded.server)
        serving.listen(loaded, "gateway", Notifier()).close()
    assert message in str(refused.value)


def test_the_exit_statuses_follow_the_table() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for setting, status, told in (
            ("gateway.listen=0.0.0.0:1", 78, "can be reached"),
            ("gateway.x=1", 78, "x"),
            (f"gateway.listen=127.0.0.1:{taken.getsockname()[1]}", 75, "cannot listen on"),
        ):
            ran = finished(sys.executable, "-m", "appliance", "gateway", "--set", setting)
            assert ran.returncode == status and told in ran.stderr, ran.stderr
            assert status == 75 or ran.stderr.count("\n") == 1


def test_every_status_of_the_daemon_has_its_own_here() -> None:
    assert {rule.code.name for rule in TABLE.values()} <= set(STATUSES)
    assert set(REASONS) <= {reason_of(kind) for kind in TABLE}
    for kind, rule in TABLE.items():
        failed = CallFailed(rule.code.name, "m", reason_of(kind), retry_s=rule.retry_s or None)
        answer = refusal_of(failed)
        internal = issubclass(kind, ApplianceError) and rule.code.name == "INTERNAL"
        assert (answer.status == 500) is internal
        # The header appears only if the daemon suggests a retry, because clients obey it.
        assert (answer.retry_s is not None) is bool(rule.retry_s)


def test_replies_under_way_are_finished_when_it_stops(gateway: Gateway) -> None:
    sent = {**LINE, "input": "A story. " * 40, "channel": "last", "response_format": "wav"}
    with (
        gateway_of(gateway.daemon) as other,
        Client(gateway.daemon.address) as client,
        ThreadPoolExecutor() as pool,
    ):
        asked = pool.submit(other.ask, "/v1/audio/speech", sent)
        until(lambda: client.utterances("last"))
        assert other.stop() == 0
        assert asked.result().status == 200 and len(asked.result().body) > 100_000


def test_a_request_too_many_or_at_the_end_gets_a_time_to_retry(
    gateway: Gateway,
) -> None:
    limits = {"max_requests": 1, "max_connections": 4, "drain_s": 1}
    with (
        gateway_of(gateway.daemon, **limits) as other,
        Client(gateway.daemon.address) as client,
        ThreadPoolExecutor() as pool,
    ):
        with contextlib.ExitStack() as silent:
            # Silent and half-finished connections give way.
            sent = [silent.enter_context(other.connected(begun)) for begun in (HALF, *[b""] * 7)]
            assert other.ask("/v1/models").status == 200
            assert {read(connection) for connection in sent[:5]} == {b""}
        for channel, is_last in (("full", False), ("last", True)):
            client.pause(channel)
            asked = pool.submit(other.ask, "/v1/audio/speech", {**LINE, "channel": channel})
            until(lambda name=channel: client.utterances(name))
            answer = other.ask("/v1/models")
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert other.ask("/livez").status == 200
            if is_last:
                assert other.stop() == 0
            client.resume(channel)
            answer = asked.result()
            assert (answer.status, answer.headers["retry-after"]) == ((503, "2") if is_last else (200, None))


def test_a_client_without_progress_is_cut_off(gateway: Gateway) -> None:
    with gateway_of(gateway.daemon, stall_s=0.3) as impatient:
        for begun, told in (
            (b"", b""),
            (b"POST /tts HTTP/1.1\r\nhost: x\r\n", b""),
            (b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET", b"HTTP/1.1 200"),
            (HALF, b"HTTP/1.1 408"),
        ):
            with impatient.connected(begun) as connection:
                assert read(connection).startswith(told), begun


def test_a_hangup_ends_nothing(gateway: Gateway) -> None:
    """A hangup is harmless during the start too: the test sends it repeatedly once Python runs the command's
    first line."""
    with gateway_of(gateway.daemon) as other:
        other.process.send_signal(signal.SIGHUP)
        assert other.ask("/livez").status == 200
        assert other.stop() == 0
    command = ("-X", "importtime", "-m", "appliance", "gateway", "--config", "/none")
    with followed(Program(start(*command)), ready=False) as starting:
        starting.until("import time:.* argparse")
        until(lambda: starting.process.poll() is not None or starting.process.send_signal(signal.SIGHUP))
        assert starting.process.wait() == Exit.CONFIG


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_lack_of_descriptors_is_logged_once_and_harmless(gateway: Gateway, is_ended: bool) -> None:
    """asyncio logs each of its attempts, hundreds or thousands in its first round.

    The gateway ends within the second after which asyncio tries again, because unfinished requests delay the
    end until then.
    """
    with gateway_of(gateway.daemon, within=FULL, drain_s=2.0) as other:
        assert other.ask("/tts", {}).status == 400  # the gateway has done its lazy imports
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(other.connected(HALF if is_ended else b""))
            other.until("Too many open files")
            if is_ended:
                assert other.stop() == 0
        if not is_ended:
            assert other.ask("/livez").status == 200
            assert other.stop() == 0
    assert len(other.lines) < 10 and "Traceback" not in other.log


def test_a_burst_on_one_channel_keeps_its_order_also_right_after_a_start(gateway: Gateway) -> None:
    """Whole and streamed replies, in voices that need a lookup and voices that do not."""
    words = [f"line {word}" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    with gateway_of(gateway.daemon) as fresh, Client(gateway.daemon.address) as client:
        client.pause("burst")
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(fresh.connected()) for _ in words]
            for number, (word, connection) in enumerate(zip(words, sockets, strict=True)):
                path, sent = "/tts", {"text": word, "ref_audio_path": "ann.wav", "channel": "burst"}
                if number % 3:
                    voice = "ann" if number % 3 == 1 else "alloy"
                    path = "/v1/audio/speech"
                    sent = {"model": "tts-1", "input": word, "voice": voice, "channel": "burst"}
                connection.sendall(request(path, sent))
            until(lambda: len(client.utterances("burst")) == len(words))
            waiting = client.utterances("burst")
            assert [utterance.text.strip(" .").lower() for utterance in waiting] == words
