"""What speaking takes of a device's memory, against what is really allocated there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from appliance.contract.bundle import Arch, Bundle, Sampling
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.engine.tensorrt.prepare import tensor_bytes
from tests.engine.lanes import segment
from tests.fakes.gpu import open_on, open_trt_on
from tests.fakes.gpu.device import Device

pytestmark = [pytest.mark.slow, pytest.mark.once]

GB = 1 << 30
V1_BASE = Arch(dim=1024, depth=22, heads=16, ff_mult=2, text_dim=512, conv_layers=4)
STEP_PARAMETERS = 189.6e6
"""Of a step graph of v1_Base, modulation apart."""
OTHER_BYTES = 2 * (13.5e6 + 12e6)
"""Vocos and the condition graph, in float16."""
INT8_SHARE = 0.8
"""Of a step graph's weights, those that int8-qdq quantises at least."""
WORKSPACE = 0.7 * GB
"""Assumed, for want of a device: activations of two rows of 4,096 frames, and kernels."""


def shaped(tiny: Bundle, sampling: Sampling, **changes: object) -> Bundle:
    defaults = dataclasses.replace(tiny.manifest.defaults, sampling=sampling)
    return dataclasses.replace(
        tiny, manifest=dataclasses.replace(tiny.manifest, defaults=defaults, **changes)
    )


@pytest.mark.parametrize(("sampling", "lanes"), [("exact", 3), ("short", 1), ("short-kv", 2)])
def test_the_plan_is_what_a_warm_engine_has(tiny: Bundle, sampling: Sampling, lanes: int) -> None:
    bundle, device = shaped(tiny, sampling, max_frames=256), Device()
    backend = open_on(device)
    before = device.allocated("device")
    engine = Synthesizer(bundle, backend, host=OrtBackend(1), lanes=lanes)
    engine.warm_up(2)
    assert device.allocated("device") - before == tensor_bytes(bundle, backend, lanes)


def test_lanes_of_all_sizes_fit_into_what_was_reserved(tiny: Bundle) -> None:
    bundle, device = shaped(tiny, "short-kv", max_frames=256), Device()
    engine = Synthesizer(bundle, open_on(device), host=OrtBackend(1), lanes=3)
    engine.reserve()
    reserved = device.allocated("device")
    sizes = [(250, 190), (60, 20), (128, 64)]
    for first in range(3):
        lanes = [
            engine.open(segment(*sizes[(first + n) % 3][:1], reference=sizes[(first + n) % 3][1], nfe=5,
                                sampling="short-kv"))
            for n in range(3)
        ]  # fmt: skip
        for _ in range(5):
            engine.step([lane.id for lane in lanes])
        for lane in lanes:
            engine.close(lane.id)
    assert device.allocated("device") == reserved


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 4.0 * GB), ("int8-qdq", 3.0 * GB)])
def test_v1_base_fits_beside_the_system(tiny: Bundle, tmp_path: Path, precision: str, limit: float) -> None:
    """4 lanes of up to 43 s and a voice of 12 s, with three engines that each carry the weights."""
    manifest = dataclasses.replace(
        tiny.manifest,
        arch=V1_BASE,
        precision=precision,  # type: ignore[arg-type]
        max_frames=4096,
        defaults=dataclasses.replace(tiny.manifest.defaults, sampling="short-kv"),
    )
    backend = open_trt_on(Device(), tmp_path)
    tensors = tensor_bytes(dataclasses.replace(tiny, manifest=manifest), backend, 4)
    of_a_parameter = 2 - INT8_SHARE if precision == "int8-qdq" else 2
    total = tensors + 3 * STEP_PARAMETERS * of_a_parameter + OTHER_BYTES + WORKSPACE
    print(f"{precision}: tensors {tensors / GB:.2f} GB, in all {total / GB:.2f} GB")
    assert total <= limit
