"""Unmodified programs by other authors, against a running daemon on the tiny bundle."""

import base64
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from appliance.client import Client, Credentials
from tests.harness import daemons
from tests.harness.daemons import ROOT, Running, finished
from tests.harness.patience import PATIENCE_S, until
from tests.interop.environments import CLIENTS, interpreter, node_modules, run
from tests.test_lock import CLIENTS as PAIRS
from tests.test_lock import KEY, openssl, readme_certificate, signed

# A single Python is enough: the clients' behaviour does not depend on our version.
pytestmark = [pytest.mark.slow, pytest.mark.once]

REFUSED = "INVALID_ARGUMENT"
RIVA = "nvidia.riva.tts.RivaSpeechSynthesis"
GAUGE = "f5_requests_now"
NO_VOICE = "Model is not available on server: Voice foo for language en-US not found."


daemon = daemons.shared()


def prompt(folder: Path, seconds: float) -> Path:
    """A new file, which no earlier test has sent."""
    path = folder / "prompt.wav"
    path.write_bytes(daemons.reference_wav(seconds))
    return path


def check_calls(told: dict[str, Any], *, is_new: bool) -> None:
    assert told["voices"] == {"en-US": {"voices": ["F5.ann"]}}
    assert told["unary"] > 44_100 // 2
    assert told["stream"]["bytes"] > told["unary"] and told["stream"]["replies"] > 1
    assert told["stream"]["first"] > 0
    assert told["wrong voice"] == [REFUSED, NO_VOICE]
    assert told["empty"][0] == told["rate"][0] == told["unknown prompt"][0] == REFUSED
    assert told["unknown prompt"][1].startswith("zero_shot_data.transcript: is needed")
    assert told["zero-shot unary"] > 10_000 and told["zero-shot stream"]["bytes"] > 10_000
    assert ("two lines" in told) == is_new
    if is_new:
        assert told["two lines"]["bytes"] > 1.5 * told["unary"]
        assert told["words"] == ["Hello,", "chat."]
        assert told["dictionary"] == "Ask Anna."


@pytest.mark.parametrize(("environment", "seconds"), [("clients", 2.1), ("riva-old", 2.2)])
def test_nvidia_riva_client(daemon: Running, tmp_path: Path, environment: str, seconds: float) -> None:
    told = run(interpreter(environment), "riva_calls.py", daemon.address, prompt(tmp_path, seconds))
    check_calls(told, is_new=environment == "clients")


def test_nvidia_riva_client_with_a_certificate(tmp_path: Path) -> None:
    python = interpreter("clients")
    readme_certificate(tmp_path)
    openssl(tmp_path, *KEY, "-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    signed(tmp_path, "bot", 5)
    server = {f"tls_{key}": str(tmp_path / file) for key, file in PAIRS.items()}
    files = [tmp_path / name for name in ("tls.crt", "bot.crt", "bot.key", "ca.crt")]
    with daemons.running(tmp_path, server=server) as daemon:
        address = f"localhost:{daemon.address.rpartition(':')[2]}"
        pair = {"certificate": files[1].read_bytes(), "key": files[2].read_bytes()}
        with Client(address, Credentials(files[0].read_bytes(), **pair)) as client:
            client.add_voice("ann", daemons.reference_wav(), "Some call me nature.")
        told = run(python, "riva_calls.py", address, prompt(tmp_path, 2.3), *files[:3])
    check_calls(told, is_new=True)


@pytest.mark.parametrize("environment", ["clients", "riva-old"])
def test_ctrl_c_leaves_the_engine_idle(daemon: Running, environment: str) -> None:
    command = [interpreter(environment), CLIENTS / "riva_endless.py", daemon.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "sounding\n"
        logged = len(daemon.lines)
        client.send_signal(signal.SIGINT)
        client.communicate(timeout=PATIENCE_S)
    until(
        lambda: "the call was cancelled" in "".join(daemon.lines[logged:]) and idle(daemon),
        lambda: "".join(daemon.lines[logged:]),
    )


def idle(daemon: Running) -> bool:
    """True if no request waits or runs."""
    _, page = daemon.http("/metrics")
    gauges = dict(line.split() for line in page.splitlines() if line.startswith(GAUGE + "{"))
    assert len(gauges) >= 2, page
    return not any(map(float, gauges.values()))


def test_opus_packets_are_what_an_opus_decoder_reads(daemon: Running) -> None:
    told = run(interpreter("clients"), "riva_opus.py", daemon.address)
    assert told["packets"] > 10 and told["seconds"] == pytest.approx(0.02 * told["packets"], abs=0.03)
    assert told["peak"] > 0.001


def test_pipecat(daemon: Running, tmp_path: Path) -> None:
    python, file = interpreter("clients"), tmp_path / "prompt.wav"
    # The voice's recording has a stored transcript, which Pipecat cannot send.
    file.write_bytes(daemons.reference_wav())
    told = run(python, "pipecat_says.py", daemon.address, file)
    for way in ("per_sentence", "stitched", "zero-shot"):
        assert told[way]["errors"] == []
        assert told[way]["bytes"] > 24_000 and told[way]["frames"] > 1


def test_livekit(daemon: Running) -> None:
    told = run(interpreter("clients"), "livekit_says.py", daemon.address)
    assert told["voices"] == {"en-US": {"voices": ["F5.ann"]}}
    assert told["whole"]["rate"] == 16_000
    assert told["whole"]["seconds"] > 0.5 and told["stream"] > 0.5


def test_grpc_js(daemon: Running) -> None:
    modules = node_modules()
    proto = ROOT / "appliance" / "rpc" / "appliance.proto"
    told = run("node", "grpc_js.js", daemon.address, proto, modules)
    assert told["bytes"] > 10_000 and told["same"]
    assert told["session"]["bytes"] > 10_000 and told["session"]["ends"] == 1
    assert told["refusal"][0] == 5 and "foo" in told["refusal"][1]


def buf_curl(*options: object) -> str:
    """Output of `buf curl`, which gets the daemon's services by reflection."""
    buf = (node_modules() / ".bin" / "buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge")
    done = finished(*buf, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("method", "message"), [
    ("appliance.v1.Synthesizer/Synthesize", {"text": "Hello.", "voice": "ann"}),
    (f"{RIVA}/Synthesize", {"text": "Hello.", "voiceName": "F5.ann"}),
])  # fmt: skip
def test_buf_curl_by_reflection(daemon: Running, method: str, message: dict[str, str]) -> None:
    told = buf_curl("--data", json.dumps(message), f"http://{daemon.address}/{method}")
    assert len(base64.b64decode(json.loads(told)["audio"])) > 5_000


def test_buf_names_every_service(daemon: Running) -> None:
    told = buf_curl("--list-services", f"http://{daemon.address}").split()
    assert {"appliance.v1.Queue", "appliance.v1.Synthesizer", "appliance.v1.Voices", RIVA} <= set(told)
