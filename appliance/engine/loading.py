"""Loads the synthesizer that a configuration describes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from appliance.config import EngineConfig
from appliance.contract.bundle import FUSED, INT8, Bundle
from appliance.contract.tokens import read_vocabulary
from appliance.engine.backend import Arithmetic, Backend
from appliance.engine.cases import DemoSpeech
from appliance.engine.cuda import CAPTURING
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend, check_integers, cpu_variant
from appliance.engine.ort_cuda import OrtCudaBackend
from appliance.engine.resting import RestingEngine
from appliance.engine.watermark import Watermark
from appliance.errors import (
    ApplianceError,
    BundleError,
    DeviceLost,
    EngineFault,
    Interrupted,
    OutOfDeviceMemory,
    StorageError,
    engine_fault,
)
from appliance.request import PassedOver

if TYPE_CHECKING:
    from appliance.engine.tensorrt.build import Report
    from appliance.engine.tensorrt.gate import Comparison
    from appliance.engine.tensorrt.prepare import OpenBackend
    from appliance.engine.tensorrt.trt import TrtBackend

    Ensure = Callable[[Bundle, TrtBackend, OpenBackend, int], Mapping[str, Arithmetic]]
    """Signature of `prepare.ensure` without its options. A daemon on a CPU imports nothing of TensorRT."""

logger = logging.getLogger(__name__)

BACKENDS = ("tensorrt", "ort-cuda", "ort-cpu")
"""Backends in the order in which `auto` tries them."""
DEFAULTS = EngineConfig()
FUSED_LENGTHS = (150, 200)
"""Frames at which fused and plain attention are compared."""
REASON_LENGTH = 400
TRANSIENT = (DeviceLost, OutOfDeviceMemory, StorageError)
"""Temporary faults, which end a start even under `auto`."""
UNUSABLE = (BundleError, RuntimeError, TypeError, OSError)
"""Errors after which `auto` tries the next backend. TensorRT raises TypeError if its library fails."""


def open_backend(name: str, config: EngineConfig = DEFAULTS, report: Report = logger.debug) -> Backend:
    """Import a runtime, and open its backend. Raises BundleError if it is not installed."""
    if name == "tensorrt":
        from appliance.engine.tensorrt.trt import TrtBackend

        return TrtBackend(config.cache, report=report)
    if name == "ort-cuda":
        return OrtCudaBackend()
    if name == "ort-cpu":
        return OrtBackend(config.threads, spinning=config.spinning)
    raise BundleError(f"backend {name!r} is not built in; available: {', '.join(BACKENDS)}")


def load_for(
    bundle: Bundle,
    config: EngineConfig,
    report: Report = logger.debug,
    postponed: str = "",
    watermark: Path | None = None,
    beside: Collection[Path] = (),
) -> Synthesizer:
    """Load the engine of a configuration; under "auto", on the first of BACKENDS that synthesises a silence.

    `postponed`: reason for which "auto" builds no engines now, and tries the next backend. `beside`: folders
    of other bundles in use, whose built engines stay. Raises BundleError naming what each backend lacks,
    EngineFault if one failed otherwise, ConfigError for the folder `watermark`, and the errors of `report`.
    """
    try:
        mark = None if watermark is None else Watermark(watermark, config.threads)
        if mark is not None:
            mark.check_rate(bundle.manifest.mel.sample_rate_hz)
        postponed = postponed if config.backend == "auto" else ""
        engine = _load(bundle, config, report, partial(_ensure, postponed=postponed, beside=beside))
        engine.watermark = mark
        return engine
    except (ApplianceError, Interrupted):
        raise
    except (MemoryError, OSError) as error:
        # The fault is temporary and not the bundle's: another start may succeed.
        raise engine_fault(f"the engine cannot be loaded: {_reason(error)}") from error
    except Exception as error:
        raise BundleError(f"{bundle.folder}: cannot be loaded: {_reason(error)}") from error


def load_beside(
    bundle: Bundle,
    config: EngineConfig,
    nfe: int,
    report: Report,
    watermark: Path | None = None,
    beside: Collection[Path] = (),
) -> Synthesizer:
    """Load and warm up an engine while another one speaks. See `load_for` for `beside` and errors."""
    with CAPTURING:
        loaded = load_for(bundle, config, report, watermark=watermark, beside=beside)
        try:
            loaded.warm_up(nfe)
        except BaseException:
            loaded.shutdown()
            raise
        return loaded


def that_rests(
    engine: Synthesizer, bundle: Bundle, config: EngineConfig, nfe: int, watermark: Path | None = None
) -> Synthesizer | RestingEngine:
    """The engine for the scheduler: one that rests, if `idle_unload_s` is set."""
    if config.idle_unload_s is None:
        return engine
    same = replace(config, backend=cast(Any, engine.runtime))
    again = partial(load_for, bundle, same, watermark=watermark)
    return RestingEngine(engine, again, nfe, config.idle_unload_s)


def _ensure(*arguments: Any, **options: Any) -> Mapping[str, Arithmetic]:
    from appliance.engine.tensorrt import prepare

    return prepare.ensure(*arguments, **options)


def _load(bundle: Bundle, config: EngineConfig, report: Report, ensure: Ensure) -> Synthesizer:
    """Load an engine. For "auto", the first backend that passes a self-test."""
    open_ = partial(open_backend, config=config, report=report)
    if config.backend != "auto":
        return _synthesizer_on(config.backend, bundle, open_, config.lanes, ensure)
    passed_over: list[PassedOver] = []
    kind: type[ApplianceError] = BundleError
    for name in (name for name in BACKENDS if name in bundle.manifest.backends):
        try:
            engine = _synthesizer_on(name, bundle, open_, config.lanes, ensure)
            try:
                engine.self_test()
            except BaseException:
                engine.shutdown()
                raise
        except TRANSIENT:
            raise
        except UNUSABLE as error:
            if not isinstance(error, BundleError):
                kind = EngineFault
            reason = _reason(error).removeprefix(f"backend {name!r}").removeprefix(": ").lstrip()
            passed_over.append(PassedOver(name, reason))
            logger.warning("engine.backend auto: cannot use %s: %s", name, reason)
        else:
            engine.passed_over = tuple(passed_over)
            return engine
    raise kind(
        "; ".join(f"{one.backend}: {one.reason}" for one in passed_over)
        or f"the bundle is for {', '.join(bundle.manifest.backends)}: none of {', '.join(BACKENDS)}"
    )


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, ApplianceError) else f"{type(error).__name__}: "
    line = " ".join(f"{kind}{error}".split())
    return line if len(line) <= REASON_LENGTH else f"{line[:REASON_LENGTH]}…"


def prepare_for(
    bundle: Bundle, config: EngineConfig, report: Report, beside: Collection[Path], *, dry_run: bool
) -> None:
    """Build and compare engines, or report the plan. See `load_for` for `beside`.

    Raises BundleError, StorageError.
    """
    from appliance.engine.tensorrt import prepare

    open_ = partial(open_backend, config=config, report=report)
    names = BACKENDS if config.backend == "auto" else (config.backend,)
    try:
        device = open_(names[0])
    except TRANSIENT:
        raise
    except UNUSABLE as error:
        if config.backend != "auto":
            raise
        report(f"nothing is built for {' and '.join(names[1:])}; {_reason(error)}")
        return
    try:
        if not device.builds:
            report(f"nothing is built for {device.name}")
        elif dry_run:
            for line in prepare.plan(bundle, cast("TrtBackend", device), config.lanes).lines():
                report(line)
        else:
            prepare.ensure(bundle, cast("TrtBackend", device), open_, config.lanes, beside=beside)
            report("prepared")
    finally:
        device.close()


def _synthesizer_on(name: str, bundle: Bundle, open_: OpenBackend, lanes: int, ensure: Ensure) -> Synthesizer:
    """Open a backend and load the bundle on it, with the variant that is exact on this machine."""
    device = open_(name)
    try:
        safer: Mapping[str, Arithmetic] = {}
        if device.builds:
            safer = ensure(bundle, cast("TrtBackend", device), open_, lanes)
        variant = None
        if name == FUSED and FUSED in bundle.manifest.variants and (wrong := _fused_is_wrong(bundle, open_)):
            logger.warning(
                "%s: fused attention computes wrongly here; plain attention replaces it: %s", name, wrong
            )
            device.label, variant = f"{name} (plain attention)", "default"
        if name == "ort-cpu":
            check_integers(bundle)
            if (variant := cpu_variant(bundle)) == INT8:
                device.label = f"{name} (int8)"
        host = device if name == "ort-cpu" else open_("ort-cpu")
        return Synthesizer(bundle, device, host=host, lanes=lanes, variant=variant, safer=safer)
    except Exception:
        device.close()
        raise


def _fused_is_wrong(bundle: Bundle, open_: OpenBackend) -> Comparison | None:
    """First difference between fused and plain graphs; None if they agree.

    Padded rows are compared: only the memory-efficient kernel reads their masks as intended.
    """
    from appliance.engine.tensorrt.gate import compare_steps

    engines: list[Synthesizer] = []
    try:
        for variant in (FUSED, "default"):
            device = open_(FUSED)
            try:
                host = open_("ort-cpu")
                engines.append(Synthesizer(bundle, device, host=host, lanes=1, variant=variant))
            except Exception:
                device.close()
                raise
        speech = DemoSpeech(bundle.manifest, read_vocabulary(bundle.vocab))
        fused, plain = engines
        compared = compare_steps(fused, plain, speech, FUSED_LENGTHS)
        return next((c for c in compared if not c.holds), None)
    finally:
        for engine in engines:
            engine.shutdown()
