"""Addresses of other machines, and addresses that this machine does not have yet."""

import socket
from pathlib import Path

import pytest

from appliance.errors import AddressInUse, AddressNotOurs, cannot_listen
from appliance.serve.daemon import Exit, main
from appliance.serve.network import await_addresses
from appliance.serve.notify import Notifier
from tests.fakes.jetson.board import Clock
from tests.harness.daemons import write_config

ELSEWHERE = "192.0.2.1:50051"
"""An address that no machine has (RFC 5737)."""


def waited_s(clock: Clock, **keys: str) -> float:
    begun = clock.uptime_s
    await_addresses(keys, Notifier(), within_s=60.0, clock=lambda: clock.uptime_s, sleep=clock.advance)
    return clock.uptime_s - begun


def test_the_wait_for_an_address_is_bounded() -> None:
    assert waited_s(Clock(), listen="127.0.0.1:1", other=ELSEWHERE) == 60.0
    assert waited_s(Clock(), one=ELSEWHERE, two=ELSEWHERE) == 60.0, "not each of them anew"


@pytest.mark.parametrize("address", ["", "127.0.0.1:0", "0.0.0.0:0", "[::]:0", "no.such.host.invalid:1"])
def test_hopeless_addresses_are_not_waited_for(address: str) -> None:
    assert waited_s(Clock(), listen=address) == 0.0


def test_a_busy_port_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert waited_s(Clock(), listen=f"127.0.0.1:{taken.getsockname()[1]}") == 0.0


def refused(address: tuple[str, int]) -> OSError:
    with socket.socket() as probe, pytest.raises(OSError, match=r".*") as caught:
        probe.bind(address)
    return caught.value


def test_the_kernel_tells_busy_from_foreign_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = cannot_listen("server.listen", "a:1", refused(("127.0.0.1", taken.getsockname()[1])))
    assert isinstance(error, AddressInUse) and "in use" in str(error)
    error = cannot_listen("server.listen", ELSEWHERE, refused(("192.0.2.1", 0)))
    assert isinstance(error, AddressNotOurs)
    assert str(error) == f"server.listen: cannot listen on {ELSEWHERE}: this machine has no such address"


def test_the_daemon_ends_after_the_bound_with_its_own_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(await_addresses, "__kwdefaults__", {**await_addresses.__kwdefaults__, "within_s": 0})
    config = write_config(tmp_path, server={"listen": ELSEWHERE, "open_to_network": True})
    assert main(config, []) == Exit.ADDRESS_NOT_OURS
    assert "this machine has no such address" in capfd.readouterr().err
