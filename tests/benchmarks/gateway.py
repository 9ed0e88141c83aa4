"""First sound through the HTTP gateway against gRPC's, and what readers that do not read cost the others.

    python -m tests.benchmarks.gateway [--address 127.0.0.1:50051] [--http 127.0.0.1:8880] [--cached] [--slow]
                                       [--written]

With --written it is texts that come word by word, over gRPC's session and a WebSocket, against the same texts
sent whole at the first word. With --cached the lines come from memory, not the engine: what is left is what
the ways add themselves.

Needs a running daemon and gateway that do nothing else. The ways take turns, each first as often as the
others, since a line that follows another finds warm caches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from appliance.client import ADDRESS, AsyncClient, Piece
from tests.gateway.sockets import connected

TEXT = "Thanks for the follow, and welcome to the stream."
LONG = "It was a long way to the top of the hill, and nobody had brought any water. " * 20
SLOW = 50
PACE = 20.0
"""Words a second."""


TEXTS = (
    "Thanks for the question, that is a really good one. I would start with the shield and go left.",
    "Well, the boss has two phases, and the second one is much harder than the first.",
    "I think we should try the other door first and see what happens when the lights go out.",
    "Welcome back, everyone. Today we are going to build a bridge across the river.",
    "That was close! One more hit and the whole run would have been over.",
    "Honestly, I have no idea, but let us ask chat what they would do here.",
    "The update comes out on Friday and brings two new maps with it.",
    "Sure, I can read that again for everyone who has just joined the stream.",
    "There are three keys in this room and we have found only one of them so far.",
    "Good evening and thank you for the raid, it means a lot to all of us here.",
)


async def whole_s(client: AsyncClient, voice: str, text: str, seed: int, **options: Any) -> float:
    begun, first_s = time.perf_counter(), 0.0
    async for event in client.stream(text, voice, seed=seed, **options):
        if isinstance(event, Piece) and not first_s:
            first_s = time.perf_counter() - begun
    return first_s


async def written_s(client: AsyncClient, voice: str, text: str, seed: int) -> float:
    """Seconds from first word to first sound of a text written at PACE."""
    session = client.session(voice, seed=seed)
    begun = time.perf_counter()

    async def write() -> None:
        for number, word in enumerate(text.split()):
            await asyncio.sleep(max(0.0, begun + number / PACE - time.perf_counter()))
            await session.say(f"{word} ")
        await session.flush()
        await session.close()

    writing = asyncio.ensure_future(write())
    first_s = 0.0
    async for _, event in session:
        if isinstance(event, Piece) and not first_s:
            first_s = time.perf_counter() - begun
    await writing
    return first_s


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


Way = Callable[[int], Awaitable[float]]
"""The number of a turn → seconds to the first sound."""


async def in_turns(ways: Mapping[str, Way], rounds: int) -> None:
    """Run all in turn, after two rounds that do not count, and print."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-2, rounds):
        names = list(ways)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            first_s = await ways[name](number + 2)
            if number >= 0:
                found[name].append(first_s)
    tell(found)


def tell(ways: Mapping[str, list[float]]) -> None:
    (one, ones), *others = ways.items()
    differences = {
        f"{name} − {one}": [b - a for a, b in zip(ones, times, strict=True)] for name, times in others
    }
    print(f"{'first sound, ms':<20} {'P50':>7} {'P95':>7}")
    for name, times in {**ways, **differences}.items():
        middle, high = np.percentile(times, (50, 95)) * 1e3
        print(f"{name:<20} {middle:7.1f} {high:7.1f}")


async def compare(address: str, http: str, voice: str, rounds: int, cached: bool) -> None:
    reader, writer = await asyncio.open_connection(*http.split(":"))
    async with AsyncClient(address) as client:
        ways: dict[str, Way] = {
            "gRPC": lambda turn: grpc_s(client, voice, 1 if cached else 2 * turn),
            "HTTP": lambda turn: http_s(reader, writer, voice, 2 if cached else 2 * turn + 1),
        }
        await in_turns(ways, rounds)
    writer.close()
    await writer.wait_closed()


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
    """Each with noise of its own: what was spoken before is in the daemon's memory."""

    def text(turn: int) -> str:
        return TEXTS[turn % len(TEXTS)]

    async with AsyncClient(address) as client:
        ways: dict[str, Way] = {
            "whole": lambda turn: whole_s(client, voice, text(turn), 3 * turn),
            "session": lambda turn: written_s(client, voice, text(turn), 3 * turn + 1),
            "WebSocket": lambda turn: asyncio.to_thread(websocket_s, http, voice, text(turn), 3 * turn + 2),
        }
        await in_turns(ways, rounds)


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
