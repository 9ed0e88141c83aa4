"""TensorRT on an NVIDIA GPU. It has run only on a fake one so far."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from appliance.contract.graphs import GraphSpec
from appliance.engine.backend import RUNS_BEFORE_CAPTURE, Arithmetic, Bound, Graph, Ranges, Tensor, sizes_of
from appliance.engine.cuda import DeviceMemory, DeviceTensor, fault_of
from appliance.engine.tensorrt import build
from appliance.engine.tensorrt.build import EngineCache, EnginePlatform, EngineSource, Profile, Report
from appliance.errors import BundleError, DeviceLost, EngineFault, OutOfDeviceMemory

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Slot:
    """An execution context on a profile, shared by bindings. It reads their sizes when work is enqueued."""

    context: Any
    profile: Profile
    last: TrtBound | None = None
    """Binding whose shapes and addresses are set."""


class TrtBound:
    """A graph with its inputs and outputs. It uses a context of the graph when it runs."""

    def __init__(
        self, graph: TrtGraph, slot: Slot, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        self._graph, self.slot = graph, slot
        self.shapes = {name: tensor.shape for name, tensor in inputs.items()}
        self.addresses = {n: cast(DeviceTensor, t).address for n, t in {**inputs, **outputs}.items()}
        self.runs = 0  # since its shapes were set
        self.captured: Any = None

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        # `release` has no effect: working memory has a fixed size.
        self._graph.run(self, capture=capture)


class TrtGraph:
    """An engine of TensorRT and its execution contexts."""

    def __init__(
        self,
        backend: TrtBackend,
        runtime: Any,
        log: Any,
        spec: GraphSpec,
        engines: Sequence[tuple[Any, Sequence[Profile]]],
    ) -> None:
        self._backend, self._log, self._spec = backend, log, spec
        self._strategy = runtime.ExecutionContextAllocationStrategy.USER_MANAGED
        self._engines = [engine for engine, _ in engines]
        self._slots = [
            Slot(self._create(engine, number), profile)
            for engine, profiles in engines
            for number, profile in enumerate(profiles)
        ]
        self._captures = True

    @property
    def workspace_bytes(self) -> int:
        return max(int(engine.device_memory_size_v2) for engine in self._engines)

    def use(self, workspace: DeviceTensor) -> None:
        """Set working memory, and drop captured graphs, which contain its address."""
        for slot in self._slots:
            self._forget(slot)
            slot.context.set_device_memory(workspace.address, workspace.nbytes)

    def close(self) -> None:
        """Drop contexts and engines. The stream must be idle."""
        for slot in self._slots:
            self._forget(slot)
        self._slots.clear()
        self._engines.clear()

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        sizes = sizes_of(self._spec, inputs, outputs, self._fault)
        for slot in self._slots:
            if slot.profile.holds(sizes):
                return TrtBound(self, slot, inputs, outputs)
        raise self._fault("no profile holds", sizes)

    def run(self, bound: TrtBound, *, capture: bool) -> None:
        """Enqueue a run, or a CUDA graph of one. Raises EngineFault."""
        if bound.slot.last is not bound:
            self._forget(bound.slot)
            self._set(bound)
        if capture and self._captures and bound.captured is None and bound.runs >= RUNS_BEFORE_CAPTURE:
            try:
                bound.captured = self._backend.capture(partial(self._enqueue, bound))
            except EngineFault as fault:
                self._captures = False
                logger.warning(
                    "%s launches its kernels one by one, it cannot be captured: %s", self._spec.name, fault
                )
        if bound.captured is None:
            self._enqueue(bound)
        else:
            self._backend.launch(bound.captured)
        bound.runs += 1

    def _set(self, bound: TrtBound) -> None:
        """Give the context the shapes and addresses of a binding."""
        context = bound.slot.context
        for name, shape in bound.shapes.items():
            if not context.set_input_shape(name, shape):
                raise self._fault(f"{name}: refused shape", shape)
        for name, address in bound.addresses.items():
            if not context.set_tensor_address(name, address):
                raise self._fault(f"{name}: refused address", hex(address))
        bound.slot.last, bound.runs = bound, 0

    def _enqueue(self, bound: TrtBound) -> None:
        context = bound.slot.context
        if not context.execute_async_v3(self._backend.stream):
            bound.slot.last = None
            raise self._fault("cannot be run")

    def _forget(self, slot: Slot) -> None:
        """Drop the captured graph: changed shapes make it invalid (TensorRT's issue 3798)."""
        if slot.last is not None and slot.last.captured is not None:
            self._backend.drop(slot.last.captured)
            slot.last.captured = None
        slot.last = None

    def _create(self, engine: Any, profile: int) -> Any:
        """An execution context on a profile. Raises EngineFault."""
        context = engine.create_execution_context(self._strategy)
        if context is None:
            raise self._fault("no context for profile", profile)
        try:
            context.set_optimization_profile_async(profile, self._backend.stream)
        except RuntimeError as refusal:
            raise self._fault("no context for profile", profile, refusal) from refusal
        return context

    def _fault(self, *parts: object) -> EngineFault:
        return fault_of(f"TensorRT: {self._spec.name}: {' '.join(map(str, parts))}{self._log.reason()}")


class TrtBackend(DeviceMemory):
    """Engines of this device. They share working memory."""

    name = "tensorrt"
    label = "tensorrt"
    builds = True
    # A single guided lane. More would gain little: a few hundred frames keep a Jetson's GPU busy.
    max_batch = 2

    def __init__(self, engines: Path, device: int = 0, report: Report = logger.debug) -> None:
        """`engines` is the folder of the cache.

        Raises BundleError if TensorRT, cuda-python, driver or device is missing.
        """
        self._runtime = build.import_runtime(self.name)
        super().__init__(self.name, device)
        try:
            platform = EnginePlatform(self._runtime.__version__, *self.identity())
        except (DeviceLost, OutOfDeviceMemory):
            raise
        except EngineFault as fault:
            raise BundleError(f"backend {self.name!r}: no NVIDIA device can be used: {fault}") from fault
        self._log = build.make_log(self._runtime)
        self.cache = EngineCache(engines, platform, self._runtime, self._log, report)
        self._deserialiser = build.start(self._runtime.Runtime, self._log, platform.tensorrt)
        self.attentions: dict[str, list[int | None]] = {}
        """Graph → `fused_attentions` of its engines."""
        self.safer: Mapping[str, Arithmetic] = {}
        """Graph → arithmetic to load it in, if not as exported."""
        self._graphs: list[TrtGraph] = []
        self._workspace = self.empty((1,), "int8")

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        """Load a graph's engines. If they are not cached, that takes minutes.

        Raises BundleError, StorageError, and EngineFault if TensorRT refuses a cached engine.
        """
        tf32 = self.safer.get(name) is Arithmetic.TF32
        source = EngineSource(path, spec, build.profiles_of(spec, ranges), tf32)
        engines = [(self._deserialise(part), part.profiles) for part in self.cache.parts(source)]
        self.attentions[name] = [build.fused_attentions(self._runtime, engine) for engine, _ in engines]
        graph = TrtGraph(self, self._runtime, self._log, spec, engines)
        self._graphs.append(graph)
        if (needed := graph.workspace_bytes) > self._workspace.nbytes:
            self.free(self._workspace)
            self._workspace = self.empty((needed,), "int8")
            for one in self._graphs:
                one.use(self._workspace)
        else:
            graph.use(self._workspace)
        return graph

    def _deserialise(self, source: EngineSource) -> Any:
        """Load the stored engine. A damaged one is removed. Raises EngineFault."""
        engine = self._deserialiser.deserialize_cuda_engine(self.cache.engine(source))
        if engine is None:
            reason = self._log.reason()
            if "memory" not in reason:  # something changed that the hash does not cover
                self.cache.drop(source)
                reason = f"; it is removed, the next start builds another{reason}"
            raise EngineFault(f"{source.path}: TensorRT refuses the kept engine{reason}")
        return engine

    def close(self) -> None:
        self._cuda.cudaStreamSynchronize(self._stream)  # contexts may not end while they compute
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()
        super().close()
