"""Limits of connections: the replaced methods of uvicorn's protocols, and places."""

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState

from appliance.access import token_file
from appliance.access.places import CallerPlace, CallerPlaces, HttpConnection
from appliance.access.token_file import Role, Tokens
from appliance.config import GatewayConfig
from appliance.errors import ConfigError
from appliance.gateway import limits
from appliance.gateway.authorisation import KEY_FOLLOWS, AccessMiddleware

REQUIREMENTS = Path(__file__).parents[2] / "scripts/requirements"


@pytest.mark.parametrize("lock", ["device.txt", "ort-cuda.txt"])
def test_they_were_written_for_the_version_that_is_installed(lock: str) -> None:
    """If the lock names another version, read the changes of its protocols, then name the version here."""
    assert f"uvicorn=={limits.TRIED}" in (REQUIREMENTS / lock).read_text().splitlines()


def test_a_newer_version_is_accepted_if_it_has_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "__version__", "99.0")
    assert issubclass(limits.limited(GatewayConfig(stall_s=3))["ws"], limits.LimitedSocket)
    monkeypatch.delattr(WSProtocol, "handle_message")
    with pytest.raises(ConfigError, match=r"uvicorn 99\.0 does not fit: WSProtocol has no handle_message"):
        limits.limited(GatewayConfig())


async def test_a_websocket_may_be_silent_is_cut_off_unread_and_ends_its_timer() -> None:
    settings, transport = limits.limited(GatewayConfig()), Mock()
    protocol = settings["http"](uvicorn.Config(Mock(), **settings), ServerState(), {})
    protocol.connection_made(transport)
    keys = b"connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA=="
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n" + keys + b"\r\n\r\n")
    for unsent in (0, 0, 9, 8, 8):
        assert not transport.abort.called
        transport.get_write_buffer_size.return_value = unsent
        protocol._check_progress()
    assert transport.abort.called
    transport.set_protocol.call_args.args[0].connection_lost(None)
    assert protocol._timer.cancelled() and not protocol._places._in_use


async def test_a_websocket_gives_way_until_its_key_has_come(tmp_path: Path) -> None:
    token, is_idle = token_file.add(tmp_path / "tokens", "bot", [Role.SPEAK]), list[bool]()

    async def app(scope: Any, *_: object) -> None:
        for key in ("f5_no", token):
            refusals.append(scope[KEY_FOLLOWS](key))
            is_idle.extend(place.is_idle() for place in door._requests._in_use)

    refusals, door = list[object](), AccessMiddleware(app, Tokens(tmp_path / "tokens"), 8)
    scope = {"type": "websocket", "path": "/v1/stream-input", "headers": [], "query_string": b""}
    state = {"connection": HttpConnection("address", bool, bool, bool)}
    await door({**scope, "client": None, "state": state}, Mock(), Mock())
    assert is_idle == [True, False] and refusals[0] and refusals[1] is None


def test_a_caller_leaves_an_eighth_to_others_and_idle_places_give_way() -> None:
    closed: list[str] = []

    def take(places: CallerPlaces, caller: str, *, idle: bool) -> int:
        close = partial(closed.append, caller)
        return sum(places.take(CallerPlace(caller, lambda: idle, close)) for _ in range(places.most))

    busy, silent = CallerPlaces(64), CallerPlaces(64)
    assert [take(busy, caller, idle=False) for caller in "abca"] == [56, 4, 2, 0]
    assert not closed
    assert [take(silent, caller, idle=True) for caller in "ab"] == [64, 64]
    # Connections of the other caller close until both callers have the same number.
    assert closed[:8] == ["a"] * 8 and 32 <= closed.count("a") <= 40
