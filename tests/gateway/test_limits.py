"""uvicorn's protocols, methods of which the limits replace."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from appliance.config import GatewayConfig
from appliance.errors import ConfigError
from appliance.gateway import limits

REQUIREMENTS = Path(__file__).parents[2] / "scripts/requirements"


@pytest.mark.parametrize("lock", ["device.txt", "ort-cuda.txt"])
def test_they_were_written_for_the_version_that_is_installed(lock: str) -> None:
    """With another in the lock, read what changed in its protocols, and then name it here."""
    assert f"uvicorn=={limits.TRIED}" in (REQUIREMENTS / lock).read_text().splitlines()


def test_a_newer_one_is_taken_if_it_has_what_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "__version__", "99.0")
    assert issubclass(limits.limited(GatewayConfig(stall_s=3))["ws"], limits.LimitedSocket)
    monkeypatch.delattr(WSProtocol, "handle_message")
    with pytest.raises(ConfigError, match=r"uvicorn 99\.0 does not fit: WSProtocol has no handle_message"):
        limits.limited(GatewayConfig())
