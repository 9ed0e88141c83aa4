"""TensorRT on an NVIDIA GPU: engines built on this device and cached, rows padded to buckets, one stream.

Nothing here has ever run on a GPU: tests run it on a fake device, and build the graphs with TensorRT-RTX.

Bindings of step graphs are captured as CUDA graphs, each with its own execution context, since a context
whose shapes change invalidates its graphs (TensorRT's issue 3798). The first run is an ordinary one, as in
trtexec (TensorRT 10.3, samples/common/sampleInference.cpp), and does the work that cannot be captured.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from appliance.contract.graphs import STEPS, GraphSpec, TensorSpec
from appliance.engine import build
from appliance.engine.backend import Bound, Graph, Shapes, Tensor
from appliance.engine.build import EngineCache, EnginePlatform, EngineSource, Profile, Report
from appliance.engine.cuda import MAX_CAPTURED, DeviceMemory, DeviceTensor, fault_of
from appliance.errors import BundleError, DeviceLost, EngineFault, OutOfDeviceMemory

logger = logging.getLogger(__name__)

ALIGNMENT = 256
"""Bytes; required of every address (`setTensorAddress` in NvInferRuntime.h)."""


class TrtBound:
    """Tensors of one graph, and the number of the execution context that runs them."""

    captured: Any = None

    def __init__(
        self,
        graph: TrtGraph,
        context: int,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
        *,
        is_alone: bool,
    ) -> None:
        """`is_alone`: no other binding uses the context.

        Raises EngineFault for a misaligned address of a tensor without an aligned copy.
        """
        self._graph, self.context, self.is_alone = graph, context, is_alone
        self.shapes = {name: tensor.shape for name, tensor in inputs.items()}
        tensors = {**inputs, **outputs}
        placed = {name: graph.placed(name, tensor) for name, tensor in tensors.items()}
        self.addresses = {name: tensor.address for name, tensor in placed.items()}
        moved = [name for name in tensors if placed[name] is not tensors[name]]
        self.before = [(tensors[name], placed[name]) for name in moved if name in inputs]
        self.after = [(placed[name], tensors[name]) for name in moved if name in outputs]

    def run(self, *, release: bool = False) -> None:
        """See `Bound`. Working memory has a fixed size: `release` has no effect."""
        self._graph.run(self)


class TrtGraph:
    """An engine, with an execution context for each profile in use and each captured binding.

    Other bindings share the context of their profile: a context reads shapes and addresses when work is
    enqueued, and all work is enqueued on one stream.
    """

    def __init__(
        self, backend: TrtBackend, runtime: Any, log: Any, engines: Sequence[Any], source: EngineSource
    ) -> None:
        """`engines` hold the source's profiles, in order."""
        self._backend, self._log, self._engines = backend, log, list(engines)
        self._spec, self._profiles = source.spec, source.profiles
        self._strategy = runtime.ExecutionContextAllocationStrategy.USER_MANAGED
        self._workspace: DeviceTensor | None = None
        self._contexts: list[Any] = []
        # Profiles of more rows than `rows` allows are never used.
        self._shared = {
            number: self._add_context(number)
            for number, profile in enumerate(self._profiles)
            if "R" not in profile.axes or profile.axes["R"][0] <= backend.rows(profile.axes["N"][0])
        }
        """Number of a profile → number of the context that its bindings share."""
        self._last: dict[int, TrtBound] = {}
        """Number of a context → the binding whose shapes and addresses are set."""
        self._captures = source.spec.name in STEPS
        self._captured: list[TrtBound] = []
        # A row of a slab begins at a multiple of its size, which for indices, lengths and some numbers of
        # frames is not a multiple of ALIGNMENT. Batches must be contiguous, so rows cannot be padded apart;
        # these tensors go through aligned copies on the device, shared by all bindings: of a step at most
        # 12 kB a row, where buckets are multiples of 16.
        sizes = {axis for profile in self._profiles for axis in profile.axes}
        self._aligned = {
            tensor.name: backend.empty(
                tuple(np.max([p.shapes(tensor)[2] for p in self._profiles], axis=0).tolist()), tensor.dtype
            )
            for tensor in (*self._spec.inputs, *self._spec.outputs)
            if {a for a in tensor.axes if isinstance(a, str)} <= sizes
            and not _starts_aligned(tensor, self._profiles)
        }

    def use(self, workspace: DeviceTensor) -> None:
        """Set the working memory. Captured graphs contain its address and are dropped."""
        self._drop_captured()
        self._last.clear()
        self._workspace = workspace
        for context in self._contexts:
            context.set_device_memory(workspace.address, workspace.nbytes)

    def close(self) -> None:
        """Drop captured graphs, contexts and engine; the stream must be idle."""
        self._drop_captured()
        self._last.clear()
        self._contexts.clear()
        self._engines.clear()

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        sizes: dict[str, int] = {}
        for what, specs, tensors in (
            ("inputs", self._spec.inputs, inputs),
            ("outputs", self._spec.outputs, outputs),
        ):
            if difference := {spec.name for spec in specs} ^ tensors.keys():
                raise self._fault(f"missing or unknown {what}:", ", ".join(sorted(difference)))
            for spec in specs:
                _check(spec, tensors[spec.name], sizes, self._fault)
        for number, profile in enumerate(self._profiles):
            if number in self._shared and profile.holds(sizes):
                given = (cast(Mapping[str, DeviceTensor], tensors) for tensors in (inputs, outputs))
                own = self._own_context(number)
                context = self._shared[number] if own is None else own
                return TrtBound(self, context, *given, is_alone=own is not None)
        raise self._fault("no profile holds", sizes)

    def placed(self, name: str, tensor: DeviceTensor) -> DeviceTensor:
        """The tensor itself if its address is aligned, else aligned memory of its shape."""
        if tensor.address % ALIGNMENT == 0:
            return tensor
        if name not in self._aligned:
            raise self._fault(f"{name} is at {tensor.address:#x}, which is no multiple of", ALIGNMENT)
        return self._backend.view(self._aligned[name], tensor.shape)

    def run(self, bound: TrtBound) -> None:
        """Enqueue a run; from its second run on a binding with its own context is one CUDA graph.

        Raises EngineFault.
        """
        has_run = self._last.get(bound.context) is bound
        if bound.captured is None and bound.is_alone and has_run and self._captures:
            try:
                bound.captured = self._backend.capture(partial(self._enqueue, bound))
            except EngineFault as fault:
                self._stop_capturing(fault)
            else:
                self._captured.append(bound)
        if bound.captured is None:
            self._enqueue(bound)
        else:
            self._backend.launch(bound.captured)

    def _enqueue(self, bound: TrtBound) -> None:
        context = self._contexts[bound.context]
        for source, to in bound.before:
            self._backend.copy(source, to)
        # Set once for the successive steps of a lane.
        if self._last.pop(bound.context, None) is not bound:
            for name, shape in bound.shapes.items():
                if not context.set_input_shape(name, shape):
                    raise self._fault(f"{name}: refused shape", shape)
            for name, address in bound.addresses.items():
                if not context.set_tensor_address(name, address):
                    raise self._fault(f"{name}: refused address", hex(address))
        if not context.execute_async_v3(self._backend.stream):
            raise self._fault("cannot be run")
        self._last[bound.context] = bound
        for source, to in bound.after:
            self._backend.copy(source, to)

    def _own_context(self, profile: int) -> int | None:
        """Number of a new context for one binding; None if the binding is not to be captured."""
        if not self._captures or not self._backend.reserve_capture():
            return None
        try:
            return self._add_context(profile)
        except EngineFault as fault:
            self._stop_capturing(fault)
            return None

    def _stop_capturing(self, fault: EngineFault) -> None:
        self._captures = False
        logger.warning(
            "%s launches its kernels one by one, it cannot be captured: %s", self._spec.name, fault
        )

    def _add_context(self, profile: int) -> int:
        """Number of a new context on a profile. Raises EngineFault."""
        workspace, alone = self._workspace, len(self._engines) > 1
        engine, number = (self._engines[profile], 0) if alone else (self._engines[0], profile)
        context = engine.create_execution_context(self._strategy)
        if context is None:
            raise self._fault("no context for profile", profile)
        try:
            context.set_optimization_profile_async(number, self._backend.stream)
        except RuntimeError as refusal:
            raise self._fault("no context for profile", profile, refusal) from refusal
        if workspace is not None:
            context.set_device_memory(workspace.address, workspace.nbytes)
        self._contexts.append(context)
        return len(self._contexts) - 1

    def _drop_captured(self) -> None:
        for bound in self._captured:
            self._backend.drop(bound.captured)
            bound.captured = None
        self._captured.clear()

    def _fault(self, *parts: object) -> EngineFault:
        return fault_of(f"TensorRT: {self._spec.name}: {' '.join(map(str, parts))}{self._log.reason()}")


class TrtBackend(DeviceMemory):
    """Engines of this device; they share working memory, since one runs at a time."""

    name = "tensorrt"
    label = "tensorrt"
    builds = True
    exact_shapes = False
    # With the bundle's longest and one or two rows: eight profiles of a step graph.
    buckets: tuple[int, ...] = (384, 768, 1280)
    # One guided lane. More would gain little: a few hundred frames keep a Jetson's GPU busy.
    max_batch = 2

    def __init__(self, engines: Path, device: int = 0, report: Report = logger.debug) -> None:
        """`engines` is the folder of the cache; `report` receives progress lines of builds.

        Raises BundleError where TensorRT, cuda-python, the driver or the device is missing.
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
        """Graph → fused attention kernels of each of its engines; None where TensorRT does not tell."""
        self._graphs: list[TrtGraph] = []
        self._to_capture = MAX_CAPTURED
        self._gaining: dict[int, int] = {}
        self._workspace = self.empty((1,), "int8")

    def limit(self, rows: Mapping[int, int]) -> None:
        """Limit the rows of a call by bucket, from the next `load` on. Engines are not rebuilt."""
        self._gaining = dict(rows)

    def rows(self, frames: int) -> int:
        return min(self._gaining.get(frames, self.max_batch), self.max_batch)

    def load(self, name: str, path: Path, spec: GraphSpec, shapes: Shapes) -> Graph:
        """See `Backend`. Builds the engine, for minutes, where none is cached.

        Also raises StorageError when the cache cannot be used, EngineFault when TensorRT refuses the cached
        engine, which the next load rebuilds.
        """
        source = EngineSource(path, spec, build.profiles_of(spec, shapes))
        engines = [self._deserialise(part) for part in self.cache.parts(source)]
        self.attentions[name] = [build.fused_attentions(self._runtime, engine) for engine in engines]
        graph = TrtGraph(self, self._runtime, self._log, engines, source)
        self._graphs.append(graph)
        if (needed := max(engine.device_memory_size_v2 for engine in engines)) > self._workspace.nbytes:
            self.free(self._workspace)
            self._workspace = self.empty((needed,), "int8")
            for one in self._graphs:
                one.use(self._workspace)
        else:
            graph.use(self._workspace)
        return graph

    def _deserialise(self, source: EngineSource) -> Any:
        engine = self._deserialiser.deserialize_cuda_engine(self.cache.engine(source))
        if engine is None:
            reason = self._log.reason()
            if "memory" not in reason:  # something changed that the hash does not cover
                self.cache.drop(source)
                reason = f"; it is removed, the next start builds another{reason}"
            raise EngineFault(f"{source.path}: TensorRT refuses the kept engine{reason}")
        return engine

    def settle(self) -> None:
        """See `Backend`. No further binding is captured, since a context allocates."""
        self._to_capture = 0

    def reserve_capture(self) -> bool:
        """Count one more captured graph; False at the limit."""
        if self._to_capture == 0:
            return False
        self._to_capture -= 1
        return True

    def close(self) -> None:
        self._cuda.cudaStreamSynchronize(self._stream)  # contexts may not end while they compute
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()
        super().close()


def _check(
    spec: TensorSpec, tensor: Tensor, sizes: dict[str, int], fault: Callable[..., EngineFault]
) -> None:
    """Add the sizes of a tensor's axes to `sizes`. Raises `fault` where they contradict it or the spec."""
    if tensor.dtype.name != spec.dtype or len(tensor.shape) != len(spec.axes):
        raise fault(f"{spec.name}: {tensor.dtype.name} {tensor.shape} is not {spec.dtype} {spec.axes}")
    for axis, size in zip(spec.axes, tensor.shape, strict=True):
        expected = axis if isinstance(axis, int) else sizes.setdefault(axis, size)
        if size != expected:
            raise fault(f"{spec.name}: {axis} is {size}, not {expected}")


def _starts_aligned(tensor: TensorSpec, profiles: Sequence[Profile]) -> bool:
    """True if every index of the first axis starts at an aligned address when index 0 does."""
    size = np.dtype(tensor.dtype).itemsize
    for profile in profiles:
        least, _, greatest = profile.shapes(tensor)
        # A varying axis may have any size.
        inner = [n if n == m else 1 for n, m in zip(least[1:], greatest[1:], strict=True)]
        if math.prod(inner) * size % ALIGNMENT:
            return False
    return True
