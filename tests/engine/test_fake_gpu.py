"""What the fake device refuses by name: wrong uses of CUDA's runtime, of TensorRT and of CUDA graphs."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import signatures
from appliance.engine.trt import TrtBackend
from appliance.errors import EngineFault
from tests.fakes.gpu import open_trt_on
from tests.fakes.gpu.cudart import cudaMemcpyKind
from tests.fakes.gpu.device import Device, WrongUse
from tests.fakes.gpu.tensorrt import ExecutionContextAllocationStrategy

pytestmark = pytest.mark.once

TO_DEVICE = cudaMemcpyKind.cudaMemcpyHostToDevice
TO_HOST = cudaMemcpyKind.cudaMemcpyDeviceToHost
ON_DEVICE = cudaMemcpyKind.cudaMemcpyDeviceToDevice
FRAMES = ("latents", "guided", "unguided", "latents_out")


class Machine:
    """TensorRT on a device, with a context of `update` that can run."""

    def __init__(self, backend: TrtBackend, bundle: Bundle) -> None:
        self.backend, self.cuda, self.stream = backend, backend._cuda, backend.stream
        spec = signatures(bundle.manifest.dimensions)["update"]
        backend.load("update", bundle.graph("update"), spec, {"N": (1, 128)})
        self.engine: Any = backend._graphs[0]._engine
        self.context = self.new_context()
        self.context.set_optimization_profile_async(0, self.stream)
        size = self.engine.device_memory_size_v2
        self.context.set_device_memory(backend.empty((size,), "int8").address, size)
        for name in FRAMES:
            self.context.set_tensor_address(name, backend.empty((40, 100), "float32").address)
            if name != "latents_out":
                self.context.set_input_shape(name, (40, 100))
        self.context.set_tensor_address("weights", backend.empty((2,), "float32").address)
        self.context.set_input_shape("weights", (2,))

    def new_context(self) -> Any:
        return self.engine.create_execution_context(ExecutionContextAllocationStrategy.USER_MANAGED)

    def memory(self, size: int = 64) -> int:
        """Address of new memory of the device."""
        address = self.cuda.cudaMalloc(size)[1]
        assert address is not None
        return int(address)

    def run(self) -> None:
        assert self.context.execute_async_v3(self.stream)

    def capture(self, use: Callable[[], object] | None = None) -> Any:
        """A CUDA graph of a run, or of something else."""
        return self.backend.capture(use or self.run)


# Memory, copies, streams


def stale_pointer(m: Machine) -> None:
    address = m.memory()
    m.cuda.cudaFree(address)
    m.cuda.cudaMemsetAsync(address, 0, 64, m.stream)


def freed_twice(m: Machine) -> None:
    address = m.memory()
    m.cuda.cudaFree(address)
    m.cuda.cudaFree(address)


def beyond_the_end(m: Machine) -> None:
    m.cuda.cudaMemsetAsync(m.memory(64), 0, 65, m.stream)


def pageable_source(m: Machine) -> None:
    array = np.zeros(64, np.uint8)
    m.cuda.cudaMemcpyAsync(m.memory(), array.ctypes.data, 64, TO_DEVICE, m.stream)


def host_array_reused_too_early(m: Machine) -> None:
    pinned = m.cuda.cudaMallocHost(64)[1]
    ctypes.memset(pinned, 1, 64)
    m.cuda.cudaMemcpyAsync(m.memory(), pinned, 64, TO_DEVICE, m.stream)
    ctypes.memset(pinned, 2, 64)
    m.backend.wait()


def device_memory_as_host(m: Machine) -> None:
    m.cuda.cudaMemcpyAsync(m.memory(), m.memory(), 64, TO_HOST, m.stream)


def overlapping(m: Machine) -> None:
    address = m.memory()
    m.cuda.cudaMemcpyAsync(address, address + 8, 32, ON_DEVICE, m.stream)


def no_such_stream(m: Machine) -> None:
    m.cuda.cudaMemsetAsync(m.memory(), 0, 64, m.stream + 1)


# TensorRT


def outside_the_profile(m: Machine) -> None:
    m.context.set_input_shape("latents", (129, 100))


def shape_before_a_profile(m: Machine) -> None:
    m.new_context().set_input_shape("latents", (40, 100))


def no_such_profile(m: Machine) -> None:
    m.context.set_optimization_profile_async(1, m.stream)


def missing_shape(m: Machine) -> None:
    m.context.set_optimization_profile_async(0, m.stream)
    m.run()


def missing_address(m: Machine) -> None:
    del m.context._addresses["weights"]
    m.run()


def misaligned(m: Machine) -> None:
    m.context.set_tensor_address("weights", m.memory(800) + 128)


def wrong_stream(m: Machine) -> None:
    m.context.execute_async_v3(m.cuda.cudaStreamCreateWithFlags(1)[1])


def run_on_no_stream(m: Machine) -> None:
    m.context.execute_async_v3(1)


def freed_tensor(m: Machine) -> None:
    tensor = m.backend.empty((40, 100), "float32")
    m.context.set_tensor_address("guided", tensor.address)
    m.backend.free(tensor)
    m.run()


def freed_working_memory(m: Machine) -> None:
    tensor = m.backend.empty((m.engine.device_memory_size_v2,), "int8")
    m.context.set_device_memory(tensor.address, tensor.nbytes)
    m.backend.free(tensor)
    m.run()


def little_working_memory(m: Machine) -> None:
    m.context.set_device_memory(m.memory(1), 1)


def host_memory(m: Machine) -> None:
    array = np.zeros(4000, np.float32)
    m.context.set_tensor_address("guided", -(-array.ctypes.data // 256) * 256)
    m.run()


def unknown_tensor(m: Machine) -> None:
    m.context.set_tensor_address("sigma", m.memory())


def output_beyond_its_memory(m: Machine) -> None:
    m.context.set_tensor_address("latents_out", m.backend.empty((39, 100), "float32").address)
    m.run()
    m.backend.wait()


def types_left_to_tensorrt(m: Machine) -> None:
    builder = m.backend._runtime.Builder(m.backend._log)
    builder.build_serialized_network(builder.create_network(0), builder.create_builder_config())


# CUDA graphs


def wait_in_a_capture(m: Machine) -> None:
    m.capture(m.backend.wait)


def allocation_in_a_capture(m: Machine) -> None:
    m.capture(m.memory)


def free_in_a_capture(m: Machine) -> None:
    address = m.memory()
    m.capture(lambda: m.cuda.cudaFree(address))


def upload_in_a_capture(m: Machine) -> None:
    tensor = m.backend.empty((2,), "float32")
    m.capture(lambda: m.backend.upload(np.zeros(2, np.float32), tensor))


def event_in_a_capture(m: Machine) -> None:
    event = m.cuda.cudaEventCreateWithFlags(2)[1]
    m.capture(lambda: m.cuda.cudaEventSynchronize(event))


def capture_in_a_capture(m: Machine) -> None:
    m.capture(m.capture)


def shape_set_in_a_capture(m: Machine) -> None:
    m.capture(lambda: m.context.set_input_shape("latents", (41, 100)))


def capture_before_a_run(m: Machine) -> None:
    for name in FRAMES[:3]:
        m.context.set_input_shape(name, (30, 100))
    m.capture()


def replay_after_a_reallocation(m: Machine) -> None:
    tensor = m.backend.empty((40, 100), "float32")
    m.context.set_tensor_address("guided", tensor.address)
    m.run()
    captured = m.capture()
    m.backend.launch(captured)
    m.backend.free(tensor)
    m.backend.empty((40, 100), "float32")
    m.backend.launch(captured)


def replay_of_a_copy_from_freed_memory(m: Machine) -> None:
    source, to = (m.backend.empty((4,), "float32") for _ in range(2))
    captured = m.capture(lambda: m.backend.copy(source, to))
    m.backend.free(source)
    m.backend.launch(captured)


def replay_after_its_context_has_changed(m: Machine) -> None:
    captured = m.capture()
    for name in FRAMES[:3]:
        m.context.set_input_shape(name, (30, 100))
    m.backend.launch(captured)


def replay_of_a_dropped_graph(m: Machine) -> None:
    captured = m.capture()
    m.backend.drop(captured)
    m.backend.launch(captured)


def context_ends_before_its_graph(m: Machine) -> None:
    m.capture()
    m.context = None
    m.run()


WRONG: dict[Callable[[Machine], None], str] = {
    stale_pointer: "cudaMemsetAsync: .* are freed",
    freed_twice: "not allocated",
    beyond_the_end: "beyond an allocation",
    pageable_source: r"HostToDevice reads.*\(pinned\)",
    host_array_reused_too_early: "HostToDevice: the source was changed before it was copied",
    device_memory_as_host: r"DeviceToHost writes.*\(pinned\)",
    overlapping: "overlap",
    no_such_stream: "no stream",
    outside_the_profile: r"latents: \(129, 100\) is outside the profile's \[1, 100\] to \[128, 100\]",
    shape_before_a_profile: "a shape before a profile",
    no_such_profile: "no profile 1",
    missing_shape: "no shape of guided, latents, unguided, weights",
    missing_address: "no address of weights",
    misaligned: "weights is at .*, which is no multiple of 256",
    wrong_stream: "its profile was set on another",
    run_on_no_stream: "no stream 0x1",
    freed_tensor: "guided is read: .* are freed",
    freed_working_memory: "working memory: .* are freed",
    little_working_memory: "working memory of 1 bytes",
    host_memory: "guided is read: .* not of it",
    unknown_tensor: "no tensor sigma",
    output_beyond_its_memory: "latents_out is written",
    types_left_to_tensorrt: "types are left to TensorRT",
    wait_in_a_capture: "cudaStreamSynchronize while a stream is captured",
    allocation_in_a_capture: "device memory is allocated while a stream is captured",
    free_in_a_capture: "cudaFree while a stream is captured",
    upload_in_a_capture: "HostToDevice while a stream is captured",
    event_in_a_capture: "cudaEventSynchronize while a stream is captured",
    capture_in_a_capture: "cudaStreamBeginCapture while a stream is captured",
    shape_set_in_a_capture: "a context is changed while a stream is captured",
    capture_before_a_run: "captured before an ordinary run with these shapes and addresses",
    replay_after_a_reallocation: "a graph is replayed: guided is read: .* are freed",
    replay_of_a_copy_from_freed_memory: "a graph is replayed: cudaMemcpyDeviceToDevice reads: .* are freed",
    replay_after_its_context_has_changed: "a graph is replayed: its context has changed",
    replay_of_a_dropped_graph: "no executable graph",
    context_ends_before_its_graph: "a context ends before the graphs that were captured from it",
}


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_refused_by_name(tiny: Bundle, tmp_path: Path, use: Callable[[Machine], None]) -> None:
    device = Device(delay_s=1e-4)
    machine = Machine(open_trt_on(device, tmp_path / "engines"), tiny)
    machine.run()
    machine.backend.wait()
    assert not device.wrong
    # Some show only when the work is done, as a device's own errors do.
    with pytest.raises((WrongUse, EngineFault, AttributeError)):
        use(machine)
    assert re.search(WRONG[use], device.wrong[0])


def test_what_is_captured_runs_at_each_replay_and_not_before(tiny: Bundle, tmp_path: Path) -> None:
    device = Device(delay_s=1e-4)
    m = Machine(open_trt_on(device, tmp_path / "engines"), tiny)
    backend = m.backend
    source, to = (backend.empty((4,), "float32") for _ in range(2))
    captured = m.capture(lambda: backend.copy(source, to))
    for number in (1.0, 2.0):
        backend.upload(np.full(4, number, np.float32), source)
        assert backend.download(to)[0] == number - 1.0
        backend.launch(captured)
        assert backend.download(to)[0] == number
    backend.drop(captured)
    assert not device.executable and not device.graphs and not device.wrong
