"""The test of memory on a GPU, on the real CUDA provider over libraries that count."""

import math
from pathlib import Path

import pytest

from appliance.config import EngineConfig
from appliance.contract import bundle as contract
from appliance.engine import engine as engines
from appliance.engine.loading import load_for
from tests.cuda.conftest import ROOT
from tests.engine import test_on_gpu
from tests.fakes.nvidia.counting.runtime import Runtime

pytestmark = [pytest.mark.cuda, pytest.mark.slow]


def test_the_test_of_memory_counts_after_all_graphs_are_captured(
    cuda: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request captures one graph, the second the other ten, in 2 MiB of an H200; the third captures
    none."""
    monkeypatch.setattr(engines, "LAUNCH_BOUND_S", math.inf)
    tiny = contract.read(ROOT / "tests/tiny/bundle", verify=False)
    engine = load_for(tiny, EngineConfig(backend="ort-cuda", threads=1, lanes=6, cache=tmp_path))
    before = cuda.counted("captures")
    test_on_gpu.test_requests_after_the_warm_up_take_no_memory_of_the_device(engine)
    assert cuda.counted("captures") - before == 11
    engine.shutdown()
