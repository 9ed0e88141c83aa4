"""The only file that knows every part: listen → load → verify → warm up → ready → drain → release.

exit status  meaning                                              start again?
0            drained after SIGTERM or SIGINT                      -
65           the bundle is missing, damaged, or not for this box  no
70           the engine failed                                    yes
74           a folder or socket cannot be used                    no
75           an address is in use                                 yes
78           the configuration cannot be used                     no
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from appliance.clockwatch import PERIOD_S as CLOCKS_PERIOD_S
from appliance.clockwatch import STATES, ClockWatch
from appliance.config import Config, EngineConfig, load
from appliance.contract import bundle
from appliance.contract.bundle import Bundle
from appliance.contract.tokens import read_vocabulary
from appliance.device.box import Box
from appliance.device.root import Root
from appliance.engine import replay, synthesizer
from appliance.errors import (
    ApplianceError,
    BundleError,
    ConfigError,
    EngineFault,
    StorageError,
    Unavailable,
)
from appliance.metrics import Metrics, MetricsServer
from appliance.notify import Notifier
from appliance.rpc.server import AddressInUse, Listening, listen
from appliance.rpc.synthesizer import Speech, Synthesizer
from appliance.rpc.voices import Voices
from appliance.scheduler import Scheduler
from appliance.supervision import Supervision
from appliance.text import chinese
from appliance.voicebox import Voicebox, voice_store

logger = logging.getLogger(__name__)

WORKERS = 2
"""Threads that plan and decode beside the engine's."""
LANES = 1
"""The scheduler serves one segment at a time."""
RELEASE_S = 5.0
"""How long the engine's present call may take once everything else has ended."""
GRACE_S = 1.0
"""How long calls may take to end once the server stops."""
AFTER_DRAIN_S = RELEASE_S + GRACE_S + 9.0
"""From the end of the drain to that of the process, with some to spare; f5-appliance.service allows it."""


class Exit(enum.IntEnum):
    """How the daemon ends; the numbers are those of sysexits.h."""

    OK = 0
    BUNDLE = 65
    ENGINE = 70
    STORAGE = 74
    ADDRESS_IN_USE = 75
    CONFIG = 78


STATUSES: Mapping[type[Exception], Exit] = {
    ConfigError: Exit.CONFIG,
    BundleError: Exit.BUNDLE,
    StorageError: Exit.STORAGE,
    AddressInUse: Exit.ADDRESS_IN_USE,
}
"""Of every other error that is ours, the engine's."""


def main(path: Path | None, overrides: Iterable[str]) -> int:
    """Run the daemon until it is told to stop; whatever keeps it from starting is one line on stderr."""
    notifier = Notifier.from_environment(os.environ)
    try:
        config = load(path, overrides)
        _log_to_stderr(config.log.level)
        asyncio.run(Daemon(config, notifier).live())
    except (ApplianceError, AddressInUse) as error:
        # systemd shows the last line it was told, and of a failed start that would be the drain's.
        notifier.status(str(error))
        return _ended(_status_of(error), error)
    return Exit.OK


def replay_case(folder: Path, case: Path, nfe: int, out: Path) -> None:
    """Run one given case on the engine and write what comes out. Raises ApplianceError, OSError."""
    engine = _engine(bundle.read(folder), EngineConfig())
    try:
        replay.write_result(out, *replay.replay(engine, replay.read_case(case, engine, nfe)))
    finally:
        engine.shutdown()


class Daemon:
    """One life of the daemon."""

    def __init__(self, config: Config, notifier: Notifier | None = None) -> None:
        self._config = config
        self._metrics = Metrics()
        self._scheduler = Scheduler(queue_length=config.scheduler.queue_length)
        self._supervision = Supervision(notifier or Notifier(), lambda: self._scheduler.silence_s)
        self._clocks = ClockWatch(Box(Root(config.device.sysroot)), str(config.device.clocks))
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
        self._voicebox: Voicebox | None = None
        self._engine: threading.Thread | None = None
        self._warm = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._synthesizer: Synthesizer | None = None
        self._backend = ""

    async def live(self) -> None:
        """From the first listening socket to the last released thread.

        Raises what main() has an exit status for.
        """
        self._catch_signals()
        listening = await self._listen()
        try:
            with self._serving_metrics():
                await self._serve(listening)
        finally:
            await listening.server.stop(grace=GRACE_S)
            self._workers.shutdown(wait=False, cancel_futures=True)

    async def _listen(self) -> Listening:
        speech = Speech(
            plan=lambda request: self._box().plan(request),
            workers=self._workers,
            scheduler=self._scheduler,
            defaults=lambda: self._box().defaults,
            observer=self._metrics,
            clock=time.monotonic,
            degraded=lambda: self._clocks.standing.degraded,
            backend=lambda: self._backend,
        )
        server = self._config.server
        self._synthesizer = Synthesizer(speech, server)
        return await listen(
            server,
            self._synthesizer,
            Voices(lambda: self._box().store, self._workers),
            self._metrics.observe,
        )

    async def _serve(self, listening: Listening) -> None:
        engine_ended = self._start_engine()
        stopped = asyncio.ensure_future(self._stop.wait())
        warm = asyncio.ensure_future(self._warm.wait())
        beside = [asyncio.ensure_future(c) for c in (self._attend(), self._follow_clocks(listening))]
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
            await self._drain(engine_ended)
        finally:
            for task in (stopped, warm, *beside):
                task.cancel()

    async def _attend(self) -> None:
        """Feed the watchdog; nothing here waits for anybody, or a stuck caller would stop it."""
        while True:
            self._supervision.turn(self._status())
            await asyncio.sleep(self._supervision.period_s)

    async def _follow_clocks(self, listening: Listening) -> None:
        while True:
            clocks, degraded = self._clocks.standing.clocks, bool(self._clocks.standing.degraded)
            repins = None if clocks.state == "unknown" else clocks.repins
            self._metrics.clocks(STATES, clocks.state, repins=repins, degraded=degraded)
            await listening.set_clocks(not degraded)
            await asyncio.sleep(CLOCKS_PERIOD_S)
            self._clocks.look()

    def _status(self) -> str:
        """The daemon in one line, when it is well."""
        load = self._scheduler.load
        counts = f"{load.running} speaking, {load.waiting} waiting, {self._metrics.spoken_requests} spoken"
        told = self._clocks.standing.told
        return f"{'ready' if self._warm.is_set() else 'draining'}: {counts}" + (f"; {told}" if told else "")

    async def _drain(self, engine_ended: asyncio.Future[None]) -> None:
        """Finish what was begun, within bounds; raises what the engine's thread ended with."""
        self._warm.clear()
        self._scheduler.drain()
        drain_s, begun = self._config.server.drain_s, time.monotonic()
        self._supervision.stopping(self._status(), within_s=drain_s + AFTER_DRAIN_S)
        if not engine_ended.done():
            logger.info("draining for up to %g s", drain_s)
            await asyncio.wait((engine_ended,), timeout=drain_s)
        # When its thread has ended by itself, jobs may wait that nobody will serve.
        self._scheduler.cancel_all()
        # The engine is ahead of its readers: what it has finished has yet to reach them.
        await self._sent(timeout=drain_s - (time.monotonic() - begun))
        if not engine_ended.done():
            await asyncio.wait((engine_ended,), timeout=RELEASE_S)
        if engine_ended.done():
            engine_ended.result()
        else:
            logger.warning("the engine's present call takes too long; leaving it")

    async def _sent(self, timeout: float) -> None:
        """Wait until every reply has been sent, but not longer than that, nor once told to hurry."""
        if self._synthesizer is None:
            return
        waits = [asyncio.ensure_future(w) for w in (self._synthesizer.idle(), self._hurry.wait())]
        await asyncio.wait(waits, timeout=max(timeout, 0.0), return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _box(self) -> Voicebox:
        if self._voicebox is None:
            raise Unavailable("the daemon is starting")
        return self._voicebox

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
        config = self._config
        self._supervision.tell(f"loading the bundle {config.bundle.path}")
        read = bundle.read(config.bundle.path, verify=config.bundle.verify)
        _log_licence(read)
        store = voice_store(config, read.manifest)
        store.sweep()
        vocabulary = read_vocabulary(read.vocab)
        chinese.warm()
        engine = _engine(read, config.engine)
        try:
            begun = time.monotonic()
            self._backend = engine.backend
            self._supervision.tell(
                f"warming up {read.manifest.family} {read.manifest.precision} on {engine.backend}"
            )
            engine.warm_up(config.synthesis.nfe)
            logger.info("every path warm after %.1f s on %s", time.monotonic() - begun, engine.backend)
            self._voicebox = Voicebox(config, read, store, vocabulary)
            loop.call_soon_threadsafe(self._warm.set)
            self._scheduler.run(engine)
        finally:
            engine.shutdown()

    # Around it.

    @contextlib.contextmanager
    def _serving_metrics(self) -> Iterator[None]:
        self._metrics.watch(lambda: self._scheduler.load.waiting, self._warm.is_set)
        address = self._config.server.metrics
        if not address:
            yield
            return
        try:
            server = MetricsServer(address, self._metrics, alive=self._alive, ready=self._warm.is_set)
        except OSError as error:
            raise AddressInUse(f"server.metrics: cannot listen on {address}: {error.strerror}") from error
        try:
            yield
        finally:
            server.close()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            logger.info("told again to stop: not waiting for what was begun")
            self._scheduler.cancel_all()
            self._hurry.set()
        self._stop.set()

    def _addresses(self, port: int) -> str:
        host = self._config.server.listen.rpartition(":")[0]
        socket = self._config.server.socket
        return f"{host}:{port}" + (f" and {socket}" if socket else "")


def _engine(read: Bundle, config: EngineConfig) -> synthesizer.Synthesizer:
    try:
        return synthesizer.load(
            read,
            backend=config.backend,
            threads=config.threads,
            spinning=config.spinning,
            lanes=LANES,
        )
    except ApplianceError:
        raise
    except (MemoryError, OSError) as error:
        # Of the box and of the moment, not of the bundle: the next start may do better.
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise EngineFault(f"the engine cannot be loaded: {told}") from error
    except Exception as error:
        raise BundleError(f"{read.folder}: cannot be loaded: {' '.join(str(error).split())}") from error


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


def _log_failure(task: asyncio.Future[None]) -> None:
    """A fault in what runs beside the calls ends none of them, but must not go unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the daemon no longer looks after itself", exc_info=error)


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
