"""First sound of a caller while each kind of hostile caller (`harness.hostile`) floods the demo's daemon.

python -m tests.measure.hostile [KIND...]
"""

import http.client
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from appliance.access import token_file
from appliance.access.token_file import Role
from appliance.bench.outcome import READ_S, check_first_audio
from appliance.client import CallFailed, Client, Credentials
from tests.gateway.conftest import Gateway, gateway_of
from tests.harness.daemons import DEMO, SPEECH, resident, running
from tests.harness.hostile import DOORSTEPS, FLOODS, VOICES, attacking
from tests.harness.patience import PATIENCE_S

IDLE, HEARD_S, SETTLED_S = 9, 5.0, 2.5
"""Lines on the idle daemon; seconds of lines during a flood; seconds of silence before either."""
READ = int(READ_S * 24_000) * 2
"""Bytes of PCM16 that a blocking read waits for."""


def first_s(client: Client) -> float:
    """Seconds to the first sound of a line; infinite if it is refused."""
    try:
        return client.stream("Hello there, my friend.", "ann").reply().first_audio_s
    except CallFailed as error:
        print(error, file=sys.stderr)
        return math.inf


def first_http_s(gateway: Gateway, token: str, measured: list[tuple[float, float]]) -> float:
    """Seconds to the first sound of a line at the gateway; infinite if it is refused.

    `measured` gets the arrivals of the first byte and of READ bytes.
    """
    begun, connection = time.monotonic(), http.client.HTTPConnection(gateway.address, timeout=PATIENCE_S)
    try:
        line = {"input": "Hello there, my friend.", "voice": "ann", "response_format": "pcm"}
        connection.request("POST", "/v1/audio/speech", json.dumps(line), {"xi-api-key": token})
        answer = connection.getresponse()
        if answer.status != 200 or not answer.peek(1):
            return math.inf
        first_s = time.monotonic() - begun
        answer.read(READ)
        measured.append((first_s, time.monotonic() - begun))
        return first_s
    except OSError:
        return math.inf
    finally:
        connection.close()


def main(kinds: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        tokens = Path(name) / "tokens.json"
        bot, friend = (token_file.add(tokens, who, [Role.SPEAK]) for who in ("bot", "friend"))
        admin = token_file.add(tokens, "admin", list(Role))
        server = {"tokens": str(tokens)}
        with running(Path(name), speaks_from=DEMO / "bundle", server=server) as daemon:
            with Client(daemon.address, Credentials(token=admin)) as client:
                text, audio = SPEECH.with_suffix(".txt").read_text().strip(), SPEECH.read_bytes()
                for voice in ("ann", *(f"v{number}" for number in range(VOICES))):
                    client.add_voice(voice, audio + voice.encode(), text)
                client.moderate("moderated")
            print("| beside | P50 idle | P50, P95 beside, times | refused | door |\n|---|---|---|---|---|")
            own = Credentials(token=friend)
            with Client(daemon.address, own, retries=0) as client, gateway_of(daemon) as gateway:
                for kind in kinds or (*FLOODS, *DOORSTEPS):
                    is_http = kind in DOORSTEPS
                    door = gateway if is_http else daemon
                    measured = list[tuple[float, float]]()
                    at_http = partial(first_http_s, gateway, friend, measured)
                    first = at_http if is_http else partial(first_s, client)
                    time.sleep(SETTLED_S)
                    idle_s = statistics.median([first() for _ in range(IDLE)])
                    before = resident(door.process.pid)
                    with attacking(kind, door.address, bot):
                        time.sleep(SETTLED_S)
                        end, beside = time.monotonic() + HEARD_S, [first()]
                        while time.monotonic() < end:
                            beside.append(first())
                        grown = resident(door.process.pid) - before
                    p50, p95 = (sorted(beside)[int(len(beside) * part)] / idle_s for part in (0.5, 0.95))
                    check_first_audio(measured)
                    refused = f"{beside.count(float('inf'))} of {len(beside)}"
                    print(
                        f"| {kind} | {idle_s:.3f} s | {p50:.1f}, {p95:.1f} | {refused} | {grown >> 20:+} MB |"
                    )


if __name__ == "__main__":
    main(sys.argv[1:])
