"""Refusals of the fake device on which the backends' tests rely."""

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
from appliance.engine.tensorrt import build
from appliance.errors import EngineFault
from tests.fakes.gpu import open_trt_on
from tests.fakes.gpu.cudart import Runtime, cudaMemcpyKind
from tests.fakes.gpu.device import Device, WrongUse
from tests.fakes.gpu.tensorrt import ExecutionContextAllocationStrategy, TensorRT

pytestmark = pytest.mark.once

FRAMES = ("latents", "guided", "unguided", "latents_out")


class Machine:
    """TensorRT on a device, with a context of `update` that can run."""

    def __init__(self, device: Device, bundle: Bundle, engines: Path) -> None:
        trt = TensorRT(device)
        self.cuda, self.backend = Runtime(device), open_trt_on(device, engines, trt=trt)
        self.stream = self.backend.stream
        spec = signatures(bundle.manifest.dimensions)["update"]
        source = build.EngineSource(bundle.graph("update"), spec, build.profiles_of(spec, {"N": (1, 128)}))
        log = build.make_log(trt)
        self.engine: Any = trt.Runtime(log).deserialize_cuda_engine(self.backend.cache.engine(source))
        self.context = self.engine.create_execution_context(ExecutionContextAllocationStrategy.USER_MANAGED)
        self.context.set_optimization_profile_async(0, self.stream)
        size = self.engine.device_memory_size_v2
        self.context.set_device_memory(self.backend.empty((size,), "int8").address, size)
        self.context.set_tensor_address("weights", self.backend.empty((2,), "float32").address)
        self.context.set_input_shape("weights", (2,))
        for name in FRAMES:
            self.context.set_tensor_address(name, self.backend.empty((40, 100), "float32").address)
        self.set_frames(40)

    def set_frames(self, frames: int) -> None:
        for name in FRAMES[:3]:
            self.context.set_input_shape(name, (frames, 100))

    def run(self) -> None:
        assert self.context.execute_async_v3(self.stream)


def memory_that_is_freed(m: Machine) -> None:
    tensor = m.backend.empty((40, 100), "float32")
    m.context.set_tensor_address("guided", tensor.address)
    m.backend.free(tensor)
    m.run()


def an_output_beyond_its_memory(m: Machine) -> None:
    m.context.set_tensor_address("latents_out", m.backend.empty((39, 100), "float32").address)
    m.run()
    m.backend.wait()


def a_source_changed_before_its_copy(m: Machine) -> None:
    pinned = m.cuda.cudaMallocHost(64)[1]
    ctypes.memset(pinned, 1, 64)
    to = m.backend.empty((64,), "int8").address
    m.cuda.cudaMemcpyAsync(to, pinned, 64, cudaMemcpyKind.cudaMemcpyHostToDevice, m.stream)
    ctypes.memset(pinned, 2, 64)
    m.backend.wait()


def a_wait_in_a_capture(m: Machine) -> None:
    m.backend.capture(m.backend.wait)


def an_upload_in_a_capture(m: Machine) -> None:
    tensor = m.backend.empty((2,), "float32")
    m.backend.capture(lambda: m.backend.upload(np.zeros(2, np.float32), tensor))


def a_capture_before_a_run(m: Machine) -> None:
    m.set_frames(30)
    m.backend.capture(m.run)


def a_replay_after_its_memory_is_freed(m: Machine) -> None:
    tensor = m.backend.empty((40, 100), "float32")
    m.context.set_tensor_address("guided", tensor.address)
    m.run()
    captured = m.backend.capture(m.run)
    m.backend.free(tensor)
    m.backend.launch(captured)


def a_replay_after_its_context_has_changed(m: Machine) -> None:
    captured = m.backend.capture(m.run)
    m.set_frames(30)
    m.backend.launch(captured)


WRONG: dict[Callable[[Machine], None], str] = {
    memory_that_is_freed: "guided is read: .* are freed",
    an_output_beyond_its_memory: "latents_out is written",
    a_source_changed_before_its_copy: "HostToDevice: the source was changed before it was copied",
    a_wait_in_a_capture: "cudaStreamSynchronize while a stream is captured",
    an_upload_in_a_capture: "HostToDevice while a stream is captured",
    a_capture_before_a_run: "captured before an ordinary run with these shapes and addresses",
    a_replay_after_its_memory_is_freed: "a graph is replayed: guided is read: .* are freed",
    a_replay_after_its_context_has_changed: "a graph is replayed: its context has changed",
}


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_refused_by_name(tiny: Bundle, tmp_path: Path, use: Callable[[Machine], None]) -> None:
    device = Device()
    machine = Machine(device, tiny, tmp_path / "engines")
    machine.run()
    machine.backend.wait()
    assert not device.wrong
    # Some show only when the work is done, as a device's own errors do.
    with pytest.raises((WrongUse, EngineFault)):
        use(machine)
    assert re.search(WRONG[use], device.wrong[0])
