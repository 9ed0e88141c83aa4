"""Access over TCP to a running daemon: TLS, client certificates, tokens and limits.

openssl makes the certificates, the server's with the README's own command, and tries protocol versions.
"""

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from appliance.access import token_file
from appliance.access.token_file import Role
from appliance.bench import guard
from appliance.box import paths
from appliance.box.tools import Tools
from appliance.bundles import Restart
from appliance.cli import main
from appliance.client import CallFailed, Client, Credentials, Piece
from appliance.config import ServerConfig, load
from appliance.serve import daemon
from tests.conftest import Checked
from tests.harness import daemons
from tests.harness.daemons import BUNDLE, ROOT, Running, running
from tests.harness.patience import PATIENCE_S

pytestmark = pytest.mark.slow

OWN = "daemon_address("
TEXT = "One, two, three, four, five, six, seven, eight, nine, ten, and so on until somebody says stop."


def openssl(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def authority(folder: Path, name: str = "ca") -> None:
    """Make NAME.crt and NAME.key of a certificate authority."""
    made = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    openssl(folder, *KEY, "-x509", "-days", "30", "-subj", "/CN=ca", *made)


def readme_certificate(folder: Path) -> None:
    """Run the README's command for tls.crt and tls.key, for this machine's name, address and loopback."""
    readme = (ROOT / "appliance/rpc/README.md").read_text("utf-8")
    (command,) = re.findall(r"^sudo (openssl req -x509 .*?tls\.crt)$", readme, re.DOTALL | re.MULTILINE)
    command = command.replace("IP:$(hostname -I | cut -d' ' -f1)", "DNS:localhost,IP:127.0.0.1")
    subprocess.run(["bash", "-c", command], cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)


def signed(folder: Path, name: str, days: int, *more: str) -> None:
    """Make NAME.crt and NAME.key, signed by ca.crt."""
    openssl(folder, *KEY, "-new", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    ends = ["-days", str(days)]
    usage = subprocess.run(["openssl", "x509", "-help"], capture_output=True, text=True).stderr
    if days < 0 and "-not_after" in usage:  # such an openssl may refuse an end before the start
        ends = ["-not_before", "20200101000000Z", "-not_after", "20200102000000Z"]
    by = ["-CA", "ca.crt", "-CAkey", "ca.key"]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *by, *ends, *more, "-out", f"{name}.crt")


KEY = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


@dataclass(frozen=True)
class Locked:
    daemon: Running
    folder: Path
    tokens: dict[str, str]

    @property
    def config(self) -> Path:
        return self.daemon.folder / "config.yaml"

    @property
    def file(self) -> Path:
        return self.folder / "tokens.json"

    def client(self, token: str = "", **kept: bytes) -> Client:
        shown = self.tokens.get(token, token)
        authority = kept.pop("authority", (self.folder / "tls.crt").read_bytes())
        return Client(self.daemon.address, Credentials(authority, shown, **kept), own_connection=True)


@contextlib.contextmanager
def locking(folder: Path) -> Iterator[Locked]:
    """Start a daemon with TLS and a token for each role."""
    readme_certificate(folder)
    file = folder / "tokens.json"
    tokens = {role.value: token_file.add(file, role.value, [role]) for role in Role}
    server = {"tls_certificate": str(folder / "tls.crt"), "tls_key": str(folder / "tls.key")}
    server |= {"tokens": str(file), "max_calls_of_peer": 4}
    with running(folder, server=server) as daemon:
        box = Locked(daemon, folder, tokens)
        with box.client("admin") as client:
            client.add_voice("ann", daemons.reference_wav(), "Some call me nature.")
        yield box


def status(call: Callable[[], Any], named: str = "") -> str:
    """A call's status, followed by `named` if the message contains it."""
    try:
        call()
    except CallFailed as error:
        return f"{error.status} {named if named in str(error) else ''}".strip()
    return "OK"


SPEAK: Callable[[Client], Any] = lambda client: client.speak("Hi.", "ann", nfe=1)  # noqa: E731
STREAM: Callable[[Client], Any] = lambda client: client.stream("Hi.", "ann", nfe=1).reply()  # noqa: E731
VOICES: Callable[[Client], Any] = lambda client: list(client.voices())  # noqa: E731
DELETE: Callable[[Client], Any] = lambda client: client.remove_voice("nobody")  # noqa: E731
SKIP: Callable[[Client], Any] = lambda client: client.skip("main")  # noqa: E731
QUEUE: Callable[[Client], Any] = lambda client: client.utterances()  # noqa: E731
CANCEL: Callable[[Client], Any] = lambda client: client.cancel("none")  # noqa: E731


DENIED, GUEST = "PERMISSION_DENIED", "UNAUTHENTICATED"


@pytest.mark.parametrize(("token", "expected"), [
    ("", [GUEST] * 7), ("f5_guessed", [GUEST] * 7),
    ("speak", ["OK", "OK", "OK", DENIED, DENIED, "OK", "NOT_FOUND"]),
    ("voices", [DENIED, DENIED, "OK", "NOT_FOUND", DENIED, DENIED, DENIED]),
    ("admin", ["OK", "OK", "OK", "NOT_FOUND", "OK", "OK", "NOT_FOUND"]),
])  # fmt: skip
def test_each_role_has_its_own_rights(locked: Locked, token: str, expected: list[str]) -> None:
    with locked.client(token) as client:
        calls = (SPEAK, STREAM, VOICES, DELETE, SKIP, QUEUE, CANCEL)
        assert [status(lambda call=call: call(client)) for call in calls] == expected


def test_every_method_says_who_may_call_it() -> None:
    from riva.client.proto import riva_tts_pb2

    from appliance.rpc import appliance_pb2
    from appliance.rpc.roles import ROLES

    files = (appliance_pb2.DESCRIPTOR, riva_tts_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    assert set(ROLES) == {method.name for service in services for method in service.methods}


def test_programs_of_the_box_need_no_token(
    locked: Locked, checked: Checked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked.client() as client:
        assert client.health() == "SERVING"
    config, out = locked.config, locked.folder / "out.wav"
    _, found = checked(config, "--only", "daemon,synthesis,listening")
    assert [one["level"] for one in found.values()] == ["PASS"] * 3, found
    monkeypatch.setattr(guard, "SYNTHESES", 1)
    monkeypatch.setenv("F5_SYSROOT", str(locked.folder / "box"))
    assert main(["bench", "guard", "--json", "--config", str(config)]) == 0
    assert "nothing to compare with" in capsys.readouterr().out
    monkeypatch.setattr(paths, "CONFIG", str(config))
    assert main(["say", "Hi.", "--voice", "ann", "--nfe", "1", "-o", str(out)]) == 0 and out.stat().st_size
    assert main(["voices", "list"]) == 0 and "ann" in capsys.readouterr().out
    assert Restart(load(config), Tools())._speak(BUNDLE) == ""
    modules = [path for path in (ROOT / "appliance").glob("*/*.py") if path.parent.name != "client"]
    callers = {path.name for path in modules if " Client(" in (text := path.read_text()) and OWN not in text}
    assert callers == {"listening.py"}, "it calls as bots do"


def test_a_revoked_token_is_refused_at_the_next_call(locked: Locked) -> None:
    token = token_file.add(locked.file, "guest", [Role.SPEAK])
    with locked.client(token) as client:
        stream = iter(client.stream(TEXT, "ann", nfe=1))
        next(stream)
        assert status(lambda: SPEAK(client)) == "OK"
        token_file.revoke(locked.file, "guest")
        assert status(lambda: SPEAK(client)) == "UNAUTHENTICATED"
        assert sum(isinstance(event, Piece) for event in stream) > 1  # the reply goes on to its end


def test_a_spoilt_file_lets_nobody_in_until_it_is_repaired(locked: Locked) -> None:
    whole = locked.file.read_text()
    with locked.client("admin") as client:
        for spoilt in (whole[:-3], "[]", '{"format": 2, "tokens": []}', "null"):
            locked.file.write_text(spoilt)
            assert status(lambda: SPEAK(client)) == "UNAUTHENTICATED"
        locked.file.unlink()
        assert status(lambda: SPEAK(client)) == "UNAUTHENTICATED"
        locked.file.write_text(whole)
        assert status(lambda: SPEAK(client)) == "OK"


def test_plain_text_and_other_authorities_do_not_get_in(
    locked: Locked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme_certificate(tmp_path)
    (tmp_path / "token").write_text(locked.tokens["speak"] + "\n")
    address, right = locked.daemon.address, locked.folder / "tls.crt"
    token = ("--token-file", tmp_path / "token")
    for options, why in (
        ((), f"{address} accepts connections, but answers no call: "),
        (("--authority", tmp_path / "tls.crt"), f"the certificate at {address} is refused: self"),
        (("--authority", right), "a token is needed"),
        (("--authority", right, "--token-file", tmp_path / "none"), f"{tmp_path}/none: No such file"),
        (("--authority", right, *token), ""),
    ):
        assert main(["voices", "list", "--address", address, *map(str, options)]) == bool(why)
        assert f"appliance voices: {why}" in capsys.readouterr().err or not why


def handshake(address: str, *arguments: str) -> tuple[bool, str]:
    """Connect with openssl's client; return if it succeeded, and its output."""
    command = ["openssl", "s_client", "-connect", address, "-alpn", "h2", *arguments]
    done = subprocess.run(
        command, input="", capture_output=True, text=True, errors="replace", timeout=PATIENCE_S
    )
    return "Cipher is (NONE)" not in done.stdout and done.returncode == 0, done.stdout + done.stderr


def test_tls_is_1_2_or_later(locked: Locked) -> None:
    """The daemon refuses older versions, which openssl here could speak."""
    for version, right in (("-tls1_2", True), ("-tls1_3", True), ("-tls1", False), ("-tls1_1", False)):
        spoken, said = handshake(locked.daemon.address, version, "-cipher", "ALL:@SECLEVEL=0")
        assert spoken is right, said
        assert right or re.search("unexpected eof|alert protocol version", said), "openssl itself refused"


def shown(address: str) -> str:
    """The certificate that a server shows."""
    return handshake(address)[1].partition("-----BEGIN")[2].partition("-----END")[0].strip()


def test_a_certificate_is_replaced_under_load(locked: Locked, tmp_path: Path) -> None:
    def speak(client: Client) -> bytes:
        return client.stream(TEXT, "ann", nfe=4, seed=5, segmentation="low_latency").reply().audio

    files = {locked.folder / name: (locked.folder / name).read_bytes() for name in ("tls.crt", "tls.key")}
    with locked.client("speak") as client:
        expected = speak(client)
        before = shown(locked.daemon.address)
        heard: list[bytes | BaseException] = []
        done = threading.Event()

        def load() -> None:
            try:
                while not done.is_set():
                    heard.append(speak(client))
            except BaseException as error:
                heard.append(error)

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            readme_certificate(tmp_path)
            # The files are replaced one by one. In between they do not match, and the daemon keeps the old
            # ones.
            (locked.folder / "tls.crt").write_bytes((tmp_path / "tls.crt").read_bytes())
            assert shown(locked.daemon.address) == before
            (locked.folder / "tls.key").write_bytes((tmp_path / "tls.key").read_bytes())
            after = shown(locked.daemon.address)
            assert after != before
            assert after in (tmp_path / "tls.crt").read_text()
            with locked.client("speak") as other:  # the client trusts the new one
                assert speak(other) == expected
        finally:
            done.set()
            for thread in threads:
                thread.join()
            for file, content in files.items():
                file.write_bytes(content)
        assert len(heard) >= 3
        assert all(audio == expected for audio in heard), heard
    locked.daemon.until("the previous certificate stays in use")


LOCAL = "DNS:localhost,IP:127.0.0.1"


@pytest.mark.parametrize(("days", "names", "refused", "level", "words"), [
    (-1, LOCAL, "certificate has expired", "FAIL", "expired on 20"),
    (10, LOCAL, "", "WARN", "ends on 20"),
    (60, LOCAL, "", "PASS", "as localhost, 127.0.0.1 until 20"),
    (60, "DNS:elsewhere.lan", "it does not name this address", "WARN", "is for elsewhere.lan, not for"),
    (60, f"{LOCAL},IP:192.0.2.254", "", "WARN", "is for 192.0.2.254, not for"),
])  # fmt: skip
def test_a_certificate_and_the_finding_on_it(
    locked: Locked, tmp_path: Path, checked: Checked, capsys: Any, days: int, names: str, refused: str,
    level: str, words: str,
) -> None:  # fmt: skip
    files = [locked.folder / name for name in ("tls.crt", "tls.key")]
    before = [file.read_bytes() for file in files]
    authority(tmp_path)
    (tmp_path / "names").write_text(f"subjectAltName={names}")
    signed(tmp_path, "tls", days, "-extfile", "names")
    try:
        for file in files:
            file.write_bytes((tmp_path / file.name).read_bytes())
        root, token = tmp_path / "ca.crt", tmp_path / "token"
        token.write_text(locked.tokens["speak"])
        listing = ["voices", "list", "--authority", str(root), "--token-file", str(token)]
        assert main([*listing, "--address", locked.daemon.address]) == int(bool(refused))
        assert refused in capsys.readouterr().err
        found = checked(locked.config, "--only", "listening")[1]["listening"]
        assert found["level"] == level and words in found["value"], found
    finally:
        for file, content in zip(files, before, strict=True):
            file.write_bytes(content)


@pytest.mark.parametrize(("setting", "check", "words"), [
    ("server.tokens={folder}/none.json", "listening", "may speak: no bot gets in"),
    ("server.tokens=", "listening", "a token is needed"),
    ("server.listen=127.0.0.1:1", "listening", "Connection refused"),
    ("server.tls_certificate={folder}/ca.crt", "listening", "another certificate than"),
    ("server.socket=", "daemon", "server.socket: is empty"),
    ("server.socket={folder}/none.sock", "daemon", "no daemon answers"),
])  # fmt: skip
def test_check_names_bad_settings_of_access(
    locked: Locked, checked: Checked, setting: str, check: str, words: str
) -> None:
    authority(locked.folder)
    options = ("--only", check, "--set", setting.format(folder=locked.folder))
    found = checked(locked.config, *options)[1][check]
    assert found["level"] == "FAIL" and words in found["value"], found


def test_a_peer_has_its_share_of_calls(locked: Locked) -> None:
    with locked.client("admin") as client, locked.client("speak") as other:
        client.pause("held")
        streams = [client.stream("Hi.", "ann", nfe=1, channel="held", priority="bulk") for _ in range(4)]
        while len(client.utterances("held")) < 4:
            time.sleep(0.01)
        with pytest.raises(CallFailed, match="4 calls of token admin are under way") as refused:
            SPEAK(client)
        assert (refused.value.status, refused.value.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_CALLS")
        assert status(lambda: SPEAK(other)) == "OK"
        client.resume("held")
        assert all(stream.reply().audio for stream in streams)


def test_clients_certificates(tmp_path: Path) -> None:
    readme_certificate(tmp_path)
    for name in ("ca", "other"):
        authority(tmp_path, name)
    signed(tmp_path, "bot", 5)
    signed(tmp_path, "late", -1)
    server = {f"tls_{key}": str(tmp_path / file) for key, file in CLIENTS.items()}
    with running(tmp_path, server=server) as daemon:
        box = Locked(daemon, tmp_path, {})

        def served(name: str) -> str:
            pair = {end: (tmp_path / f"{name}.{short}").read_bytes() for end, short in ENDS.items() if name}
            with box.client(**pair) as client:
                return status(lambda: VOICES(client))

        assert served("bot") == "OK"
        assert [served(name) for name in ("", "late", "other")] == ["UNAVAILABLE"] * 3


CLIENTS = {"certificate": "tls.crt", "key": "tls.key", "clients": "ca.crt"}
ENDS = {"certificate": "crt", "key": "key"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate with its key, another key, and the first key with a password."""
    folder = tmp_path_factory.mktemp("keys")
    readme_certificate(folder)
    openssl(folder, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "other.key")
    openssl(folder, "pkey", "-in", "tls.key", "-aes256", "-passout", "pass:x", "-out", "secret.key")
    return folder


@pytest.mark.parametrize(("server", "message"), [
    ({"tls_certificate": "none.crt", "tls_key": "tls.key"}, "none.crt: No such file or directory"),
    ({"tls_certificate": "tls.key", "tls_key": "tls.crt"}, "are not a PEM certificate and its key"),
    ({"tls_certificate": "tls.crt", "tls_key": "other.key"}, "KEY_VALUES_MISMATCH"),
    ({"tls_certificate": "tls.crt", "tls_key": "secret.key"}, "the key has a password"),
])  # fmt: skip
def test_unusable_certificates_are_refused_at_start(
    tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str], server: dict[str, str], message: str
) -> None:
    paths = {key: str(keys / value) if key.startswith("tls") else value for key, value in server.items()}
    assert daemon.main(daemons.write_config(tmp_path, server=paths), []) == daemon.Exit.CONFIG
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("server", "message"), [
    ({"listen": "[::]:0"}, "set tls_certificate and tls_key, or write the line `open_to_network: true`"),
    ({"listen": "voicebox.local:0"}, "can be reached from the network"),
    ({"tls_certificate": "tls.crt"}, "tls_certificate and tls_key: set both or neither"),
    ({"tls_clients": "tls.crt"}, "tls_clients: needs tls_certificate and tls_key"),
])  # fmt: skip
def test_an_open_address_or_half_a_pair_is_refused(server: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ServerConfig(**server)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::1]", "0.0.0.0"])
def test_loopback_needs_no_lock_and_plain_text_to_the_network_is_an_explicit_line(host: str) -> None:
    ServerConfig(listen=f"{host}:50051", open_to_network=host == "0.0.0.0")


def test_tokens_are_added_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "tokens.json"
    place = ["--set", f"server.tokens={file}"]
    assert main(["tokens", "add", "bot", "--role", "speak", "--role", "voices", *place]) == 0
    token = capsys.readouterr().out.strip()
    assert re.fullmatch(r"f5_[A-Za-z0-9_-]{43}", token) and token[3:] not in file.read_text()
    assert main(["tokens", "add", "bot", *place]) == 1
    assert "a token is named 'bot' already" in capsys.readouterr().err
    assert main(["tokens", "list", "--file", str(file)]) == 0
    assert re.fullmatch(r"bot +speak, voices +made 20.*\n", capsys.readouterr().out)
    tokens = token_file.Tokens(file)
    assert tokens.find(token) is not None
    assert main(["tokens", "revoke", "bot", *place]) == 0
    assert tokens.find(token) is None
    assert main(["tokens", "revoke", "bot", *place]) == 1
    assert "no token is named 'bot'; there are: none" in capsys.readouterr().err
    assert main(["tokens", "add", "../bot", *place]) == 1
    assert main(["tokens", "list"]) == 1
    assert "server.tokens is empty" in capsys.readouterr().err


async def test_a_session_sends_the_token(locked: Locked) -> None:
    from appliance.client import AsyncClient

    authority = (locked.folder / "tls.crt").read_bytes()
    credentials = Credentials(authority, locked.tokens["speak"])
    async with AsyncClient(locked.daemon.address, credentials) as client:
        session = client.session("ann", nfe=1)
        await session.say("Hello, chat.")
        await session.close()
        assert any([isinstance(event, Piece) async for _, event in session])
    async with AsyncClient(locked.daemon.address, Credentials(authority), own_connection=True) as stranger:
        session = stranger.session("ann", nfe=1)
        with pytest.raises(CallFailed) as refused:
            await session.say("Hello, chat.")
        # grpc.aio reports INTERNAL if a write fails before the refusal has been read.
        assert refused.value.status in (grpc.StatusCode.UNAUTHENTICATED.name, grpc.StatusCode.INTERNAL.name)


def test_rivas_clients_need_the_token_of_one_who_speaks(locked: Locked) -> None:
    from riva.client.proto import riva_tts_pb2, riva_tts_pb2_grpc

    authority = grpc.ssl_channel_credentials((locked.folder / "tls.crt").read_bytes())
    with grpc.secure_channel(locked.daemon.address, authority) as channel:
        stub = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(channel)
        request, question = (
            riva_tts_pb2.SynthesizeSpeechRequest(text="Hi.", voice_name="F5.ann"),
            riva_tts_pb2.RivaSynthesisConfigRequest(),
        )
        calls: tuple[Callable[[Any], Any], ...] = (
            lambda shown: stub.Synthesize(request, metadata=shown),
            lambda shown: list(stub.SynthesizeOnline(iter([request]), metadata=shown)),
            lambda shown: stub.GetRivaSynthesisConfig(question, metadata=shown),
        )
        for token, refusal in (("speak", ""), ("admin", ""), ("voices", DENIED), ("f5_guessed", GUEST)):
            shown = [("authorization", f"Bearer {locked.tokens.get(token, token)}")]
            for call in calls:
                if not refusal:
                    call(shown)
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    call(shown)
                assert refused.value.code().name == refusal
