"""Hostile input: variants of good bytes and YAML, attacks by a caller with the role `speak`; and their
victim.

`F5_HOSTILE` is the number of inputs that a file tries, and `F5_SEED` draws others.
"""

import asyncio
import contextlib
import itertools
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from hypothesis import HealthCheck, Phase, settings

from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc as rpc
from tests.harness.daemons import ROOT, SMALL_WINDOW, Program, request, resident
from tests.harness.patience import PATIENCE_S

COUNT = int(os.environ.get("F5_HOSTILE", "50"))
SEED = os.environ.get("F5_SEED", "")
CONTROL_EVERY = 50
GROWTH_BYTES = 48 << 20
"""Limit of a victim's growth after it has seen every kind of message: allocators keep memory that was needed
once."""
LONG = "This is a long story about a very long river. " * 20
FAULT = re.compile("Traceback|internal error|never retrieved|ERROR")


class Victim:
    """A program that gets hostile input; from time to time it must speak exactly as at first."""

    def __init__(self, program: Program, speak: Callable[[], bytes]) -> None:
        self.program, self.speak = program, speak
        self.seen: Counter[tuple[str, str]] = Counter()
        """Outcomes by kind of input."""
        self.memory: list[int] = []
        self._logged = len(program.log)
        self._at_first = speak()
        self._check_speech()
        assert len(self._at_first) > 10_000

    def tried(self, kind: str, outcome: object) -> None:
        """Count an input and its outcome."""
        self.seen[kind, str(getattr(outcome, "name", outcome))] += 1
        if self.seen.total() % CONTROL_EVERY == 0:
            self._check_speech()

    def check(self, least: float = 0.0, growth_bytes: int = GROWTH_BYTES) -> None:
        """Check speech, memory and log after `least` inputs or more; with F5_HOSTILE print the outcomes."""
        self._check_speech()
        if "F5_HOSTILE" in os.environ:
            for (kind, outcome), count in sorted(self.seen.items()):
                print(f"{kind:<14} {outcome:<20} {count:6}")
            print(f"memory after each {CONTROL_EVERY}, MB: {[size >> 20 for size in self.memory]}")
        assert self.seen.total() >= least
        settled = self.memory[len(self.memory) // 3 :]
        assert max(settled) - settled[0] < growth_bytes, self.memory
        log = self.program.log[self._logged :]
        assert not (fault := FAULT.search(log)), log[fault.start() :][:2_000]

    def _check_speech(self) -> None:
        assert self.speak() == self._at_first
        self.memory.append(resident(self.program.process.pid))


def share(part: float, *phases: Phase) -> settings:
    """Settings for a part of COUNT examples, which are the same on every run unless F5_SEED is set."""
    return settings(
        max_examples=max(round(part * COUNT), 5),
        derandomize=not SEED,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=phases or (Phase.generate,),
    )


def mutated(raw: bytes, dice: random.Random) -> bytes:
    """Bytes with some of them changed, cut, moved or doubled."""
    out = bytearray(raw)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at = dice.randrange(len(out) + 1)
        size = dice.choice((1, 1, 2, 4, 8, dice.randrange(1, 200)))
        how = dice.randrange(6)
        if how == 0:
            out[at : at + size] = dice.randbytes(size)
        elif how == 1:
            del out[at : at + size]
        elif how == 2:
            out[at:at] = out[at : at + size]
        elif how == 3:
            out[at : at + 4] = dice.choice((bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", b"\x01\x00\x00\x00"))
        elif how == 4 and at < len(out):
            out[at] ^= 1 << dice.randrange(8)
        elif how == 5 and dice.random() < 0.2:
            del out[at:]
    return bytes(out)


ODD_YAML = (
    *("", "-1", "1e999", ".nan", "~", "[]", "{}", "[[", "&a [*a]", "yes", "'", "9" * 400, "\t", "0x10"),
    "12:30",
    "[" * 600,  # deeper than Python's recursion goes; the time that PyYAML takes is quadratic
    *("!!python/object:os.system x", "2026-13-45", "*b", "<<: *c", "? a", "- - -", "\u2028", "é", "|"),
)


def mutated_yaml(text: str, dice: random.Random) -> bytes:
    """YAML with values, keys and lines changed, or its bytes."""
    if dice.random() < 0.4:
        return mutated(text.encode(), dice)
    lines = text.splitlines()
    for _ in range(dice.choice((1, 1, 3))):
        at = dice.randrange(len(lines))
        key, mark, value = lines[at].partition(":")
        odd = dice.choice(ODD_YAML)
        ways = (f"{key}{mark} {odd}", f"{odd}{mark}{value}", f"{key}x{mark}{value}", f"  {lines[at]}")
        lines[at] = dice.choice((*ways, lines[dice.randrange(len(lines))], ""))
    return "\n".join(lines).encode()


@dataclass
class Bot:
    """A caller with a token; every channel has a separate connection."""

    address: str
    token: str
    open: list[Any] = field(default_factory=list)
    """Connections."""
    held: list[Any] = field(default_factory=list)
    """Calls that the bot leaves open."""

    def channel(self, *options: tuple[str, int]) -> grpc.Channel:
        own = ("grpc.use_local_subchannel_pool", 1)
        channel = grpc.insecure_channel(self.address, options=(own, *options))
        self.open.append(channel)
        return channel

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def call(self, act: Callable[[], Any]) -> bool:
        """True if the call succeeded."""
        try:
            act()
        except grpc.RpcError:
            return False
        return True

    def raw(self, method: str, message: bytes) -> None:
        """Make a call whose message is these bytes."""
        call = self.channel().unary_unary(f"/appliance.v1.{method}")
        self.call(lambda: call(message, metadata=self.metadata, timeout=PATIENCE_S))

    def close(self) -> None:
        for call in self.held:
            call.cancel()
        for connection in self.open:
            connection.close()
        self.held.clear()
        self.open.clear()


speech = partial(request, playout=pb.OVERLAP)
Stop = threading.Event


@dataclass(frozen=True)
class Flood:
    """Endless requests, `calls` of them at a time."""

    calls: int
    fields: Callable[[int], dict[str, Any]]
    """Fields of a request by its number."""
    pause_s: float = 0.0
    """Seconds that the reader takes for a message; 0: it leaves after the header and requests again."""


def voices(number: int, count: int, tag: str) -> dict[str, Any]:
    """A text in which `count` of VOICES take turns."""
    said = "".join(tag.format(f"v{(number * count + place) % VOICES}") for place in range(count))
    return {"text": f"<speak>{said}</speak>" if tag == SSML else said, "voice_tags": True}


VOICES, SSML = 200, '<voice name="{}">Hi.</voice>'
STORY = "The quick brown fox jumps over the lazy dog while seven wizards box. " * 70
DATES = "2026年5月12日に3,000円、第4回の20時30分、" * 170
FLOODS: Mapping[str, Flood] = {
    "long": Flood(120, lambda n: {"text": STORY[:4_090]}),
    "long, 32": Flood(32, lambda n: {"text": STORY[:4_090]}),
    "names": Flood(
        32, lambda n: {"text": "Hi.", "pronunciations": {f"user{n}x{i:04d}": "you" for i in range(500)}}
    ),
    "japanese": Flood(32, lambda n: {"text": DATES[:4_090]}),
    "chinese": Flood(32, lambda n: {"text": "你好，今天。" * 680}),
    "digits": Flood(32, lambda n: {"text": "5" * 4_090}),
    "ssml": Flood(32, lambda n: {**voices(n, 80, SSML), "text_handling": pb.SSML}),
    "slow": Flood(32, lambda n: {"text": STORY[:4_090]}, pause_s=1.0),
    "never": Flood(32, lambda n: {"text": STORY[:4_090]}, pause_s=600.0),
    "moderated": Flood(32, lambda n: {"text": STORY[:700], "channel": "moderated"}),
    "merged": Flood(32, lambda n: {"text": STORY[:600], "merge_key": "a", "channel": f"{n % 8}"}),
    "bulk": Flood(32, lambda n: {"text": STORY[:600], "priority": pb.BULK}),
    "voices": Flood(32, lambda n: voices(n, VOICES, "[voice:{}] Hi. ")),
    "superseding": Flood(
        120, lambda n: {"text": "Score 5 to 4.", "supersede_key": "a", "channel": "s"}, pause_s=1e-3
    ),
    "merging": Flood(120, lambda n: {"text": "A rose.", "merge_key": "a", "channel": "s"}, pause_s=1e-3),
    "flood": Flood(120, lambda n: {"priority": pb.REALTIME, "user_key": f"u{n}"}, pause_s=1e-3),
}


def flood(bot: Bot, stop: Stop, what: Flood) -> None:
    """Request endlessly, and ignore RetryInfo."""
    numbers = itertools.count()

    async def ask(channel: grpc.aio.Channel) -> None:
        stub = rpc.SynthesizerStub(channel)
        while not stop.is_set():
            fields = {"text": "Hi.", "voice": "ann", **what.fields(next(numbers))}
            call = stub.StreamSynthesize(pb.SynthesizeRequest(**fields), metadata=bot.metadata)
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF and what.pause_s:
                    await asyncio.sleep(what.pause_s)
            call.cancel()
            await asyncio.sleep(0.02)

    async def ask_all() -> None:
        own = (("grpc.use_local_subchannel_pool", 1),)
        channels = [grpc.aio.insecure_channel(bot.address, options=own) for _ in range(4)]
        await asyncio.gather(*(ask(channels[number % 4]) for number in range(what.calls)))

    asyncio.run(ask_all())


@dataclass(frozen=True)
class Doorstep:
    """Connections to the gateway that read nothing; a closed connection is replaced."""

    connections: int
    begun: str = ""
    drip: bytes = b""
    """Sent four times a second."""


HEAD = "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n"
BODY = '{"input": "%s", "voice": "ann", "response_format": "wav"}'
DOORSTEPS: Mapping[str, Doorstep] = {
    "silent": Doorstep(540),
    "slow heads": Doorstep(540, HEAD, b"a: b\r\n"),
    "slow bodies": Doorstep(140, HEAD + "content-length: 900000\r\n\r\n", b" "),
    "unread replies": Doorstep(140, HEAD + f"content-length: 4000\r\n\r\n{BODY % STORY[:3_000]:4000}"),
    "sockets": Doorstep(
        140,
        "GET /v1/text-to-speech/ann/stream-input HTTP/1.1\r\nhost: localhost\r\nxi-api-key: {}\r\n"
        "upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n"
        "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n",
    ),
}


def stand(bot: Bot, stop: Stop, what: Doorstep) -> None:
    host, _, port = bot.address.rpartition(":")
    begun = what.begun.replace("{}", bot.token).encode()

    async def connect() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                source = ("127.0.0.2", 0)
                _, writer = await asyncio.open_connection(host, int(port), limit=1, local_addr=source)
                writer.write(begun)
                while not writer.is_closing():
                    await asyncio.sleep(0.25)
                    writer.write(what.drip)
            await asyncio.sleep(0.1)

    async def connect_all() -> None:
        await asyncio.gather(*(connect() for _ in range(what.connections)))

    asyncio.run(connect_all())


def large(bot: Bot, stop: Stop) -> None:
    """Send a spelling of 15 MiB, millions of fields, as many words of a dictionary, and a long text."""
    spelling = speech(pronunciations={"x": "y" * (15 << 20)}).SerializeToString()
    fields = b"\x0a\x00" * (7 << 20)
    words = b"".join(b"\x82\x01\x08\x0a\x04" + struct.pack(">I", n) + b"\x12\x00" for n in range(1 << 17))
    text = speech("word, " * 680).SerializeToString()
    while not stop.is_set():
        for message in (spelling, fields, words, words[: 60 << 10], text):
            bot.raw("Synthesizer/Synthesize", message)
        bot.close()


def unread(bot: Bot, stop: Stop) -> None:
    """Request whole replies of megabytes on several connections, and read none."""
    message = speech(LONG, seed=9, nfe_steps=4, audio_config={"sample_rate_hertz": 48_000})
    while not stop.is_set():
        for method in ("Synthesize", "StreamSynthesize"):
            call = bot.channel(*SMALL_WINDOW).unary_stream(
                f"/appliance.v1.Synthesizer/{method}",
                request_serializer=pb.SynthesizeRequest.SerializeToString,
            )
            bot.held += [call(message, metadata=bot.metadata) for _ in range(20)]
        stop.wait(0.5)


def unfinished(bot: Bot, stop: Stop) -> None:
    """Send messages without their last bytes, with the token and without."""
    for token in (bot.token, ""):
        sender = Unfinished(bot.address, token, 80)
        bot.open.append(sender)
        threading.Thread(target=sender.send, args=(stop,), daemon=True).start()
    stop.wait()


def flushes(bot: Bot, stop: Stop) -> None:
    """Run endless sessions of utterances of one letter, and cancel them every second."""

    def letters() -> Iterator[pb.SessionRequest]:
        yield pb.SessionRequest(configure=pb.SynthesizeRequest(voice="ann", nfe_steps=4))
        while not stop.is_set():
            yield pb.SessionRequest(text="a")
            yield pb.SessionRequest(flush=pb.Flush())

    while not stop.is_set():
        stub = rpc.SynthesizerStub(bot.channel(*SMALL_WINDOW))
        calls = [stub.Session(letters(), metadata=bot.metadata) for _ in range(4)]
        stop.wait(1.0)
        for call in calls:
            call.cancel()


def places(bot: Bot, stop: Stop) -> None:
    """Take every place for watchers, listeners and readers."""
    stub = rpc.QueueStub(bot.channel(*SMALL_WINDOW))
    while not stop.is_set():
        bot.held += [stub.WatchQueue(pb.WatchQueueRequest(), metadata=bot.metadata) for _ in range(70)]
        bot.held += [stub.Listen(pb.ListenRequest(), metadata=bot.metadata) for _ in range(70)]
        for _ in range(50):
            bot.call(lambda: stub.ListUtterances(pb.ListUtterancesRequest(), metadata=bot.metadata))
        stop.wait(0.5)


ATTACKS = ("names", "large", "unread", "unfinished", "flushes", "places", "flood")
"""Attacks that go on until `stop` is set, and may leave connections and calls open."""


class Unfinished:
    """Hand-made HTTP/2: streams whose message of 15 MiB lacks its last bytes, within flow control."""

    SIZE = 15 << 20

    def __init__(self, address: str, token: str, streams: int) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._socket.sendall(PREFACE)
        self._room, self._initial, self._read = {0: 65_535}, 65_535, b""
        self._left: dict[int, int] = {}
        for number in range(1, 2 * streams, 2):
            own = {"authorization": f"Bearer {token}"} if token else {}
            self._socket.sendall(begun_call(number, "/appliance.v1.Synthesizer/Synthesize", **own))
            self._room[number], self._left[number] = self._initial, self.SIZE - 100
            self._data(number, b"\0" + struct.pack(">I", self.SIZE))

    def send(self, stop: Stop) -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                for number in list(self._left):
                    size = min(16_384, self._room[0], self._room[number], self._left[number])
                    if size > 0:
                        self._data(number, bytes(size))
                        self._left[number] -= size
                self._receive()

    def close(self) -> None:
        self._socket.close()

    def _data(self, number: int, body: bytes) -> None:
        self._socket.sendall(frame(0, 0, number, body))
        self._room[0] -= len(body)
        self._room[number] -= len(body)

    def _receive(self) -> None:
        self._socket.settimeout(0.02)
        with contextlib.suppress(TimeoutError, socket.timeout):
            self._read += self._socket.recv(1 << 16)
        self._socket.settimeout(PATIENCE_S)
        while len(self._read) >= 9 + (size := int.from_bytes(self._read[:3], "big")):
            kind, flags, number = self._read[3], self._read[4], int.from_bytes(self._read[5:9], "big")
            body, self._read = self._read[9 : 9 + size], self._read[9 + size :]
            if kind == 8 and number in self._room:
                self._room[number] += int.from_bytes(body, "big")
            elif kind == 4 and not flags & 1:
                self._socket.sendall(frame(4, 1, 0))
                for at in range(0, size, 6):
                    if body[at : at + 2] == b"\0\4":
                        then = int.from_bytes(body[at + 2 : at + 6], "big")
                        for stream in self._left:
                            self._room[stream] += then - self._initial
                        self._initial = then
            elif kind == 6 and not flags & 1:
                self._socket.sendall(frame(6, 1, 0, body))
            elif kind in (1, 3):
                self._left.pop(number, None)


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
"""Begin of a connection, with no settings."""


def begun_call(stream: int, path: str, **fields: str) -> bytes:
    """Headers of a gRPC call, as literal, unindexed fields (RFC 7541, 6.2.3) of less than 127 characters."""
    known = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "box", "te": "trailers"}
    whole = {**known, "content-type": "application/grpc", **fields}
    block = b"".join(b"\x10" + _text(name) + _text(value) for name, value in whole.items())
    return frame(1, 4, stream, block)


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


@contextlib.contextmanager
def attacking(attack: str, address: str, token: str) -> Iterator[None]:
    """Run an attack in a separate process, as if from another machine, for the length of the block."""
    command = [sys.executable, "-m", "tests.harness.hostile", attack, address, token]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        try:
            yield
        finally:
            process.communicate()


def attack_until_told(attack: str, address: str, token: str) -> None:
    """Attack until standard input ends; `attacking` starts this process."""
    os.nice(19)
    bot, stop = Bot(address, token), threading.Event()
    run = partial(flood, what=FLOODS[attack]) if attack in FLOODS else globals().get(attack)
    run = run or partial(stand, what=DOORSTEPS[attack])
    threading.Thread(target=run, args=(bot, stop), daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()
    stop.set()
    bot.close()
    os._exit(0)


if __name__ == "__main__":
    attack_until_told(*sys.argv[1:])
