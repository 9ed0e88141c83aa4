"""Server for Wyoming, the protocol of Home Assistant's voice assistants.

Its process is a client of the daemon.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import anyio
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_write_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeTextFormat,
)

from appliance.access.places import CallerPlace, CallerPlaces
from appliance.audio.marking import mark_of
from appliance.audio.tags import KEY
from appliance.client import AsyncClient, CallFailed, Header, Options, Piece, Session, Voice
from appliance.client import Event as Heard
from appliance.client.connection import CALLER
from appliance.config import Config
from appliance.errors import Exit
from appliance.gateway.app import address_of, credentials_of
from appliance.gateway.body import Fields, invalid, json_object
from appliance.gateway.connection import SessionWriter, cancel, follow, running, session_places
from appliance.gateway.openai import models_of
from appliance.gateway.refusals import Refusal, refusal_of
from appliance.gateway.serving import BEAT_S, listen, logger
from appliance.gateway.speech import SILENCE_S, SPEAK_TIMEOUT_S, is_blank, not_stored
from appliance.options import AUTO
from appliance.serve.notify import Notifier
from appliance.serve.process import configured, exit_status

NAME = "f5-appliance"
PROJECT = Attribution(name=NAME, url="")
MAX_EVENT_BYTES = 64 << 10
"""Longest line, data or payload of an event."""
MAX_WAITING = 16
"""Most events of a connection that may wait. At the limit, reading pauses."""
UNSAID_LANGUAGE = "en"
"""Language of the voices if the bundle names none, because Home Assistant lists voices by language."""
WIDTH, CHANNELS, SILENT_RATE_HZ = 2, 1, 24_000


def main(path: Path | None, overrides: Iterable[str]) -> int:
    """Serve until stopped; return the exit status."""

    def run(notifier: Notifier) -> int:
        config = configured(path, overrides)
        address = address_of(config)
        listener = listen(config, "wyoming", notifier)
        asyncio.run(WyomingServer(config, notifier).serve(listener, address))
        return Exit.OK

    return exit_status("wyoming", run)


class WyomingServer:
    """Accepts connections of the Wyoming protocol."""

    def __init__(self, config: Config, notifier: Notifier) -> None:
        self._config, self._notifier = config, notifier
        self._connections: dict[asyncio.Task[None], WyomingConnection] = {}

    async def serve(self, listener: socket.socket, address: str) -> None:
        """Serve until SIGTERM or SIGINT, then let replies finish."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        config = self._config.wyoming
        places = CallerPlaces(config.max_connections)
        async with AsyncClient(address, credentials_of(self._config)) as client:

            async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connection = WyomingConnection(reader, writer, client, self._config)
                place = CallerPlace(
                    connection.address, lambda: not connection.is_speaking, writer.transport.abort
                )
                if not places.take(place):
                    writer.transport.abort()
                    return
                task = asyncio.ensure_future(connection.run())
                self._connections[task] = connection
                task.add_done_callback(self._connections.pop)
                task.add_done_callback(lambda _: places.leave(place))

            server = await asyncio.start_server(connect, sock=listener, limit=MAX_EVENT_BYTES)
            beating = asyncio.ensure_future(self._beat())
            logger.info("ready on tcp://%s, for the daemon at %s", config.listen, address)
            self._notifier.ready()
            self._notifier.status(f"serves tcp://{config.listen}, for the daemon at {address}")
            await stopped.wait()
            self._notifier.stopping()
            server.close()
            beating.cancel()
            await self._drain(config.drain_s)

    async def _beat(self) -> None:
        while True:
            self._notifier.watchdog()
            await asyncio.sleep(BEAT_S)

    async def _drain(self, limit_s: float) -> None:
        """End silent connections, and wait up to `limit_s` for speaking ones."""
        for task, connection in self._connections.items():
            connection.is_ending = True
            if not connection.is_speaking:
                task.cancel()
        if self._connections:
            await asyncio.wait([*self._connections], timeout=limit_s)
        await cancel([*self._connections])


class WyomingConnection:
    """Answers one client's events in order. Stops speaking when the client leaves."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: AsyncClient, config: Config
    ) -> None:
        self._reader, self._writer, self._client, self._config = reader, writer, client, config
        self._events: asyncio.Queue[Event] = asyncio.Queue(MAX_WAITING)
        self.is_speaking = False
        self.is_ending = False
        """True once the current speech is the last."""
        self._has_left = False
        self.address: str = (writer.get_extra_info("peername") or ("unknown",))[0]

    async def run(self) -> None:
        CALLER.set(f"wyoming {self.address}")
        try:
            async with running(self._read(), self._answer()) as tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._close([task.exception() for task in tasks if not task.cancelled()])

    async def _close(self, failures: list[BaseException | None]) -> None:
        """Send the reason if there is a failure, and close."""
        with suppress(OSError), anyio.move_on_after(self._config.wyoming.stall_s):
            for failure in failures:
                if isinstance(failure, CallFailed):
                    failure = refusal_of(failure)
                if isinstance(failure, Refusal):
                    await self._send(Error(text=failure.message, code=failure.code or None).event())
                elif failure is not None and not isinstance(failure, (OSError, TimeoutError)):
                    logger.error("a connection failed", exc_info=failure)
            self._writer.close()
            await self._writer.wait_closed()
        self._writer.transport.abort()

    async def _read(self) -> None:
        """Read events until the client leaves or is idle for too long. Raises Refusal."""
        while True:
            async with running(read_event(self._reader)) as (reading,):
                while not (await asyncio.wait((reading,), timeout=self._config.wyoming.idle_s))[0]:
                    if not self.is_speaking:
                        return
            if (event := reading.result()) is None:
                break
            await self._events.put(event)
        if not self.is_speaking:
            # A client such as `nc` sends one question, closes its side, and reads the answer.
            self._has_left = True
            await self._events.join()

    async def _answer(self) -> None:
        """Answer events until one is the last. Raises Refusal, CallFailed."""
        while not self.is_ending:
            event = await self._events.get()
            fields = Fields(event.data)
            if Describe.is_type(event.type):
                await self._send((await self._info()).event())
            elif Ping.is_type(event.type):
                await self._send(Pong(text=fields.text("text")).event())
            elif Synthesize.is_type(event.type) or SynthesizeStart.is_type(event.type):
                if self._has_left:
                    return
                self.is_speaking = True
                speak = self._speak if Synthesize.is_type(event.type) else self._speak_written
                await speak(fields)
                self.is_speaking = False
            self._events.task_done()

    # Speech.

    async def _speak(self, fields: Fields) -> None:
        text = fields.to_speak("text")
        voice, options = await self._voice(fields)
        if is_blank(text):
            await self._send_audio(None)
        else:
            stream = self._client.stream(text, voice, timeout=SPEAK_TIMEOUT_S, **options)
            await self._send_audio(aiter(stream))

    async def _speak_written(self, fields: Fields) -> None:
        """Speak the text of the chunks that follow, while they arrive."""
        voice, options = await self._voice(fields)
        options["playout"] = None
        async with session_places():
            session = self._client.session(voice, **options)
            async with running(self._write(session), self._send_audio(follow(session))) as tasks:
                await asyncio.gather(*tasks)
        await self._send(SynthesizeStopped().event())

    async def _write(self, session: Session) -> None:
        """Write the text of the arriving chunks, until their end. Raises Refusal."""
        writer = SessionWriter(session, self._config.synthesis.max_text_characters)
        with suppress(CallFailed):  # the reader gets the error too
            while True:
                event = await self._events.get()
                self._events.task_done()
                # `synthesize` repeats the text for servers that cannot stream.
                if SynthesizeChunk.is_type(event.type):
                    if text := Fields(event.data).to_speak("text"):
                        await writer.say(text)
                elif SynthesizeStop.is_type(event.type):
                    break
            await session.close()

    async def _send_audio(self, events: AsyncIterator[Heard] | None) -> None:
        """Send a reply; None stands for a text with nothing to speak."""
        rate_hz, samples = SILENT_RATE_HZ, 0
        if events is not None:
            async with aclosing(cast("Any", events)) as messages:
                async for event in messages:
                    if isinstance(event, Header) and event.sample_rate_hertz:
                        rate_hz = event.sample_rate_hertz
                    if isinstance(event, Piece) and event.data:
                        samples += await self._send_piece(event.data, rate_hz, samples)
        if not samples:
            # Clients wait for some audio.
            await self._send_piece(bytes(round(SILENCE_S * rate_hz) * WIDTH), rate_hz, 0)
        await self._send(AudioStop(timestamp=round(samples / rate_hz * 1e3)).event())

    async def _send_piece(self, data: bytes, rate_hz: int, samples: int) -> int:
        """Send audio that follows this many samples; return its own number of samples."""
        form, at_ms = (rate_hz, WIDTH, CHANNELS), round(samples / rate_hz * 1e3)
        if not samples:
            start = AudioStart(*form, timestamp=at_ms).event()
            if mark := mark_of(self._config.audio.marked):
                start.data[KEY] = mark
            await self._send(start)
        await self._send(AudioChunk(*form, data, timestamp=at_ms).event())
        return len(data) // WIDTH

    async def _send(self, event: Event) -> None:
        """Send an event. Raises TimeoutError if the client does not read, OSError if it has left."""
        if self._writer.is_closing():  # to which asyncio of Python 3.13.0 writes with an AttributeError
            raise ConnectionResetError("the client has left")
        with anyio.fail_after(self._config.wyoming.stall_s):
            await async_write_event(event, self._writer)

    # Voices.

    async def _voice(self, fields: Fields) -> tuple[str, Options]:
        """Voice and options of a request. Raises Refusal, CallFailed."""
        raw_voice = fields.get("voice") or {}
        if not isinstance(raw_voice, dict):
            raise invalid("voice", "must be an object")
        voice_fields = Fields(raw_voice)
        names = [name for key in ("speaker", "name") if (name := voice_fields.text(key))]
        others = {name.lower(): voice for name, voice in self._config.gateway.voices.items()}
        default = self._config.wyoming.voice or self._config.gateway.voice
        rows = self._config.text.languages
        language = (voice_fields.text("language") or "").replace("_", "-").partition("-")[0].lower()
        row = rows.get(language)
        if rows and not names and not default:
            names = [AUTO]
        candidates = [others.get(name.lower(), name.lower()) for name in names] or [default] * bool(default)
        voice = ""
        for name in candidates:
            if not voice and (await self._is_stored(name) or (rows and name == AUTO)):
                voice = name
        # AUTO speaks with the bundle and the style of the row, too.
        if row is not None and voice == row.voice.lower():
            voice = AUTO
        if not voice:
            stored = [voice.name for voice in await self._stored()]
            if candidates or not stored:
                raise not_stored(candidates[-1] if candidates else "", stored)
            voice = stored[0]
        is_ssml = fields.text("text_format") == SynthesizeTextFormat.SSML.value
        options: Options = {
            "encoding": "pcm16",
            "language": voice_fields.text("language"),
            "text_handling": "ssml" if is_ssml else None,
            "playout": "overlap",
        }
        return voice, options

    async def _is_stored(self, name: str) -> bool:
        """True if the daemon has a voice of this name."""
        try:
            await self._client.voice(name)
        except CallFailed as failure:
            if failure.status not in ("NOT_FOUND", "INVALID_ARGUMENT"):
                raise
            return False
        return True

    async def _stored(self) -> list[Voice]:
        return [voice async for voice in self._client.voices()]

    async def _info(self) -> Info:
        _, languages = await models_of(self._config)
        rows, version = self._config.text.languages, metadata.version(NAME)
        about: dict[str, Any] = {"attribution": PROJECT, "version": version}
        voices = [
            TtsVoice(
                name=voice.name,
                description=voice.display_name or voice.name,
                installed=not voice.problem,
                languages=list(
                    dict.fromkeys(
                        [*languages, *(code for code, row in rows.items() if row.voice.lower() == voice.name)]
                        or [UNSAID_LANGUAGE]
                    )
                ),
                speakers=None,
                **about,
            )
            for voice in await self._stored()
        ]
        if rows and AUTO not in [voice.name for voice in voices]:
            by_language = "each text's language has its own voice"
            voices.append(
                TtsVoice(
                    name=AUTO,
                    description=by_language,
                    installed=True,
                    languages=[*rows],
                    speakers=None,
                    **about,
                )
            )
        program = TtsProgram(
            name=NAME,
            description="F5-TTS voices of this machine",
            installed=True,
            voices=voices,
            supports_synthesize_streaming=True,
            **about,
        )
        return Info(tts=[program])


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """Read an event; None at the end. The package's own reader has no limits. Raises Refusal, OSError."""
    try:
        line = await reader.readline()
        if not line:
            return None
        head = json_object(line, "an event")
        parts = []
        for name in ("data_length", "payload_length"):
            size = Fields(head).whole(name, 0, MAX_EVENT_BYTES) or 0
            parts.append(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        return None
    except ValueError:
        raise Refusal(400, f"an event's line has over {MAX_EVENT_BYTES} bytes", code="too_large") from None
    data = head.get("data") or {}
    if not isinstance(data, dict):
        raise invalid("data", "must be an object")
    more = json_object(parts[0], "an event") if parts[0] else {}
    return Event(Fields(head).text("type") or "", {**data, **more})
