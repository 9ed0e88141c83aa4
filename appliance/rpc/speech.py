"""Speech: planner, defaults and parts of the daemon that requests are spoken with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from appliance.audio.phrases import Phrases
from appliance.contract.bundle import Manifest
from appliance.request import PassedOver, Timings
from appliance.rpc.requests import RequestDefaults
from appliance.scheduler import Scheduler
from appliance.scheduler.workload import Clock
from appliance.speech.plan import Planner


@dataclass(frozen=True)
class Speech:
    """Taken whole by each call; a reload or a bundle swap replaces it whole."""

    planner: Planner
    defaults: RequestDefaults
    scheduler: Scheduler
    clock: Clock
    generation: int | None = 0
    """Engine of the planner's bundle; None for one beside the present engine, which nothing replaces."""
    bundle: str = ""
    """Key of an engine beside the present one."""
    beside: Mapping[str, Speech] = field(default_factory=dict)
    """Those of further bundles, by key."""
    phrases: Phrases = field(default_factory=lambda: Phrases(0))
    spoken: Callable[[Timings, float], None] = lambda timings, promised_s: None
    """Counts a finished request."""
    skipped: Callable[[], None] = lambda: None
    """Counts a request with nothing to speak."""
    at_hand: Callable[[str, str], bool] = lambda voice, style: False
    """True if a voice is prepared in memory in this style."""
    degraded: Callable[[], str] = lambda: ""
    """One word for machines on why requests are served worse than they should be; else empty."""

    def of(self, bundle: str) -> Speech:
        return self.beside[bundle] if bundle else self

    @property
    def backend(self) -> tuple[str, Sequence[PassedOver]]:
        """Backend of the engine, and backends that the engine passed over."""
        engine = self.scheduler.engines.of(self.bundle)
        return (engine.backend, engine.passed_over) if engine else ("", ())

    @property
    def manifest(self) -> Manifest:
        return self.planner.manifest
