"""Programs that others wrote, unmodified, against the gateway: pipelines of voice agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.client import Client
from tests.daemons import running
from tests.gateway.conftest import Gateway, gateway_of
from tests.interop.environments import interpreter, run
from tests.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

WRITTEN = ["Hello,", "my", "5", "friends.", "Welcome", "to", "the", "stream."]
SPOKEN = ["Hello,", "my", "five", "friends.", "Welcome", "to", "the", "stream."]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("agents")) as daemon:
        daemon.add_voice()
        with gateway_of(daemon) as gateway:
            yield gateway


def test_pipecat(gateway: Gateway) -> None:
    told = run(interpreter("clients"), "pipecat_elevenlabs.py", gateway.address)
    for way in ("spoken", "written", "http"):
        assert told[way]["errors"] == [] and told[way]["rate"] == 24_000
        assert told[way]["words"] == WRITTEN
        assert told[way]["bytes"] > 48_000 and told[way]["frames"] > 1 and told[way]["stopped"] == 1
    assert told["interrupted"]["errors"] == [] and told["interrupted"]["bytes"] > 0
    free(gateway)


def test_livekit(gateway: Gateway) -> None:
    told = run(interpreter("clients"), "livekit_elevenlabs.py", gateway.address)
    assert told["voices"] == ["ann"]
    assert told["whole"]["seconds"] > 0.5
    assert told["written"]["rate"] == 24_000 and told["written"]["seconds"] > 1.0
    assert [word.strip() for word, _ in told["written"]["words"]] == SPOKEN
    assert told["together"] == [told["written"]["seconds"]] * 2
    assert told["mp3"] == pytest.approx(told["written"]["seconds"], abs=0.2)
    free(gateway)


def free(gateway: Gateway) -> None:
    """Wait until nothing is spoken for who has left."""
    with Client(gateway.daemon.address) as client:
        until(lambda: not client.utterances())
