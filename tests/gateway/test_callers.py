"""The caller that the gateway names to the daemon, recorded by a server that answers nothing."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from appliance.access import token_file
from appliance.access.token_file import Role
from tests.gateway.conftest import Gateway, gateway_of
from tests.gateway.sockets import Refused, connected
from tests.gateway.test_wyoming import event, wyoming_of
from tests.harness.daemons import Running, free_port, write_config
from tests.harness.patience import until
from tests.harness.rows import rows

pytestmark = pytest.mark.slow

CALLS = {key: row for key, *row in rows(__file__, "calls.jsonl")}
"""Method → path and body of a request that calls it."""
WRITTEN = "/v1/text-to-speech/ann/stream-input"


@dataclass
class Recorder(grpc.ServerInterceptor):  # type: ignore[misc]
    """Implements no method, and records the caller of each call."""

    callers: list[tuple[str, str | None]] = field(default_factory=list)
    bearers: set[str | None] = field(default_factory=set)

    def intercept_service(self, go_on: Any, details: Any) -> Any:
        method = "/".join(details.method.replace("/", ".").split(".")[-2:])
        metadata = dict(details.invocation_metadata)
        self.callers.append((method, metadata.get("x-f5-caller")))
        self.bearers.add(metadata.get("authorization"))
        return go_on(details)


@contextmanager
def recorded(folder: Path, **server: str) -> Iterator[tuple[Gateway, Recorder]]:
    recorder = Recorder()
    grpc_server = grpc.server(ThreadPoolExecutor(4), interceptors=(recorder,))
    address = f"127.0.0.1:{free_port()}"
    grpc_server.add_insecure_port(address)
    grpc_server.start()
    config = yaml.safe_load(write_config(folder, server={**server, "listen": address}).read_text())
    absent = Running(None, config, folder)  # type: ignore[arg-type]
    try:
        with gateway_of(absent, daemon=address) as gateway:
            yield gateway, recorder
    finally:
        grpc_server.stop(None)


def test_every_call_names_the_token_or_the_address(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = token_file.add(tokens, "stage.bot-1", [Role.ADMIN])
    with recorded(tmp_path, tokens=str(tokens)) as (gateway, recorder):
        for method, (path, sent) in CALLS.items():
            gateway.ask(path, sent, authorization=f"Bearer {token}")
            # A request may make two calls at once; the first failure is the answer.
            until(lambda call=(method, "token stage.bot-1"): call in recorder.callers)
        # The status page's memory of all requests has no caller.
        until(lambda: ("Queue/WatchQueue", None) in recorder.callers)
        assert {caller for _, caller in recorder.callers} == {"token stage.bot-1", None}
        assert {method for method, caller in recorder.callers if caller is None} == {"Queue/WatchQueue"}
        assert recorder.bearers == {f"Bearer {token}"}
        assert gateway.ask("/tts?text=Hi.").status == gateway.ask("/tts?text=Hi.&token=f5_no").status == 401
        for shown in ({"xi_api_key": token}, {"authorization": f"Bearer {token}"}):
            with pytest.raises(Refused), connected(gateway.address, WRITTEN, **shown):
                pass
        for key, code in ((token, "unimplemented"), ("f5_no", "unauthenticated")):
            with connected(gateway.address, WRITTEN) as socket:
                socket.send({"text": " ", "xi_api_key": key})
                assert next(socket)["code"] == code
        assert recorder.callers[-3:] == [("Voices/GetVoice", "token stage.bot-1")] * 3
        assert len(recorder.bearers) == 1
        gateway.ask(f"/readyz?token={token}")
        gateway.ask("/readyz")
        assert [call for call in recorder.callers if call[0] == "Health/Check"][1:] == [
            ("Health/Check", "token stage.bot-1"),
            ("Health/Check", "http 127.0.0.1"),
        ]


def test_the_caller_without_tokens_is_an_address(tmp_path: Path) -> None:
    with recorded(tmp_path) as (gateway, recorder):
        for path, sent in CALLS.values():
            gateway.ask(path, sent, authorization="Bearer any")
        until(lambda: {method for method, _ in recorder.callers} == set(CALLS))
        assert {caller for _, caller in recorder.callers} - {None} == {"http 127.0.0.1"}


def test_wyomings_caller_is_an_address(tmp_path: Path) -> None:
    with recorded(tmp_path) as (gateway, recorder), wyoming_of(gateway.daemon) as program:
        assert [one["type"] for one in program.events(event("describe"))] == ["error"]
        assert recorder.callers == [("Voices/ListVoices", "wyoming 127.0.0.1")]
