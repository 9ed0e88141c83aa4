"""`tensorrt`: the appliance's part of it, with the signatures of 10.3 to 11.

An engine is a description of its graph, which ONNX Runtime computes in the device's host memory. The work
runs late, in the order of the stream, with the addresses and shapes of the time when it was enqueued.

The public sources of 10.3, 10.16 and 11.1 have the names and signatures; addresses at multiples of 256 bytes
(NvInferRuntime.h); False, None or an error in the log if TensorRT refuses, RuntimeError for a profile,
TypeError if the library cannot start (pyCore.cpp); and no order between work on the stream of a context's
profile and work on the stream of a run. Seen in TensorRT-RTX: nearly all of a build is one step. CUDA graphs
follow trtexec's source and TensorRT's issue 3798: an ordinary run comes before a capture, and a graph is void
once the context that it was captured from has changed.

Guesses, which hide real failures: the words of errors; how an inspector names fused attention of several
profiles (one profile: issue 4397); that an engine of another driver or device is refused and never merely
slow; how large working memory is; float32 sums in every product, and the same numbers whatever the profile,
the tactic or the neighbours in a batch (issue 4796); that the only device is an Orin.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import json
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tests.fakes.nvidia.device import ALIGNMENT, POISON, Device, Node, move

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int32)": np.int32}


def named(name: str, *members: str) -> Any:
    return enum.IntEnum(name, members, start=0)


class ILogger:
    Severity = named("Severity", "INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def log(self, severity: int, message: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    """Base class of monitors, which have phase_start, step_complete and phase_finish."""


NetworkDefinitionCreationFlag = named("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH", "STRONGLY_TYPED")
MemoryPoolType = named("MemoryPoolType", "WORKSPACE")
BuilderFlag = named("BuilderFlag", "TF32", "FP16", "OBEY_PRECISION_CONSTRAINTS")
ProfilingVerbosity = named("ProfilingVerbosity", "LAYER_NAMES_ONLY", "NONE", "DETAILED")
LayerInformationFormat = named("LayerInformationFormat", "ONELINE", "JSON")
DataType = named("DataType", "FLOAT", "HALF", "INT64")
LayerType = named("LayerType", "CONSTANT", "NORMALIZATION", "MATRIX_MULTIPLY", "SHAPE")
ExecutionContextAllocationStrategy = named("Strategy", "STATIC", "ON_PROFILE_CHANGE", "USER_MANAGED")


class TensorRT:
    """Replaces the module."""

    ILogger, IProgressMonitor, DataType, LayerType = ILogger, IProgressMonitor, DataType, LayerType
    NetworkDefinitionCreationFlag = NetworkDefinitionCreationFlag
    MemoryPoolType, BuilderFlag, ProfilingVerbosity = MemoryPoolType, BuilderFlag, ProfilingVerbosity
    LayerInformationFormat = LayerInformationFormat
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def __init__(self, device: Device, version: str = "10.16.0") -> None:
        self.device, self.__version__ = device, version
        self.refused: set[str] = set()
        """Graphs, by the stem of their file, that cannot be built."""
        self.refused_strongly_typed: set[str] = set()
        """Graphs that can only be built weakly typed."""
        self.uncapturable: set[str] = set()
        """Graphs whose runs end a capture."""
        self.unstartable: set[str] = set()
        """"Builder" or "Runtime": classes whose start fails because the library cannot start."""
        self.unfused: set[str] = set()
        """Graphs in which no attention is fused."""
        self.in_tf32: set[str] = set()
        """Graphs built with ten bits of mantissa, TensorRT's default."""
        self.refused_profiles: set[int] = set()
        self.before_build: Callable[[], None] = lambda: None
        """Hook within a build, while it makes no callback, which is nearly all of its time."""
        self.falsify: Callable[[str, dict[str, NDArray[Any]], NDArray[Any]], NDArray[Any]] | None = None
        """Maps a graph's stem, its inputs and its first output to the output that the engine writes."""
        self.located: Callable[[str], str] = str
        """Maps a graph's path at the build to its present path. The fake needs the graph; a real engine holds
        its weights."""
        self.patch = 0
        """Patch version of the libraries: engines depend on it, but no call reports it."""
        self.Builder = partial(self._start, Builder)
        self.OnnxParser = partial(OnnxParser, self)
        self.Runtime = partial(self._start, Runtime)

    def _start(self, kind: type, log: ILogger) -> Any:
        if kind.__name__ in self.unstartable:
            log.log(ILogger.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        return kind(self, log)

    @property
    def platform(self) -> list[Any]:
        """Properties that an engine and a timing cache are valid for."""
        d = self.device
        return [
            *(self.__version__, self.patch, d.driver, list(d.compute_capability), d.name),
            d.multiprocessors,
        ]


class Layer:
    num_outputs = 1

    def __init__(self, type: int, dtype: int) -> None:
        self.type, self._output = type, SimpleNamespace(dtype=dtype)
        self.precision: int | None = None
        self.output_type: int | None = None

    def get_output(self, index: int) -> Any:
        return self._output

    def set_output_type(self, index: int, dtype: int) -> None:
        self.output_type = dtype


class Network:
    """A network with one layer of each kind that matters, whatever the graph."""

    def __init__(self, strongly_typed: bool) -> None:
        self.path, self.strongly_typed = "", strongly_typed
        self.inputs: list[Any] = []
        kinds = (DataType.HALF, DataType.FLOAT, DataType.HALF, DataType.INT64)
        self.layers = list(map(Layer, LayerType, kinds))

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]

    def check_types(self, flags: set[int]) -> bool:
        """True if a weakly typed network computes in the graph's types."""
        held = {layer.type: (layer.precision, layer.output_type) for layer in self.layers}
        return flags == {BuilderFlag.FP16, BuilderFlag.OBEY_PRECISION_CONSTRAINTS} and held == {
            LayerType.CONSTANT: (None, None),
            LayerType.NORMALIZATION: (DataType.FLOAT, DataType.FLOAT),
            LayerType.MATRIX_MULTIPLY: (DataType.HALF, DataType.HALF),
            LayerType.SHAPE: (None, None),
        }

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> Any:
        return self.inputs[index]


class OnnxParser:
    def __init__(self, trt: TensorRT, network: Network, log: ILogger) -> None:
        self._network = network
        self._errors: list[Any] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        try:
            session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        except Exception as error:
            said = f"cannot be read:\n{error}"
            names = {"node_name": lambda: "odd", "node_operator": lambda: "NoSuchOperator"}
            self._errors.append(SimpleNamespace(desc=lambda: said, **names))
            return False
        self._network.path = model
        # Variable sizes are −1.
        self._network.inputs = [
            SimpleNamespace(name=i.name, shape=tuple(n if isinstance(n, int) else -1 for n in i.shape))
            for i in session.get_inputs()
        ]
        return True


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        if not len(min) == len(opt) == len(max) or not all(
            0 <= a <= b <= c for a, b, c in zip(min, opt, max, strict=True)
        ):
            raise RuntimeError("Shape provided for min is inconsistent with other shapes.")
        self.shapes[input] = [tuple(min), tuple(opt), tuple(max)]


@dataclass
class TimingCache:
    content: dict[str, Any]

    def serialize(self) -> bytes:
        return json.dumps(self.content).encode()


class Config:
    def __init__(self, trt: TensorRT) -> None:
        self._trt = trt
        self.profiles: list[Profile] = []
        self.workspace = 0
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self.max_aux_streams = -1
        self.cleared: list[int] = []
        self.flags: set[int] = set()
        self.timing = TimingCache({"for": trt.platform, "timed": []})
        self.progress_monitor: IProgressMonitor | None = None

    def set_memory_pool_limit(self, pool: int, pool_size: int) -> None:
        self.workspace = pool_size

    def set_flag(self, flag: int) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: int) -> None:
        self.cleared.append(flag)

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache | None:
        if not serialized_timing_cache:
            return TimingCache({"for": self._trt.platform, "timed": []})
        try:
            return TimingCache(json.loads(serialized_timing_cache))
        except ValueError:
            return None

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        if cache.content["for"] != self._trt.platform and not ignore_mismatch:
            return False
        self.timing = cache
        return True


class Builder:
    def __init__(self, trt: TensorRT, log: ILogger) -> None:
        self._trt, self._log = trt, log

    def create_network(self, flags: int) -> Network:
        return Network(bool(flags & 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED))

    def create_builder_config(self) -> Config:
        return Config(self._trt)

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        trt = self._trt
        stem = _stem(network.path)
        # Nearly all of the build is a single step, as TensorRT-RTX reports for a graph with a single node.
        if (monitor := config.progress_monitor) is not None:
            monitor.phase_start("Building", None, 2)
            monitor.step_complete("Building", 0)
        trt.before_build()
        if monitor is not None:
            if not monitor.step_complete("Building", 1):
                return None
            monitor.phase_finish("Building")
        if network.strongly_typed:
            if config.flags:
                raise trt.device.refuse("a strongly typed network takes no precision flags")
        elif not network.check_types(config.flags):
            raise trt.device.refuse("the network's types are left to TensorRT")
        for profile in config.profiles:
            measured = [stem, *sorted(profile.shapes.items())]
            if (kept := json.loads(json.dumps(measured))) not in config.timing.content["timed"]:
                trt.device.counts["timed"] += 1
                config.timing.content["timed"].append(kept)
        if stem in trt.refused or (network.strongly_typed and stem in trt.refused_strongly_typed):
            self._log.log(ILogger.ERROR, f"no implementation\nfor a node of {stem}")
            return None
        for profile in config.profiles:
            for given in network.inputs:
                shapes = profile.shapes.get(given.name)
                if shapes is None or any(
                    len(s) != len(given.shape)
                    or any(n not in (-1, m) for n, m in zip(given.shape, s, strict=True))
                    for s in shapes
                ):
                    self._log.log(ILogger.ERROR, f"profile does not fit {given.name} {given.shape}: {shapes}")
                    return None
        if BuilderFlag.TF32 not in config.cleared:
            trt.in_tf32.add(stem)
        if not config.profiles:
            self._log.log(ILogger.ERROR, "there is no profile")
            return None
        trt.device.counts["build"] += 1
        described = {
            "for": trt.platform,
            "graph": network.path,
            "profiles": [profile.shapes for profile in config.profiles],
            "detailed": config.profiling_verbosity is ProfilingVerbosity.DETAILED,
        }
        body = json.dumps(described).encode()
        return hashlib.sha256(body).digest() + body


class Runtime:
    def __init__(self, trt: TensorRT, log: ILogger) -> None:
        self._trt, self.log = trt, log

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        mark, body = serialized_engine[:32], serialized_engine[32:]
        if hashlib.sha256(body).digest() != mark:
            self.log.log(ILogger.ERROR, "the engine is damaged")
            return None
        described = json.loads(body)
        if described["for"] != self._trt.platform:
            self.log.log(ILogger.ERROR, f"the engine is for {described['for']}, this is {self._trt.platform}")
            return None
        return Engine(self._trt, self.log, described)


class Engine:
    def __init__(self, trt: TensorRT, log: ILogger, described: dict[str, Any]) -> None:
        self.device, self.trt, self.log = trt.device, trt, log
        self.stem, self.falsify = _stem(described["graph"]), trt.falsify
        self.profiles: list[dict[str, list[list[int]]]] = described["profiles"]
        self.is_detailed: bool = described["detailed"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            trt.located(described["graph"]), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = {i.name: DTYPES[i.type] for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]

    @property
    def device_memory_size_v2(self) -> int:
        """Size that differs from graph to graph, so that shared memory must grow."""
        return max(4 * math.prod(three[2]) for shapes in self.profiles for three in shapes.values())

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self)

    def create_execution_context(self, strategy: int) -> Context:
        if strategy is not ExecutionContextAllocationStrategy.USER_MANAGED:
            self.device.allocate(self.device_memory_size_v2, "device")
        self.device.counts["context"] += 1
        return Context(self)


class EngineInspector:
    """Reports, for each profile of a step graph, a fused attention and another layer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get_engine_information(self, format: int) -> str:
        layers: list[Any] = []
        engine = self._engine
        for number in range(len(engine.profiles)):
            is_fused = engine.stem.startswith("step") and engine.stem not in engine.trt.unfused
            for name in (f"_gemm_mha_v2_myl{number}_5" if is_fused else "softmax_myl0_5", "gemm_myl0_6"):
                layers.append({"Name": name, "LayerType": "kgen"} if engine.is_detailed else name)
        return json.dumps({"Layers": layers})


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine, self._device = engine, engine.device
        self._device.outside_a_capture("a context is made")
        self._changes = 0
        """Number of changes of profile, shapes, addresses and working memory."""
        self._run_at: int | None = None
        """Changes at the last ordinary run."""
        self._profile: tuple[int, int] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._workspace = (0, 0)

    def __del__(self) -> None:
        self._device.workspaces.pop(id(self), None)
        if any(node.context == id(self) for nodes in self._device.executable.values() for node in nodes):
            self._device.refuse("a context ends before the graphs that were captured from it")

    def _change(self) -> None:
        self._device.outside_a_capture("a context is changed")
        self._changes += 1

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._change()
        self._device.stream(stream_handle)
        if profile_index >= len(self.engine.profiles):
            raise self._device.refuse(f"no profile {profile_index}")
        if profile_index in self.engine.trt.refused_profiles:
            raise RuntimeError("Error in set optimization profile async.")
        self._profile = (profile_index, stream_handle)
        self._shapes = {}
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        self._change()
        if memory % ALIGNMENT or size < self.engine.device_memory_size_v2:
            raise self._device.refuse(f"working memory of {size} bytes at {memory:#x}")
        self._workspace = self._device.workspaces[id(self)] = (memory, size)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._change()
        if self._profile is None:
            raise self._device.refuse(f"{name}: a shape before a profile")
        least, _, greatest = self.engine.profiles[self._profile[0]][name]
        if len(shape) != len(least) or not all(
            a <= n <= b for a, n, b in zip(least, shape, greatest, strict=True)
        ):
            raise self._device.refuse(f"{name}: {shape} is outside the profile's {least} to {greatest}")
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._change()
        if name not in self.engine.inputs and name not in self.engine.outputs:
            raise self._device.refuse(f"no tensor {name}")
        if memory % ALIGNMENT:
            raise self._device.refuse(f"{name} is at {memory:#x}, which is no multiple of {ALIGNMENT}")
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine, device = self.engine, self._device
        stream = device.stream(stream_handle)
        if self._profile is None or self._profile[1] != stream_handle:
            raise device.refuse(f"runs on stream {stream_handle:#x}, its profile was set on another")
        for what, given in (("shape", self._shapes.keys()), ("address", self._addresses.keys())):
            wanted = {*engine.inputs} if what == "shape" else {*engine.inputs, *engine.outputs}
            if missing := wanted - given:
                raise device.refuse(f"no {what} of {', '.join(sorted(missing))}")
        inputs = {n: (self._addresses[n], self._shapes[n], dtype) for n, dtype in engine.inputs.items()}
        outputs = {name: self._addresses[name] for name in engine.outputs}
        workspace, changes, of = self._workspace, self._changes, weakref.ref(self)

        def check(now: str) -> None:
            device.check(*workspace, "device", f"{now}working memory")
            for name, (address, shape, dtype) in inputs.items():
                size = math.prod(shape) * np.dtype(dtype).itemsize
                device.check(address, size, "device", f"{now}{name} is read")
            for name, address in outputs.items():
                device.check(address, 1, "device", f"{now}{name} is written")
            context = of()
            if context is None or context._changes != changes:
                raise device.refuse(f"{now}its context has changed")

        if stream.capture is not None and self._run_at != changes:
            raise device.refuse("captured before an ordinary run with these shapes and addresses")
        if stream.capture is not None and engine.stem in engine.trt.uncapturable:
            stream.capture.is_spoilt = True
            engine.log.log(ILogger.ERROR, f"{engine.stem}: not permitted\nwhen stream is capturing")
            return False
        stream.take(Node(partial(_compute, engine, inputs, outputs, workspace), check, id(self)))
        if stream.capture is None:
            device.counts["run"] += 1
            self._run_at = changes
        return True


def _compute(
    engine: Engine,
    inputs: dict[str, tuple[int, tuple[int, ...], Any]],
    outputs: dict[str, int],
    workspace: tuple[int, int],
) -> None:
    address, size = workspace
    ctypes.memset(address, POISON, size)
    given = {name: _array(*tensor) for name, tensor in inputs.items()}
    made = engine.session.run(engine.outputs, given)
    if engine.falsify is not None:
        made[0] = engine.falsify(engine.stem, given, made[0]).astype(made[0].dtype)
    for name, computed in zip(engine.outputs, made, strict=True):
        found = np.ascontiguousarray(computed)
        engine.device.check(outputs[name], found.nbytes, "device", f"{name} is written")
        move(outputs[name], found.ctypes.data, found.nbytes)


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".onnx")


def _array(address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    memory = (ctypes.c_uint8 * (math.prod(shape) * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)
