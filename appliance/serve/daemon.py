"""Life of the daemon: read → listen → verify → load → warm up → ready → drain → release.

exit status  meaning                                              start again?
0            drained after SIGTERM or SIGINT                      -
65           the bundle is missing, damaged, or not for this box  no
68           an address is not this machine's, for ten minutes    yes
69           the device or the machine has too little memory      yes
70           the engine failed                                    yes
71           the device is lost                                   yes
74           a folder or socket cannot be used                    no
75           an address is in use                                 yes
78           the configuration cannot be used                     no
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import cast

import grpc

from appliance import sighup
from appliance.access.token_file import Tokens
from appliance.audio.phrases import Phrases
from appliance.box.checks.health_json import last_run
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.config import Config, ServerConfig, load
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_for, that_rests
from appliance.engine.resting import RestingEngine
from appliance.errors import (
    ApplianceError,
    EngineFault,
    Exit,
    Interrupted,
    OutOfDeviceMemory,
    StorageError,
    cannot_listen,
)
from appliance.rpc import admin_pb2
from appliance.rpc.admin import AdminService
from appliance.rpc.callers import Callers
from appliance.rpc.listen import Broadcaster
from appliance.rpc.moderation import QueueService
from appliance.rpc.replies import passed_over_messages
from appliance.rpc.roles import CallAccess
from appliance.rpc.server import RunningServer, listen, listen_to_operator, riva_services
from appliance.rpc.speaking import Speaking
from appliance.rpc.synthesizer import SynthesizerService
from appliance.rpc.voices import VoicesService
from appliance.scheduler import Scheduler
from appliance.serve.changes import Changes, warm_tokens
from appliance.serve.clockwatch import PERIOD_S as CLOCKS_PERIOD_S
from appliance.serve.clockwatch import STATES, ClockWatch
from appliance.serve.held import HeldFile
from appliance.serve.metrics import Metrics
from appliance.serve.minutes import MINUTE_S, Minutes
from appliance.serve.network import await_addresses
from appliance.serve.notify import Notifier
from appliance.serve.probes import AgentServer, MetricsServer, ProbeServer
from appliance.serve.process import configured, exit_status
from appliance.serve.supervision import Supervision
from appliance.serve.trace import Recorder
from appliance.speech.resident import bundle_of
from appliance.speech.speech import usual_choices
from appliance.voices.index import open_index
from appliance.voices.prompts import Prompts
from appliance.voices.store import VoiceStore

logger = logging.getLogger(__name__)

RELEASE_S = 5.0
"""Seconds that the engine's last call may take after everything else has ended."""
GRACE_S = 1.0
"""Seconds that calls may take to end after the server stops."""
AFTER_DRAIN_S = RELEASE_S + 2 * GRACE_S + 8.0
"""Longest time from the end of the drain to the end of the process; f5-appliance.service allows as much."""
ORDER_S = 1.0
"""Seconds between two writes of the order of held requests. Moderators' decisions are stored at once."""
STALLED_S = 1.0
"""Seconds after which a drain no longer waits for a reader that has played its audio and takes nothing more.
"""
REBOOT_FIRST = "the power mode takes effect at a reboot, which changes the GPU: sudo f5-setup"


def main(path: Path | None, overrides: Iterable[str], trace: Path | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    overrides = tuple(overrides)

    def run(notifier: Notifier) -> int:
        async def live() -> None:
            await Daemon(config, partial(load, path, overrides), notifier, trace).live()

        config = configured(path, overrides)
        keys = ("listen", "metrics", "agent")
        await_addresses({f"server.{key}": getattr(config.server, key) for key in keys}, notifier)
        asyncio.run(live())
        return Exit.OK

    return exit_status("serve", run)


class Daemon:
    """The process. `__init__` reads the bundle; `live` does everything after that."""

    def __init__(
        self, config: Config, reread: Callable[[], Config], notifier: Notifier, trace: Path | None = None
    ) -> None:
        """Raises BundleError, StorageError."""
        self._config, self._reread = config, reread
        bundle = bundle_of(config)
        self._store = VoiceStore(open_index(config.voices, bundle))
        self._prompts = Prompts(self._store.index)
        phrases = Phrases(config.cache.phrases_bytes, drawn_seeds=config.cache.drawn_seeds)
        self._metrics = Metrics()
        phrases.show(self._metrics.show)
        self._trace = trace
        self._recorder = None if trace is None else Recorder()
        self._scheduler = Scheduler(config.scheduler, call_at=self._call_at, observer=self._recorder)
        self._held_file = HeldFile(config.voices.folder, self._scheduler.queue)
        self._write_trace()  # an empty trace: an error shows now and not at the end
        self._supervision = Supervision(notifier, lambda: self._scheduler.silence_s)
        box = Box(Root(config.device.sysroot))
        self._metrics.watch_health(lambda: last_run(box))
        self._clocks = ClockWatch(box, str(config.device.clocks))
        self._minutes = Minutes(self._metrics, box.root)
        self._loop = asyncio.get_running_loop()
        self._engine: threading.Thread | None = None
        self._begun = time.monotonic()
        self._warm = asyncio.Event()
        """Set while the engine accepts requests."""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        """Set at the second signal: do not wait for unfinished requests."""
        index = self._store.index
        self._changes = Changes(config, bundle, index, self._prompts, self._scheduler, phrases)

    async def live(self) -> None:
        """Run to the end of the process. Raises the errors of `errors.STATUSES`."""
        server = self._config.server
        callers = Callers(server, _call_access(server), time.monotonic)
        speaking = Speaking(self._changes, server, self._metrics, self._clocks)
        broadcaster = Broadcaster(speaking, server.message_s)
        voices = VoicesService(self._store)
        verbs, save = self._scheduler.queue, self._held_file.save
        queue = QueueService(verbs, time.monotonic, speaking.end, broadcaster, save)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        sighup.answer()
        services = riva_services(speaking, self._store.index, self._prompts)
        synthesizer = SynthesizerService(speaking)
        listening = await listen(server, synthesizer, voices, queue, self._metrics.observe, callers, services)
        operated: grpc.aio.Server | None = None
        try:
            if server.admin is not None:
                admin = AdminService(self)
                operated = await listen_to_operator(server.admin, admin, self._metrics.observe)
            with self._probe_servers(speaking):
                await self._serve(listening, speaking, callers)
        finally:
            if operated is not None:
                await operated.stop(grace=GRACE_S)
            callers.drain()
            await listening.server.stop(grace=GRACE_S)
            # Calls that stop() has cancelled end a moment after it returns. If the loop's end cancelled them
            # once more, gRPC would log a traceback for each.
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=GRACE_S)
            speaking.close()
            voices.close()
            with contextlib.suppress(StorageError):
                self._held_file.save()
            try:
                self._write_trace()
            except StorageError as error:  # logged: it must not replace the error that ends the daemon
                logger.error("the trace is lost: %s", error)

    @contextlib.contextmanager
    def _probe_servers(self, speaking: Speaking) -> Iterator[None]:
        """Serve metrics and haproxy's agent check, if they are configured."""
        self._metrics.watch(
            lambda: self._scheduler.load,
            self._warm.is_set,
            planning=lambda: speaking.planning,
            sending=lambda: speaking.sending,
            resting=lambda: self._scheduler.engines.is_resting,
        )
        servers: dict[str, Callable[[str], ProbeServer]] = {
            "metrics": partial(
                MetricsServer,
                metrics=self._metrics,
                names=self._config.gateway.names,
                alive=self._alive,
                ready=self._warm.is_set,
                state=self._tell,
            ),
            "agent": partial(AgentServer, state=self._fleet_state, busy=lambda: self._scheduler.busy),
        }
        with contextlib.ExitStack() as stack:
            for key, make in servers.items():
                if address := getattr(self._config.server, key):
                    try:
                        stack.callback(make(address).close)
                    except OSError as error:
                        raise cannot_listen(f"server.{key}", address, error) from error
            yield

    async def _serve(self, listening: RunningServer, speaking: Speaking, callers: Callers) -> None:
        """Start to serve when the engine is warm. Drain when the engine ends, or at a signal."""
        engine_ended = self._start_engine()
        stopped = asyncio.ensure_future(self._stop.wait())
        warm = asyncio.ensure_future(self._warm.wait())
        background = [
            asyncio.ensure_future(self._supervise(speaking, callers)),
            asyncio.ensure_future(self._follow_clocks(listening)),
            asyncio.ensure_future(self._keep_order()),
            asyncio.ensure_future(self._count_minutes()),
        ]
        for loop in background:
            loop.add_done_callback(_log_failure)
        try:
            await asyncio.wait((engine_ended, stopped, warm), return_when=asyncio.FIRST_COMPLETED)
            if warm.done() and not stopped.done():
                await listening.set_serving()
                host = self._config.server.listen.rpartition(":")[0]
                socket = self._config.server.socket
                logger.info("ready on %s:%d%s", host, listening.port, f" and {socket}" if socket else "")
                self._supervision.ready(self._status())
                await asyncio.wait((engine_ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            await listening.health.enter_graceful_shutdown()
            await self._drain(engine_ended, speaking)
        finally:
            engine_ended.cancel()  # a call that never returns must not set its result on a closed loop
            for task in (stopped, warm, *background):
                task.cancel()

    # The engine's thread.

    def _start_engine(self) -> asyncio.Future[None]:
        """Start the engine's thread.

        The future ends with the thread: with its error, which is an ApplianceError.
        """
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()  # from now on nobody can cancel it

        def run() -> None:
            try:
                self._run_engine()
            except ApplianceError as error:
                ended.set_exception(error)
            except BaseException as error:
                fault = EngineFault(f"the engine failed: {type(error).__name__}: {error}")
                fault.__cause__ = error
                ended.set_exception(fault)
            else:
                ended.set_result(None)

        # A daemon thread: a native call that never returns must not keep the process alive.
        self._engine = threading.Thread(target=run, name="engine", daemon=True)
        self._engine.start()
        return asyncio.wrap_future(ended)

    def _run_engine(self) -> None:
        """Thread of the engine: loads and warms up engines, then runs the scheduler."""
        config, bundle = self._config, self._changes.bundle
        self._note_step(f"loading the bundle {config.bundle.path}")
        if config.bundle.verify:
            contract.verify_files(bundle)
        _log_licence(bundle)
        self._store.sweep()
        warm_tokens(bundle.manifest.text)
        self._changes.speech.front.speakable("warm 1 😂 你好")
        loaded: Synthesizer | None
        try:
            # A reboot into another power mode changes the GPU, so engines built now would have to be built
            # again.
            pending = self._clocks.status.clocks.state == "reboot_pending"
            postponed, watermark = REBOOT_FIRST if pending else "", config.audio.watermark
            beside = [bundle.folder, *(other.folder for other in self._changes.secondary.values())]
            load = partial(
                load_for,
                config=config.engine,
                report=self._report_progress,
                postponed=postponed,
                watermark=watermark,
                beside=beside,
            )
            loaded = load(bundle)
        except Interrupted:
            logger.info("stopped while engines were built; the next start goes on")
            return
        try:
            begun = time.monotonic()
            manifest = bundle.manifest
            self._note_step(f"warming up {manifest.family} {manifest.precision} on {loaded.backend}")
            nfe = self._changes.speech.usual.nfe_steps
            loaded.warm_up(nfe)
            logger.info("every path warm after %.1f s on %s", time.monotonic() - begun, loaded.backend)
            self._metrics.watch_engine(loaded)
            for key, other in self._changes.secondary.items():
                self._load_beside(key, other, load)
            # This comes before the daemon reports that it is ready, because it must not refuse its first
            # call.
            self._scheduler.start(that_rests(loaded, bundle, config.engine, nfe, watermark))
            loaded = None  # so that a bundle swap can free it
            self._loop.call_soon_threadsafe(self._warm.set)
            self._scheduler.run()
        except Interrupted:
            logger.info("stopped while engines were built; the next start goes on")
        finally:
            if (
                engine := cast("Synthesizer | RestingEngine | None", self._scheduler.engines.current)
                or loaded
            ):
                engine.shutdown()

    def _load_beside(self, key: str, bundle: Bundle, load: Callable[[Bundle], Synthesizer]) -> None:
        """Load a secondary bundle. Raises OutOfDeviceMemory, BundleError, EngineFault."""
        from appliance.engine.tensorrt.prepare import available_bytes

        size, free = sum(file.size_bytes for file in bundle.manifest.files.values()), available_bytes()
        if size > free:
            raise OutOfDeviceMemory(
                f"text.languages: {key} would take {size / 1e6:.0f} MB of memory for its files alone, "
                f"and {free / 1e6:.0f} MB are free beside {self._config.bundle.path}"
            )
        self._note_step(f"loading the bundle {key}")
        if self._config.bundle.verify:
            contract.verify_files(bundle)
        _log_licence(bundle)
        warm_tokens(bundle.manifest.text)
        loaded = load(bundle)
        self._scheduler.engines.add(key, loaded)
        loaded.warm_up(usual_choices(self._config.synthesis, bundle.manifest).nfe_steps)
        logger.info("bundle %s speaks beside the first, on %s", key, loaded.backend)

    def _report_progress(self, line: str) -> None:
        """Report a line of progress. Raises Interrupted if the daemon has been stopped."""
        if self._stop.is_set():
            raise Interrupted
        self._note_step(line)

    def _note_step(self, step: str) -> None:
        """Report the current step of the start to systemd, and in the error of callers who come too soon."""
        self._supervision.set_status(step)
        self._scheduler.starting(step)

    def _call_at(self, when: float, act: Callable[[], None]) -> None:
        """Call a function at a time of the monotonic clock, which the event loop uses too.

        Any thread may call this.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._loop.call_at, when, act)

    # Background tasks of the event loop.

    async def _supervise(self, speaking: Speaking, callers: Callers) -> None:
        """Feed the watchdog; end calls whose readers have stalled or whose tokens were revoked."""
        while True:
            self._supervision.tick(self._status())
            draining = self._stop.is_set()
            limit_s = STALLED_S if draining else self._config.server.write_timeout_s
            speaking.drop_stalled(limit_s)
            callers.drop_stalled(limit_s)
            callers.drop_revoked()
            speaking.drop_revoked(callers.access)
            await asyncio.sleep(min(self._supervision.period_s, STALLED_S / 2 if draining else STALLED_S))

    async def _follow_clocks(self, listening: RunningServer) -> None:
        """Publish the clocks' state, and forget measured costs when it changes."""
        while True:
            clocks, degraded = self._clocks.status.clocks, bool(self._clocks.status.degraded)
            repins = None if clocks.state == "unknown" else clocks.repins
            self._metrics.clocks(STATES, clocks.state, repins=repins, degraded=degraded)
            await listening.set_clocks(not degraded)
            await asyncio.sleep(CLOCKS_PERIOD_S)
            if self._clocks.refresh():
                self._scheduler.engines.forget_costs()

    async def _keep_order(self) -> None:
        """Store the order of held requests when it changes.

        If the disk is full, a moderator's next verb reports it.
        """
        while True:
            with contextlib.suppress(StorageError):
                await asyncio.to_thread(self._held_file.save)
            await asyncio.sleep(ORDER_S)

    async def _count_minutes(self) -> None:
        while True:
            await asyncio.sleep(MINUTE_S)
            engines = self._scheduler.engines
            engine = "resting" if engines.is_resting else engines.backend
            await asyncio.to_thread(self._minutes.add, self._clocks.status.clocks, engine)

    # The end.

    def stop(self) -> None:
        """Start to drain, then end. A second call ends unfinished requests."""
        if self._stop.is_set():
            logger.info("stop requested again: ending unfinished requests")
            self._scheduler.cancel_all()
            self._hurry.set()
        self._stop.set()

    async def _drain(self, engine_ended: asyncio.Future[None], speaking: Speaking) -> None:
        """Finish requests under way within `server.drain_s`. Raises the error of the engine's thread."""
        self._warm.clear()
        self._stop.set()
        self._scheduler.drain()
        drain_s, begun = self._config.server.drain_s, time.monotonic()
        self._supervision.stopping(self._status(), within_s=drain_s + AFTER_DRAIN_S)
        if not engine_ended.done():
            logger.info("draining for up to %g s", drain_s)
            await asyncio.wait((engine_ended,), timeout=drain_s)
        # Jobs may still wait if the thread ended because of a fault.
        self._scheduler.cancel_all()
        # The engine is ahead of the readers, so they do not have all of its audio yet.
        waits = [asyncio.ensure_future(w) for w in (speaking.idle(), self._hurry.wait())]
        left_s = max(drain_s - (time.monotonic() - begun), 0.0)
        await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not engine_ended.done():
            await asyncio.wait((engine_ended,), timeout=RELEASE_S)
        if engine_ended.done():
            engine_ended.result()
        else:
            logger.warning("the engine's current call takes too long; ending without it")

    def _write_trace(self) -> None:
        """Write the trace, if there is one. Raises StorageError."""
        if self._trace is not None and self._recorder is not None:
            self._recorder.write(self._trace, self._scheduler.engines.backend)

    # State, for probes and the operator.

    @property
    def _state(self) -> str:
        return "draining" if self._stop.is_set() else "running" if self._warm.is_set() else "starting"

    def _alive(self) -> bool:
        return (self._engine is None or self._engine.is_alive()) and self._supervision.alive()

    def _fleet_state(self) -> str:
        # At a drain the engine ends before the daemon.
        return self._state if self._stop.is_set() or self._alive() else "the engine shows no sign of life"

    def _status(self) -> str:
        """Line for systemd: state, counts and problems."""
        load = self._scheduler.load
        counts = f"{load.running} speaking, {load.waiting} waiting, {self._metrics.spoken_requests} spoken"
        state, clocks = "ready" if self._warm.is_set() else "draining", self._clocks.status.message
        passed_over = ", ".join(one.backend for one in self._scheduler.engines.passed_over)
        resting = "resting: the engine gave its memory back" if self._scheduler.engines.is_resting else ""
        others = (resting, clocks, f"passed over: {passed_over}" if passed_over else "")
        return "; ".join((f"{state}: {counts}", *filter(None, others)))

    def _tell(self) -> dict[str, object]:
        """State for programs without gRPC. The keys are those of `readiness.DaemonState`."""
        engines, manifest = self._scheduler.engines, self._changes.bundle.manifest
        return {
            "state": self._state,
            "family": manifest.family,
            "languages": manifest.text.languages,
            "for_s": round(time.monotonic() - self._begun, 1),
            "step": self._supervision.status if self._state == "starting" else "",
            "backend": engines.backend,
            "resting": engines.is_resting,
            "passed_over": {one.backend: one.reason for one in engines.passed_over},
            "paused_s": {name: time.time() - since for name, since in self._scheduler.queue.paused.items()},
            "held_damage": self._held_file.damage,
            "minutes": self._minutes.rows,
        }

    def describe(self) -> admin_pb2.Status:
        """The daemon's status for operators."""
        now, load = self._changes.bundle, self._scheduler.load
        return admin_pb2.Status(
            version=importlib.metadata.version("f5-appliance"),
            state=self._state,
            bundle=str(now.folder),
            family=now.manifest.family,
            precision=now.manifest.precision,
            backend=self._scheduler.engines.backend,
            waiting=load.waiting,
            running=load.running,
            voices=len(self._store.index.names()),
            paused=self._scheduler.queue.paused,
            degraded=self._clocks.status.degraded,
            log_level=logging.getLevelName(logging.getLogger().level).lower(),
            uptime_s=time.monotonic() - self._begun,
            passed_over=passed_over_messages(self._scheduler.engines.passed_over),
        )

    # Changes while it runs.

    def _on_reload(self) -> None:
        try:
            self.reload()
        except ApplianceError as error:
            logger.error("reload: keeping the old configuration: %s", error)

    def reload(self) -> list[str]:
        """Read and apply the configuration.

        Returns the changed sections that need a restart. Raises ConfigError.
        """
        return self._changes.reload(self._reread())

    async def test_engine(self) -> float:
        return await self._changes.test_engine()

    async def swap(self, folder: Path) -> None:
        self._metrics.watch_engine(await self._changes.swap(folder, self._report_progress))


def _log_failure(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("background task died", exc_info=error)


def _call_access(config: ServerConfig) -> CallAccess:
    """Access for callers over TCP, from the configured file of tokens. Raises StorageError."""
    if config.tls_certificate and not (config.tokens or config.tls_clients):
        logger.warning("server.tokens is empty: whoever reaches %s may speak", config.listen)
    if not config.tokens:
        return CallAccess()
    tokens = Tokens(Path(config.tokens))
    if not tokens:
        logger.warning("server.tokens: %s has none yet: `appliance tokens add` makes one", config.tokens)
    return CallAccess(tokens)


def _log_licence(bundle: Bundle) -> None:
    manifest = bundle.manifest
    licence = manifest.licence
    logger.info("bundle %s: %s %s", bundle.folder, manifest.family, manifest.precision)
    logger.info("weights: %s, from %s", licence.weights, licence.source)
    logger.info("vocoder: %s, from %s", licence.vocoder, licence.vocoder_source or "unknown")
    if "NC" in licence.weights.upper().split("-"):
        logger.warning("these weights may not be used commercially (%s)", licence.weights)
    if licence.note:
        logger.info("licence note: %s", licence.note)
