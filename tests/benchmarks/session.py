"""First sound of a text that is still being written, against the same text sent whole at the first word.

    python -m tests.benchmarks.session [--address 127.0.0.1:50051] [--voice demo] [--rounds 3] [--pace 20]

Needs a running daemon that does nothing else. Both ways take turns; `ratio` is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from appliance.client import ADDRESS, AsyncClient, Piece

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


async def written_s(client: AsyncClient, voice: str, text: str, seed: int, pace: float) -> float:
    """Seconds from first word to first sound of a text written at `pace` words a second."""
    session = client.session(voice, seed=seed)
    begun = time.perf_counter()

    async def write() -> None:
        for number, word in enumerate(text.split()):
            await asyncio.sleep(max(0.0, begun + number / pace - time.perf_counter()))
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


async def compare(address: str, voice: str, rounds: int, pace: float) -> None:
    whole: dict[str, list[float]] = {text: [] for text in TEXTS}
    written: dict[str, list[float]] = {text: [] for text in TEXTS}
    async with AsyncClient(address) as client:
        for turn in range(
            rounds
        ):  # each with noise of its own: what was spoken before is in the daemon's memory
            for text in TEXTS:
                whole[text].append(await whole_s(client, voice, text, 2 * turn))
                written[text].append(await written_s(client, voice, text, 2 * turn + 1, pace))
    print("whole  written  ratio  text")
    for text in TEXTS:
        a, b = statistics.median(whole[text]), statistics.median(written[text])
        print(f"{a:5.3f}    {b:5.3f}   {b / a:4.2f}  {text[:40]}")
    a, b = (statistics.median(t for times in way.values() for t in times) for way in (whole, written))
    print(f"{a:5.3f}    {b:5.3f}   {b / a:4.2f}  all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--address", default=ADDRESS)
    parser.add_argument("--voice", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pace", type=float, default=20.0, help="words a second")
    options = parser.parse_args()
    asyncio.run(compare(options.address, options.voice, options.rounds, options.pace))
