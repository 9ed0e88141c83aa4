"""One life of the daemon: read → listen → verify → load → warm up → ready → drain → release.

exit status  meaning                                              start again?
0            drained after SIGTERM or SIGINT                      -
65           the bundle is missing, damaged, or not for this box  no
68           an address is not this machine's, for ten minutes    yes
69           the device has too little memory                     yes
70           the engine failed                                    yes
71           the device is lost                                   yes
74           a folder or socket cannot be used                    no
75           an address is in use                                 yes
78           the configuration cannot be used                     no
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib.metadata
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import grpc
from google.protobuf.runtime_version import VersionError

from appliance.access import Tokens
from appliance.addresses import AddressInUse, AddressNotOurs, await_addresses, cannot_listen
from appliance.agent import AgentServer
from appliance.box.checks.published import last_run
from appliance.box.clockwatch import PERIOD_S as CLOCKS_PERIOD_S
from appliance.box.clockwatch import STATES, ClockWatch
from appliance.box.notify import Notifier
from appliance.box.root import Root
from appliance.box.supervision import Supervision
from appliance.box.system import Box
from appliance.config import Config, LogConfig, ServerConfig, load
from appliance.contract import bundle
from appliance.contract.bundle import Bundle
from appliance.contract.tokens import read_vocabulary
from appliance.engine.loading import load_for
from appliance.engine.synthesizer import Synthesizer
from appliance.errors import (
    ApplianceError,
    BundleError,
    ConfigError,
    DeviceLost,
    EngineFault,
    Interrupted,
    OutOfDeviceMemory,
    StorageError,
    Unavailable,
)
from appliance.metrics import Metrics, MetricsServer
from appliance.phrases import Phrases
from appliance.plan import Planner
from appliance.probes import ProbeServer
from appliance.prompts import Prompts
from appliance.rpc import admin_pb2
from appliance.rpc.access import Door
from appliance.rpc.admin import Admin
from appliance.rpc.queue import Queue
from appliance.rpc.requests import Defaults
from appliance.rpc.server import Face, Listening, listen, listen_to_operator
from appliance.rpc.synthesizer import Speech, SynthesizerService
from appliance.rpc.voices import Voices
from appliance.scheduler import Scheduler
from appliance.text import chinese
from appliance.text.chat import Manners
from appliance.text.sayable import Front
from appliance.trace import TracedScheduler
from appliance.voices import VoiceStore, open_store

logger = logging.getLogger(__name__)

RELEASE_S = 5.0
"""Time that the engine's present call may take once everything else has ended."""
GRACE_S = 1.0
"""Time that calls may take to end once the server stops."""
AFTER_DRAIN_S = RELEASE_S + 2 * GRACE_S + 8.0
"""Time from the end of the drain to that of the process, with a margin; f5-appliance.service allows it."""
STALLED_S = 1.0
"""While draining: a reader that takes nothing for so long is not waited for."""
LIVE_SECTIONS = ("synthesis", "text", "scheduler", "log")
"""Sections that a reload can change; the others need a restart."""


class Exit(enum.IntEnum):
    """Exit statuses of the daemon, numbered as in sysexits.h."""

    OK = 0
    BUNDLE = 65
    ADDRESS_NOT_OURS = 68
    MEMORY = 69
    ENGINE = 70
    DEVICE = 71
    STORAGE = 74
    ADDRESS_IN_USE = 75
    CONFIG = 78


STATUSES: Mapping[type[Exception], Exit] = {
    ConfigError: Exit.CONFIG,
    BundleError: Exit.BUNDLE,
    StorageError: Exit.STORAGE,
    AddressInUse: Exit.ADDRESS_IN_USE,
    AddressNotOurs: Exit.ADDRESS_NOT_OURS,
    OutOfDeviceMemory: Exit.MEMORY,
    DeviceLost: Exit.DEVICE,
}
"""Any other ApplianceError exits with Exit.ENGINE."""


def main(path: Path | None, overrides: Iterable[str], trace: Path | None = None) -> int:
    """Run the daemon until it is told to stop; whatever keeps it from starting is one line on stderr.

    With `trace` the engine's calls are recorded, and written there at the end.
    """
    notifier = Notifier.from_environment(os.environ)
    overrides = tuple(overrides)

    def configuration() -> Config:
        return load(path, overrides)

    try:
        config = configuration()
        _log_to_stderr(config.log.level)
        keys = ("listen", "metrics", "agent")
        await_addresses({f"server.{key}": getattr(config.server, key) for key in keys}, notifier)

        async def life() -> None:
            await Daemon(config, configuration, notifier, trace).live()

        asyncio.run(life())
    except (ApplianceError, AddressInUse, AddressNotOurs) as error:
        # systemd shows the last line it was told, and of a failed start that would be the drain's.
        notifier.status(str(error))
        return _ended(_status_of(error), error)
    return Exit.OK


class Daemon:
    """Everything that one process holds, from the bundle's manifest to the listening sockets."""

    def __init__(
        self, config: Config, reread: Callable[[], Config], notifier: Notifier, trace: Path | None = None
    ) -> None:
        """Read the bundle's manifest and vocabulary and open the store. Raises BundleError, StorageError."""
        self._config, self._reread = config, reread
        # Resolved: graphs are loaded later too, when the path may be a link to another bundle already.
        folder = Path(os.path.realpath(config.bundle.path))
        self._bundle = bundle.read(folder, verify=False).up_to(config.engine.longest_s)
        self._store = open_store(config.voices, self._bundle.manifest)
        self._prompts = Prompts(self._store)
        self._phrases = Phrases(config.cache.phrases_bytes, drawn_seeds=config.cache.drawn_seeds)
        self._metrics = Metrics()
        self._metrics.watch_phrases(self._phrases)
        self._trace = trace
        kind = Scheduler if trace is None else TracedScheduler
        self._scheduler = kind(config.scheduler, at=self._at)
        self._write_trace()
        self._supervision = Supervision(notifier, lambda: self._scheduler.silence_s)
        box = Box(Root(config.device.sysroot))
        self._metrics.watch_health(lambda: last_run(box))
        self._clocks = ClockWatch(box, str(config.device.clocks))
        self._loop = asyncio.get_running_loop()
        self._front: Front
        self._engine: threading.Thread | None = None
        self._begun = time.monotonic()
        self._warm = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def live(self) -> None:
        """Life of the daemon, from the first listening socket to the last released thread.

        Raises what main() has an exit status for.
        """
        speech = self.speech = self._speech()
        door = _door(self._config.server)
        synthesizer = SynthesizerService(speech, self._config.server, door.peer)
        voices = Voices(self._store)
        queue = Queue(self._scheduler, speech.clock, synthesizer.end, synthesizer.taps)
        self._catch_signals()
        listening = await listen(
            self._config.server,
            synthesizer,
            voices,
            queue,
            self._metrics.observe,
            door,
            _faces(synthesizer, self._store, self._prompts),
        )
        operated: grpc.aio.Server | None = None
        try:
            if (path := self._config.server.admin) is not None:
                admin = Admin(self, self._scheduler)
                operated = await listen_to_operator(path, admin, self._metrics.observe)
            with self._serving_probes(synthesizer):
                await self._serve(listening, synthesizer)
        finally:
            if operated is not None:
                await operated.stop(grace=GRACE_S)
            await listening.server.stop(grace=GRACE_S)
            await _others_ended(GRACE_S)
            synthesizer.close()
            voices.close()
            with _logged("the trace is lost"):
                self._write_trace()

    def _write_trace(self) -> None:
        """Write what is recorded so far: at start, to know that it can be written. Raises StorageError."""
        if self._trace is not None and isinstance(self._scheduler, TracedScheduler):
            self._scheduler.write(self._trace)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        """Have something done at a time of the monotonic clock, which is the event loop's too."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._loop.call_at, when, act)

    def _speech(self) -> Speech:
        manifest = self._bundle.manifest
        planner = Planner(
            manifest, read_vocabulary(self._bundle.vocab), self._prompts.reference, chinese.to_tokens
        )
        speech = Speech(
            planner=planner,
            scheduler=self._scheduler,
            defaults=Defaults(
                self._config.synthesis,
                manifest.defaults.guidance,
                manifest.mel.sample_rate_hz,
                pronunciations=self._store.pronunciations,
            ),
            observer=self._metrics,
            clock=time.monotonic,
            at_hand=self._store.at_hand,
            phrases=self._phrases,
            degraded=lambda: self._clocks.status.degraded,
        )
        self._configure(speech, self._config)
        return speech

    async def _serve(self, listening: Listening, synthesizer: SynthesizerService) -> None:
        engine_ended = self._start_engine()
        stopped = asyncio.ensure_future(self._stop.wait())
        warm = asyncio.ensure_future(self._warm.wait())
        beside = [
            asyncio.ensure_future(c) for c in (self._attend(synthesizer), self._follow_clocks(listening))
        ]
        for loop in beside:
            loop.add_done_callback(_log_failure)
        try:
            await asyncio.wait((engine_ended, stopped, warm), return_when=asyncio.FIRST_COMPLETED)
            if warm.done() and not stopped.done():
                await listening.set_serving()
                logger.info("ready on %s", self._addresses(listening.port))
                self._supervision.ready(self._status())
                await asyncio.wait((engine_ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            await listening.health.enter_graceful_shutdown()
            await self._drain(engine_ended, synthesizer)
        finally:
            for task in (stopped, warm, *beside):
                task.cancel()

    async def _attend(self, synthesizer: SynthesizerService) -> None:
        """Feed the watchdog and end stalled calls; nothing here waits for anybody."""
        while True:
            self._supervision.turn(self._status())
            draining = self._stop.is_set()
            limit_s = STALLED_S if draining else self._config.server.write_timeout_s
            synthesizer.drop_stalled(limit_s, playing=not draining)
            await asyncio.sleep(min(self._supervision.period_s, STALLED_S / 2 if draining else math.inf))

    async def _follow_clocks(self, listening: Listening) -> None:
        while True:
            clocks, degraded = self._clocks.status.clocks, bool(self._clocks.status.degraded)
            repins = None if clocks.state == "unknown" else clocks.repins
            self._metrics.clocks(STATES, clocks.state, repins=repins, degraded=degraded)
            await listening.set_clocks(not degraded)
            await asyncio.sleep(CLOCKS_PERIOD_S)
            if self._clocks.look().clocks != clocks:
                self._scheduler.forget_costs()

    def _status(self) -> str:
        """The daemon in one line, when it is well."""
        load = self._scheduler.load
        counts = f"{load.running} speaking, {load.waiting} waiting, {self._metrics.spoken_requests} spoken"
        state, clocks = "ready" if self._warm.is_set() else "draining", self._clocks.status.message
        return f"{state}: {counts}" + (f"; {clocks}" if clocks else "")

    async def _drain(self, engine_ended: asyncio.Future[None], synthesizer: SynthesizerService) -> None:
        """Finish what was begun, within bounds; raises what the engine's thread ended with."""
        self._warm.clear()
        self._stop.set()
        self._scheduler.drain()
        drain_s, begun = self._config.server.drain_s, time.monotonic()
        self._supervision.stopping(self._status(), within_s=drain_s + AFTER_DRAIN_S)
        if not engine_ended.done():
            logger.info("draining for up to %g s", drain_s)
            await asyncio.wait((engine_ended,), timeout=drain_s)
        # When its thread has ended by itself, jobs may wait that nobody will serve.
        self._scheduler.cancel_all()
        # The engine is ahead of its readers: what it has finished has yet to reach them.
        waits = [asyncio.ensure_future(w) for w in (synthesizer.idle(), self._hurry.wait())]
        left_s = max(drain_s - (time.monotonic() - begun), 0.0)
        await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not engine_ended.done():
            await asyncio.wait((engine_ended,), timeout=RELEASE_S)
        if engine_ended.done():
            engine_ended.result()
        else:
            logger.warning("the engine's present call takes too long; leaving it")

    # The engine's thread.

    def _start_engine(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def live() -> None:
            try:
                self._engine_life(loop)
            except BaseException as error:
                _tell(loop, ended, error)
            else:
                _tell(loop, ended, None)

        # A daemon thread: a native call that never returns must not keep the process from ending.
        self._engine = threading.Thread(target=live, name="engine", daemon=True)
        self._engine.start()
        return ended

    def _alive(self) -> bool:
        return (self._engine is None or self._engine.is_alive()) and self._supervision.alive()

    def _engine_life(self, loop: asyncio.AbstractEventLoop) -> None:
        config, read = self._config, self._bundle
        self._supervision.tell(f"loading the bundle {config.bundle.path}")
        if config.bundle.verify:
            bundle.verify_files(read)
        _log_licence(read)
        self._store.sweep()
        chinese.warm()
        self._front.speakable("warm 1 😂 你好")
        try:
            loaded = load_for(read, config.engine, self._getting_on)
        except Interrupted:
            logger.info("stopped while engines were built; the next start goes on")
            return
        try:
            begun = time.monotonic()
            manifest = read.manifest
            self._supervision.tell(f"warming up {manifest.family} {manifest.precision} on {loaded.backend}")
            loaded.warm_up(config.synthesis.nfe)
            logger.info("every path warm after %.1f s on %s", time.monotonic() - begun, loaded.backend)
            self._metrics.watch_costs(loaded.costs)
            loop.call_soon_threadsafe(self._warm.set)
            self._scheduler.run(loaded)
        finally:
            (cast("Synthesizer | None", self._scheduler.engine) or loaded).shutdown()

    def _getting_on(self, line: str) -> None:
        """Tell what takes minutes at start. Raises Interrupted to end it when the daemon stops."""
        if self._stop.is_set():
            raise Interrupted
        self._supervision.tell(line)

    # Around it.

    @contextlib.contextmanager
    def _serving_probes(self, synthesizer: SynthesizerService) -> Iterator[None]:
        self._metrics.watch(
            lambda: self._scheduler.load,
            self._warm.is_set,
            planning=lambda: synthesizer.planning,
            sending=lambda: synthesizer.sending,
        )
        servers: dict[str, Callable[[str], ProbeServer]] = {
            "metrics": partial(
                MetricsServer, metrics=self._metrics, alive=self._alive, ready=self._warm.is_set
            ),
            "agent": partial(AgentServer, state=self._fleet_state, busy=lambda: self._scheduler.busy),
        }
        with contextlib.ExitStack() as open_servers:
            for key, make in servers.items():
                if address := getattr(self._config.server, key):
                    open_servers.callback(_listening(f"server.{key}", address, make).close)
            yield

    @property
    def _state(self) -> str:
        return "draining" if self._stop.is_set() else "running" if self._warm.is_set() else "starting"

    def _fleet_state(self) -> str:
        # The engine ends before a drain does.
        return self._state if self._stop.is_set() or self._alive() else "the engine shows no sign of life"

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)

    def stop(self) -> None:
        """Drain and end; told again, wait for nothing."""
        if self._stop.is_set():
            logger.info("told again to stop: not waiting for what was begun")
            self._scheduler.cancel_all()
            self._hurry.set()
        self._stop.set()

    def _on_reload(self) -> None:
        try:
            self.reload()
        except ApplianceError as error:
            logger.error("reload: keeping the old configuration: %s", error)

    def reload(self) -> list[str]:
        """Take over what of the configuration can change while streams go on; voices are read when used.

        Returns the sections that have changed and need a restart. Raises ConfigError.
        """
        config = self._reread()
        fixed = [
            section
            for section in vars(config)
            if section not in LIVE_SECTIONS and getattr(config, section) != getattr(self._config, section)
        ]
        if fixed:
            logger.warning("reload: only a restart takes over the changes in %s", ", ".join(fixed))
        self._configure(self.speech, config)
        self.log_at(config.log)
        logger.info("reload: configuration read, %d voices", len(self._store.names()))
        return fixed

    def log_at(self, config: LogConfig) -> None:
        """Log from this level on."""
        logging.getLogger().setLevel(config.level.upper())

    def describe(self) -> admin_pb2.Status:
        """Return the description and present state, for the operator."""
        manifest, load = self._bundle.manifest, self._scheduler.load
        return admin_pb2.Status(
            version=importlib.metadata.version("f5-appliance"),
            state=self._state,
            bundle=str(self._bundle.folder),
            family=manifest.family,
            precision=manifest.precision,
            backend=self._scheduler.backend,
            waiting=load.waiting,
            running=load.running,
            voices=len(self._store.names()),
            paused=self._scheduler.paused,
            degraded=self._clocks.status.degraded,
            log_level=logging.getLevelName(logging.getLogger().level).lower(),
            uptime_s=time.monotonic() - self._begun,
        )

    async def swap(self, folder: Path) -> None:
        """Load another bundle beside the one that speaks, and give it all new requests.

        Raises BundleError when it cannot be used or hears reference voices in another way, EngineFault,
        StorageError, Unavailable.
        """
        self._scheduler.check_open()
        config, speech = self._config, self.speech

        def load_other() -> tuple[Bundle, Synthesizer]:
            real = Path(os.path.realpath(folder))
            read = bundle.read(real, verify=config.bundle.verify).up_to(config.engine.longest_s)
            now, then = self._bundle.manifest, read.manifest
            if (then.mel, then.defaults.target_rms) != (now.mel, now.defaults.target_rms):
                raise BundleError(
                    f"{folder}: its mel is another than that of the prepared voices; restart with it"
                )
            loaded = load_for(read, config.engine, self._getting_on)
            try:
                loaded.warm_up(config.synthesis.nfe)
            except BaseException:
                loaded.shutdown()
                raise
            return read, loaded

        try:
            read, loaded = await asyncio.to_thread(load_other)
        except Interrupted:
            raise Unavailable("the daemon is draining") from None

        def switch() -> None:
            self._bundle = read
            speech.planner = replace(
                speech.planner, manifest=read.manifest, vocabulary=read_vocabulary(read.vocab)
            )
            self._front = Front(speech.planner.vocabulary, self._front.manners)
            speech.defaults = replace(speech.defaults, speakable=self._front.speakable)
            if speech.defaults.synthesis.guidance is None:
                speech.defaults = replace(speech.defaults, guidance=read.manifest.defaults.guidance)

        try:
            self._scheduler.exchange(loaded, switch)
        except ApplianceError:
            loaded.shutdown()
            raise
        self._metrics.watch_costs(loaded.costs)
        logger.info("new requests are spoken from %s on %s", folder, loaded.backend)

    def _configure(self, speech: Speech, config: Config) -> None:
        synthesis = config.synthesis
        own = self._bundle.manifest.defaults.guidance if synthesis.guidance is None else synthesis.guidance
        self._front = Front(speech.planner.vocabulary, Manners(**vars(config.text)))
        speech.defaults = replace(
            speech.defaults, synthesis=synthesis, guidance=own, speakable=self._front.speakable
        )
        speech.planner = replace(
            speech.planner, max_audio_s=synthesis.max_audio_s, max_work_s=synthesis.max_work_s
        )
        self._scheduler.config = config.scheduler

    def _addresses(self, port: int) -> str:
        host = self._config.server.listen.rpartition(":")[0]
        socket = self._config.server.socket
        return f"{host}:{port}" + (f" and {socket}" if socket else "")


def _listening(key: str, address: str, make: Callable[[str], ProbeServer]) -> ProbeServer:
    try:
        return make(address)
    except OSError as error:
        raise cannot_listen(key, address, error) from error


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None], error: BaseException | None) -> None:
    def settle() -> None:
        if ended.cancelled():
            return
        if error is None:
            ended.set_result(None)
        elif isinstance(error, ApplianceError):
            ended.set_exception(error)
        else:
            fault = EngineFault(f"the engine failed: {type(error).__name__}: {error}")
            fault.__cause__ = error
            ended.set_exception(fault)

    # Without a loop nobody is left to tell.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


async def _others_ended(within_s: float) -> None:
    """Wait for the other tasks of this loop.

    Calls that stop() cancelled end a moment after it has returned; gRPC logs a traceback for each that the
    loop cancels once more.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=within_s)


def _log_failure(task: asyncio.Future[None]) -> None:
    """A fault in what runs beside the calls ends none of them, but must not go unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("background task died", exc_info=error)


@contextlib.contextmanager
def _logged(message: str) -> Iterator[None]:
    """At the end of a life, where the reason for it must not be replaced by another."""
    try:
        yield
    except StorageError as error:
        logger.error("%s: %s", message, error)


def _door(config: ServerConfig) -> Door:
    """Raises StorageError."""
    if config.tls_certificate and not (config.tokens or config.tls_clients):
        logger.warning("server.tokens: none is needed, so whoever reaches %s may speak", config.listen)
    if not config.tokens:
        return Door()
    tokens = Tokens(Path(config.tokens))
    if not tokens:
        logger.warning("server.tokens: %s has none yet: `appliance tokens add` makes one", config.tokens)
    return Door(tokens)


def _faces(synthesizer: SynthesizerService, store: VoiceStore, prompts: Prompts) -> tuple[Face, ...]:
    """Other projects' interfaces whose messages are installed."""
    try:
        from appliance.rpc import riva
    # Riva's messages refuse a grpcio and a protobuf that are older than their compilers with other errors.
    except (ImportError, RuntimeError, VersionError) as error:
        logger.info("Riva's clients are not served (extra riva): %s", error)
        return ()
    return (riva.face(synthesizer, store, prompts),)


def _log_licence(read: Bundle) -> None:
    manifest = read.manifest
    licence = manifest.licence
    logger.info("bundle %s: %s %s", read.folder, manifest.family, manifest.precision)
    logger.info("weights: %s, from %s", licence.weights, licence.source)
    logger.info("vocoder: %s, from %s", licence.vocoder, licence.vocoder_source or "unknown")
    if "NC" in licence.weights.upper().split("-"):
        logger.warning("these weights may not be used commercially (%s)", licence.weights)
    if licence.note:
        logger.info("licence note: %s", licence.note)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(levelname)s %(name)s: %(message)s", force=True
    )


def _status_of(error: Exception) -> Exit:
    for kind, code in STATUSES.items():
        if isinstance(error, kind):
            return code
    return Exit.ENGINE


def _ended(code: Exit, error: Exception) -> int:
    print(f"appliance serve: {error}", file=sys.stderr)
    if error.__cause__ is not None:
        logger.debug("because of", exc_info=error)
    return code
