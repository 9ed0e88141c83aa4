"""The synthesizer that a configuration asks for: which backend, and whether it can be relied on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

from appliance.config import EngineConfig
from appliance.contract.bundle import FUSED, Bundle
from appliance.contract.tokens import read_vocabulary
from appliance.engine import prepare
from appliance.engine.backend import Backend
from appliance.engine.backends import AUTO, Options, open_backend
from appliance.engine.build import Report
from appliance.engine.cases import Speech
from appliance.engine.gate import Comparison, compare_steps
from appliance.engine.prepare import OpenBackend
from appliance.engine.sizes import buckets
from appliance.engine.synthesizer import Synthesizer
from appliance.engine.trt import TrtBackend
from appliance.errors import ApplianceError, BundleError, EngineFault, Interrupted

logger = logging.getLogger(__name__)


def load_for(bundle: Bundle, config: EngineConfig, report: Report = logger.debug) -> Synthesizer:
    """The synthesizer of a configuration; `report` is given lines about what takes minutes.

    Raises BundleError, EngineFault, and what `report` raises.
    """
    try:
        return load(
            bundle,
            backend=config.backend,
            threads=config.threads,
            spinning=config.spinning,
            lanes=config.lanes,
            cache=config.cache,
            report=report,
        )
    except (ApplianceError, Interrupted):
        raise
    except (MemoryError, OSError) as error:
        # A fault of the box at this moment, not of the bundle: the next start may do better.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise EngineFault(f"the engine cannot be loaded: {reason}") from error
    except Exception as error:
        raise BundleError(f"{bundle.folder}: cannot be loaded: {' '.join(str(error).split())}") from error


def load(
    bundle: Bundle,
    *,
    backend: str,
    threads: int = 0,
    spinning: bool = False,
    lanes: int,
    cache: Path = EngineConfig.cache,
    report: Report = logger.debug,
) -> Synthesizer:
    """A synthesizer on the backend of that name; auto: the first of AUTO that is here and can speak it.

    Raises BundleError, which names what each backend lacks.
    """
    options = Options(threads, spinning, cache, report)

    def open_(name: str) -> Backend:
        return open_backend(name, options)

    if backend != "auto":
        return _on(bundle, open_, backend, lanes)
    missing: list[str] = []
    for name in AUTO:
        if name in bundle.manifest.backends:
            try:
                return _on(bundle, open_, name, lanes)
            except BundleError as error:
                logger.info("engine.backend auto: %s", error)
                missing.append(str(error))
    raise BundleError(
        "; ".join(missing)
        or f"the bundle is for {', '.join(bundle.manifest.backends)}: none of {', '.join(AUTO)}"
    )


def prepare_for(bundle: Bundle, config: EngineConfig, report: Report, *, dry_run: bool = False) -> None:
    """Build and compare the engines that `load_for` would; with `dry_run`, report what that means.

    Raises BundleError, StorageError.
    """
    options = Options(config.threads, config.spinning, config.cache, report)

    def open_(name: str) -> Backend:
        return open_backend(name, options)

    wanted = AUTO if config.backend == "auto" else (config.backend,)
    try:
        device = open_(wanted[0])
    except BundleError as error:
        if config.backend != "auto":
            raise
        report(f"nothing is built for {' and '.join(wanted[1:])}; {error}")
        return
    try:
        if not device.builds:
            report(f"nothing is built for {device.name}")
        elif dry_run:
            for line in prepare.plan(bundle, cast(TrtBackend, device), config.lanes).lines():
                report(line)
        else:
            prepare.ensure(bundle, cast(TrtBackend, device), open_, config.lanes)
            report("prepared")
    finally:
        device.close()


def _on(bundle: Bundle, open_: OpenBackend, name: str, lanes: int) -> Synthesizer:
    device = open_(name)
    try:
        safer = prepare.ensure(bundle, cast(TrtBackend, device), open_, lanes) if device.builds else ()
        wrong = (
            _fused_is_wrong(bundle, open_) if name == FUSED and FUSED in bundle.manifest.variants else None
        )
        if wrong is not None:
            logger.warning(
                "%s: fused attention is wrong here, the plain one takes its place: %s", name, wrong
            )
            device.label = f"{name} (plain attention)"
        host = device if name == "ort-cpu" else open_("ort-cpu")
        variant = "default" if wrong else None
        return Synthesizer(bundle, device, host=host, lanes=lanes, variant=variant, in_float32=safer)
    except Exception:
        device.close()
        raise


def _fused_is_wrong(bundle: Bundle, open_: OpenBackend) -> Comparison | None:
    """A step that is not as with the default graphs on this device; None where all are.

    Compared at the shortest number of frames, in padded rows, which a runtime without the kernel that the
    masks are for computes otherwise.
    """
    engines: list[Synthesizer] = []
    try:
        for variant in (FUSED, "default"):
            device = open_(FUSED)
            try:
                host = open_("ort-cpu")
                engines.append(Synthesizer(bundle, device, host=host, lanes=2, variant=variant))
            except Exception:
                device.close()
                raise
        speech = Speech(bundle.manifest, read_vocabulary(bundle.vocab))
        shortest = buckets(device, bundle.manifest.max_frames)[:1]
        fused, plain = engines
        compared = compare_steps(fused, plain, speech, shortest, rows=2)
        return next((one for one in compared if not one.holds), None)
    finally:
        for engine in engines:
            engine.shutdown()
