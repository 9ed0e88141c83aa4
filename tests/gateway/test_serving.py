"""How it stands: before its daemon and after it, with tokens, with TLS, beyond loopback, and stopped."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import access, config
from appliance.access import Role
from appliance.certificates import tls_context
from appliance.client import CallFailed, Client
from appliance.config import Config, load
from appliance.errors import ApplianceError, ConfigError
from appliance.exits import Exit
from appliance.gateway import app, serving
from appliance.gateway.refusals import REASONS, STATUSES, refusal_of
from appliance.rpc.status import TABLE, reason_of
from appliance.serve.notify import Notifier
from tests.daemons import Program, Running, followed, free_port, running, start, write_config
from tests.gateway.conftest import Gateway, gateway_of
from tests.gateway.test_openai import LINE
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.slow


def test_before_its_daemon_it_says_503_and_then_serves_and_outlives_it(tmp_path: Path) -> None:
    ports = {"server": {"listen": f"127.0.0.1:{free_port()}", "socket": ""}}
    absent = Running(None, load_yaml(write_config(tmp_path, **ports)), tmp_path)  # type: ignore[arg-type]
    with gateway_of(absent) as gateway:
        answer = gateway.ask("/v1/audio/speech", LINE)
        assert (answer.status, answer.json["error"]["type"]) == (503, "server_error")
        assert answer.headers["retry-after"] == "2" and answer.headers["x-should-retry"] == "true"
        assert gateway.ask("/livez").status == 200 and gateway.ask("/readyz").status == 503
        for _ in range(2):
            with running(tmp_path, **ports) as daemon:
                until(lambda: gateway.ask("/readyz").status == 200)
                daemon.add_voice()
                assert gateway.ask("/v1/audio/speech", LINE).status == 200
                assert daemon.stop() == 0
            until(lambda: gateway.ask("/readyz").status == 503)
        assert gateway.stop() == 0


def load_yaml(path: Path) -> dict[str, object]:
    import yaml

    found: dict[str, object] = yaml.safe_load(path.read_text())
    return found


def test_tokens_are_asked_for_by_role(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    bot, boss = (access.add(tokens, role.value, [role]) for role in (Role.SPEAK, Role.ADMIN))
    voices = access.add(tokens, "voices", [Role.VOICES])
    (tmp_path / "box").mkdir()
    with running(tmp_path / "box", server={"tokens": str(tokens)}) as daemon:
        daemon_voice(daemon, boss)
        with gateway_of(daemon) as gateway:

            def status(path: str, token: str = "", sent: object = None) -> int:
                shown = {"authorization": f"Bearer {token}"} if token else {}
                return gateway.ask(path, sent, **shown).status

            speech = "/v1/audio/speech"
            assert [status(speech, token, LINE) for token in ("", "f5_x", voices)] == [401, 401, 403]
            assert [status(speech, token, LINE) for token in (bot, boss)] == [200, 200]
            assert [status("/v1/audio/voices", token) for token in ("", voices, bot)] == [401, 200, 200]
            assert status(f"/v1/audio/voices?token={bot}") == 200
            assert [status("/v1/audio/models", token) for token in ("", voices)] == [401, 200]
            assert [status("/tts?text=Hi", token) for token in ("", bot)] == [401, 200]
            assert [status("/api/channels/main/skip", token, {}) for token in ("", bot)] == [401, 403]
            assert status("/livez") == 200
            access.revoke(tokens, "speak")
            answer = gateway.ask(speech, LINE, authorization=f"Bearer {bot}")
            assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")
            assert gateway.ask("/tts?text=Hi").json["message"].startswith("a token is needed")


def daemon_voice(daemon: Running, token: str) -> None:
    from appliance.client import Client, Credentials
    from tests.daemons import reference_wav

    with Client(daemon.address, Credentials(token=token)) as client:
        client.add_voice("ann", reference_wav(), "Some call me nature, others call me mother nature.")


def certificate(folder: Path) -> tuple[Path, Path]:
    crt, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=box", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(crt)),
        ],
        check=True,
        capture_output=True,
    )
    return crt, key


def test_https_with_the_daemons_certificate(tmp_path: Path) -> None:
    crt, key = certificate(tmp_path)
    (tmp_path / "box").mkdir()
    pair = {"tls_certificate": str(crt), "tls_key": str(key)}
    with running(tmp_path / "box", server=pair) as daemon, gateway_of(daemon) as gateway:
        context = ssl.create_default_context(cafile=str(crt))
        with urllib.request.urlopen(f"https://{gateway.address}/readyz", context=context) as reply:
            assert reply.status == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gateway.listen=0.0.0.0:8880"], "gateway.listen: 0.0.0.0:8880 can be reached from the network"),
        (["gateway.listen=voicebox:8880"], "can be reached from the network"),
        (["gateway.listen=localhost"], "gateway: listen: must be host:port"),
        (["gateway.origins=[everywhere]"], 'origins: must be scheme://host[:port] or "*"'),
        (["gateway.origins=['http://[']"], 'origins: must be scheme://host[:port] or "*"'),
        (["gateway.origins=['null']"], 'origins: must be scheme://host[:port] or "*"'),
        (["gateway.names=['box:8880']"], "names: must be hosts without a port, as voicebox.lan"),
        (["gateway.names=['*']"], "names: must be hosts without a port, as voicebox.lan"),
        (["gateway.stall_s=0"], "stall_s: must be between"),
        (["server.tls_certificate=/no.crt", "server.tls_key=/no.key"], "are not a PEM certificate"),
        (["server.tokens=/x", "server.socket="], "server.socket: is empty"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as refused:
        loaded = load(None, settings)
        app.daemon_address(loaded)
        if loaded.server.tls_certificate:
            tls_context(loaded.server)
        serving.listen(loaded, "gateway", Notifier()).close()
    assert message in str(refused.value)


def test_open_to_network_is_said_in_its_own_section() -> None:
    opened = load(None, ["gateway.listen=0.0.0.0:0", "gateway.open_to_network=true"])
    serving.listen(opened, "gateway", Notifier()).close()
    with pytest.raises(ConfigError):
        serving.listen(
            load(None, ["gateway.listen=0.0.0.0:0", "server.open_to_network=true"]), "gateway", Notifier()
        )


def test_the_exit_statuses_are_those_of_its_table() -> None:
    for arguments, status in ((["--set", "gateway.listen=0.0.0.0:1"], 78), (["--set", "gateway.x=1"], 78)):
        command = [sys.executable, "-m", "appliance", "gateway", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (ran.returncode, ran.stderr.count("\n")) == (status, 1), ran.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = ["--set", f"gateway.listen=127.0.0.1:{taken.getsockname()[1]}"]
        command = [sys.executable, "-m", "appliance", "gateway", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ran.returncode == 75 and "cannot listen on" in ran.stderr


async def test_every_status_of_the_daemon_has_its_own_here() -> None:
    assert {rule.code.name for rule in TABLE.values()} <= set(STATUSES)
    assert set(REASONS) <= {reason_of(kind) for kind in TABLE}
    for kind, rule in TABLE.items():
        failed = CallFailed(rule.code.name, "m", reason_of(kind), retry_s=rule.retry_s or None)
        answer = await refusal_of(failed)
        internal = issubclass(kind, ApplianceError) and rule.code.name == "INTERNAL"
        assert (answer.status == 500) is internal
        # Only where the daemon says that it may help, since clients repeat by themselves.
        assert (answer.retry_s is not None) is bool(rule.retry_s)


def test_replies_under_way_are_finished_when_it_stops(gateway: Gateway) -> None:
    with gateway_of(gateway.daemon) as other:
        answers = []
        sent = {**LINE, "input": "A story. " * 40, "channel": "last", "response_format": "wav"}
        asking = threading.Thread(target=lambda: answers.append(other.ask("/v1/audio/speech", sent)))
        asking.start()
        from appliance.client import Client

        with Client(gateway.daemon.address) as client:
            until(lambda: client.utterances("last"))
        assert other.stop() == 0
        asking.join()
    assert answers[0].status == 200 and len(answers[0].body) > 100_000


def test_one_request_more_than_allowed_is_told_when_to_come_back(gateway: Gateway) -> None:
    from appliance.client import Client

    with gateway_of(gateway.daemon, max_requests=1) as other, Client(gateway.daemon.address) as client:
        client.pause("full")
        asking = threading.Thread(target=lambda: other.ask("/v1/audio/speech", {**LINE, "channel": "full"}))
        asking.start()
        until(lambda: client.utterances("full"))
        answer = other.ask("/v1/models")
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert other.ask("/livez").status == 200
        client.resume("full")
        asking.join()


@pytest.fixture(scope="module")
def impatient(gateway: Gateway) -> Iterator[Gateway]:
    with gateway_of(gateway.daemon, stall_s=0.3) as other:
        yield other


@pytest.mark.parametrize(
    "begun", [b"", b"POST /tts HTTP/1.1\r\nhost: x\r\n", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET"]
)
def test_who_makes_no_progress_is_cut_off(impatient: Gateway, begun: bytes) -> None:
    host, port = impatient.address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection,
        contextlib.suppress(ConnectionResetError),
    ):
        connection.sendall(begun)
        while connection.recv(4096):
            pass


def test_a_body_that_does_not_come_is_a_408(impatient: Gateway) -> None:
    host, port = impatient.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /tts HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_hangup_ends_nothing(gateway: Gateway) -> None:
    """Also while it starts: then it is sent all the time, once Python runs the command's first line."""
    with gateway_of(gateway.daemon) as other:
        other.process.send_signal(signal.SIGHUP)
        assert other.ask("/livez").status == 200
        assert other.stop() == 0
    command = ("-X", "importtime", "-m", "appliance", "gateway", "--config", "/none")
    with followed(Program(start(*command)), ready=False) as starting:
        starting.until("import time:.* argparse")
        until(lambda: starting.process.poll() is not None or starting.process.send_signal(signal.SIGHUP))
        assert starting.process.wait() == Exit.CONFIG


def test_without_descriptors_it_says_so_once_and_goes_on_when_there_are_some(gateway: Gateway) -> None:
    """asyncio tells of each of its attempts, some hundreds or thousands in its first round."""
    with gateway_of(gateway.daemon, within=("prlimit", "--nofile=48")) as other:
        host, _, port = other.address.rpartition(":")
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            other.until("Too many open files")
        assert other.ask("/livez").status == 200
        assert other.stop() == 0
    assert len(other.lines) < 10 and "Traceback" not in other.log


def test_without_descriptors_it_ends_quietly_too(gateway: Gateway) -> None:
    """Within the second after which asyncio tries again: a request that is being sent holds it so long."""
    with gateway_of(gateway.daemon, within=("prlimit", "--nofile=48"), drain_s=2.0) as other:
        assert other.ask("/tts", {}).status == 400  # what it imports lazily, it has
        host, _, port = other.address.rpartition(":")
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                connection = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
                connection.sendall(b"POST /tts HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
            other.until("Too many open files")
            assert other.stop() == 0
    assert len(other.lines) < 10 and "Traceback" not in other.log


def test_the_defaults() -> None:
    assert Config().gateway.listen == config.LOOPBACK_HTTP == "127.0.0.1:8880"


def test_a_burst_on_one_channel_keeps_its_order_also_as_the_first_thing_after_a_start(
    gateway: Gateway,
) -> None:
    """Whole and streamed replies, in voices that are looked up and that are not."""
    words = [f"line {word}" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    with gateway_of(gateway.daemon) as fresh, Client(gateway.daemon.address) as client:
        client.pause("burst")
        host, _, port = fresh.address.rpartition(":")
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in words]
            for number, (word, connection) in enumerate(zip(words, sockets, strict=True)):
                path, sent = "/tts", {"text": word, "ref_audio_path": "ann.wav", "channel": "burst"}
                if number % 3:
                    voice = "ann" if number % 3 == 1 else "alloy"
                    path = "/v1/audio/speech"
                    sent = {"model": "tts-1", "input": word, "voice": voice, "channel": "burst"}
                body = json.dumps(sent).encode()
                head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
            until(lambda: len(client.utterances("burst")) == len(words))
            waiting = client.utterances("burst")
            assert [utterance.text.strip(" .").lower() for utterance in waiting] == words
            client.clear("burst")
        client.resume("burst")
