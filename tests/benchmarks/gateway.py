"""First sound through the HTTP gateway against gRPC's, and what readers that do not read cost the others.

    python -m tests.benchmarks.gateway [--address 127.0.0.1:50051] [--http 127.0.0.1:8880] [--cached] [--slow]
                                       [--written]

With --written it is texts that come word by word, over a WebSocket against gRPC's session. With --cached
the lines come from memory, not the engine: what is left is what the two ways add themselves.

Needs a running daemon and gateway that do nothing else. Both ways take turns, and each begins a pair every
second time, since a line that follows another finds warm caches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Mapping

import numpy as np

from appliance.client import ADDRESS, AsyncClient
from tests.benchmarks.session import TEXTS, whole_s, written_s
from tests.gateway.sockets import connected

TEXT = "Thanks for the follow, and welcome to the stream."
LONG = "It was a long way to the top of the hill, and nobody had brought any water. " * 20
SLOW = 50
PACE = 20.0
"""Words a second."""


def grpc_s(client: AsyncClient, voice: str, seed: int) -> Awaitable[float]:
    return whole_s(client, voice, TEXT, seed, rate=24_000, playout="overlap")


def openai_request(voice: str, **more: object) -> bytes:
    body = json.dumps({"input": TEXT, "voice": voice, "response_format": "pcm", **more}).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def http_s(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, voice: str, seed: int) -> float:
    """Seconds to the first bytes of the body, over a connection that is open already."""
    begun, first_s = time.perf_counter(), 0.0
    writer.write(openai_request(voice, seed=seed))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
        first_s = first_s or time.perf_counter() - begun
    await reader.readline()
    return first_s


def hold(address: str, voice: str) -> socket.socket:
    """Connection that requests a long text and reads nothing."""
    host, port = address.split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect((host, int(port)))
    connection.sendall(openai_request(voice, input=LONG, priority="bulk"))
    return connection


async def compare(address: str, http: str, voice: str, rounds: int, cached: bool) -> None:
    reader, writer = await asyncio.open_connection(*http.split(":"))
    ways: dict[str, list[float]] = {"gRPC": [], "HTTP": []}
    async with AsyncClient(address) as client:
        await grpc_s(client, voice, 1)
        await http_s(reader, writer, voice, 2)
        for number in range(rounds):
            seeds = (1, 2) if cached else (10 + 2 * number, 11 + 2 * number)
            calls = [("gRPC", grpc_s(client, voice, seeds[0]))]
            calls.append(("HTTP", http_s(reader, writer, voice, seeds[1])))
            for name, call in calls if number % 2 else reversed(calls):
                ways[name].append(await call)
    tell(ways)
    writer.close()
    await writer.wait_closed()


def tell(ways: Mapping[str, list[float]]) -> None:
    (one, ones), (other, others) = ways.items()
    print(f"{'first sound, ms':<16} {'P50':>7} {'P95':>7}")
    difference = {f"{other} − {one}": [b - a for a, b in zip(ones, others, strict=True)]}
    for name, times in {**ways, **difference}.items():
        middle, high = np.percentile(times, (50, 95)) * 1e3
        print(f"{name:<16} {middle:7.1f} {high:7.1f}")


def websocket_s(http: str, voice: str, text: str, seed: int) -> float:
    """Seconds from first word to first sound of a text over a WebSocket."""
    path = f"/v1/text-to-speech/{voice}/stream-input?output_format=pcm_24000&seed={seed}"
    with connected(http, path) as written:
        begun, first_s = time.perf_counter(), 0.0

        def write() -> None:
            for number, word in enumerate(text.split()):
                time.sleep(max(0.0, begun + number / PACE - time.perf_counter()))
                written.send({"text": f"{word} "})
            written.send({"text": ""})

        writing = threading.Thread(target=write)
        writing.start()
        for message in written:
            if message["audio"] and not first_s:
                first_s = time.perf_counter() - begun
        writing.join()
    return first_s


async def compare_written(address: str, http: str, voice: str, rounds: int) -> None:
    ways: dict[str, list[float]] = {"session": [], "WebSocket": []}
    async with AsyncClient(address) as client:
        for number in range(-2, rounds):
            text = TEXTS[number % len(TEXTS)]
            seeds = 2 * (number + 2), 2 * (number + 2) + 1  # what was spoken before is in the daemon's memory
            calls = [("session", written_s(client, voice, text, seeds[0], PACE))]
            calls.append(("WebSocket", asyncio.to_thread(websocket_s, http, voice, text, seeds[1])))
            for name, call in calls if number % 2 else reversed(calls):
                first_s = await call
                if number >= 0:
                    ways[name].append(first_s)
    tell(ways)


async def beside_slow_readers(address: str, http: str, voice: str, rounds: int) -> None:
    """Print the first sound of others before and while SLOW clients read nothing."""
    async with AsyncClient(address) as client:
        before = [await grpc_s(client, voice, 1_000 + n) for n in range(rounds)]
        held = [hold(http, voice) for _ in range(SLOW)]
        try:
            # Until what they asked for is made, or set aside: from then on only their not reading is left.
            while any(u.state == 1 for u in await client.utterances()):
                await asyncio.sleep(0.5)
            during = [await grpc_s(client, voice, 2_000 + n) for n in range(rounds)]
        finally:
            for connection in held:
                connection.close()
    a, b = statistics.median(before), statistics.median(during)
    print(f"{SLOW} readers that do not read: {a * 1e3:.1f} → {b * 1e3:.1f} ms, ratio {b / a:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--address", default=ADDRESS)
    parser.add_argument("--http", default="127.0.0.1:8880")
    parser.add_argument("--voice", default="demo")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--cached", action="store_true", help="lines that the daemon keeps")
    parser.add_argument("--slow", action="store_true", help="readers that do not read, too")
    parser.add_argument("--written", action="store_true", help="texts that come word by word, alone")
    options = parser.parse_args()
    where = options.address, options.http, options.voice, options.rounds
    asyncio.run(compare_written(*where) if options.written else compare(*where, options.cached))
    if options.slow:
        asyncio.run(beside_slow_readers(options.address, options.http, options.voice, options.rounds))
