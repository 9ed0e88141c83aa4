"""Time grids against upstream's, and their shape."""

import math

import numpy as np
import pytest

from appliance.contract.limits import MAX_NFE
from appliance.contract.schedule import EPSS_32NDS, key_steps, noise, time_grid
from tests.harness.rows import rows
from tests.oracle import upstream

pytestmark = pytest.mark.once


@pytest.mark.torch
@pytest.mark.parametrize("sway", [-1.0, 0.0, -0.4])
def test_every_grid_equals_upstreams(sway):
    import torch

    for nfe in range(1, MAX_NFE + 1):
        t = upstream.f5_utils().get_epss_timesteps(nfe, device="cpu", dtype=torch.float64)
        want = t + sway * (torch.cos(torch.pi / 2 * t) - 1 + t)
        assert np.abs(time_grid(nfe, sway=sway) - want.numpy()).max() <= 1e-15, nfe
        pruned = np.abs(t.numpy() - np.linspace(0, 1, nfe + 1)).max() > 1e-12
        assert pruned == (nfe in EPSS_32NDS), nfe


def test_golden_seven_steps():
    want = [1 - math.cos(math.pi / 2 * n / 32) for n in (0, 2, 4, 6, 8, 16, 24, 32)]
    assert np.abs(time_grid(7) - want).max() <= 1e-15


@pytest.mark.parametrize("grid", ["epss", "uniform"])
def test_grids_run_from_0_to_1_and_rise_in_float32(grid):
    for nfe in range(1, MAX_NFE + 1):
        t = time_grid(nfe, grid=grid)
        assert t.shape == (nfe + 1,)
        assert (t[0], t[-1]) == (0.0, pytest.approx(1.0, abs=1e-15))
        assert (np.diff(t.astype(np.float32)) > 0).all()


def test_uniform_without_sway_is_uniform():
    assert np.array_equal(time_grid(4, grid="uniform", sway=0.0), [0.0, 0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "wrong_grids.jsonl"))
def test_unusable_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        time_grid(**arguments)


@pytest.mark.parametrize(("sampling", "steps"), [
    *(("short-kv", {n: {0, then}}) for n, then in {2: 1, 4: 1, 5: 3, 6: 4, 7: 4, 8: 2, 10: 4}.items()),
    *(("short-kv", {n: steps}) for n, steps in ((1, {0}), (16, {0, 8}), (32, {0, 8}))),
    ("short-once", {n: {0} for n in (1, 4, 7)}),
    *((sampling, {n: set(range(n)) for n in (1, 5, 7, 64)}) for sampling in ("exact", "short")),
])  # fmt: skip
def test_keys_are_computed_at_the_start_and_when_the_key_time_is_reached(sampling, steps):
    for nfe, computed in steps.items():
        assert key_steps(time_grid(nfe), sampling) == computed


def test_a_grid_that_reaches_the_key_time_with_its_last_time_alone_computes_keys_once():
    assert key_steps(np.array([0.0, 0.01, 1.0]), "short-kv") == {0}


def test_noise_is_the_documented_stream_of_numpy():
    for segment in range(3):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, segment])))
        want = generator.standard_normal((50, 100), dtype=np.float32)
        assert np.array_equal(noise(7, segment, 50, 100), want)
    assert not np.array_equal(noise(7, 0, 50, 100), noise(8, 0, 50, 100))
    # The values are the same on every machine, even for the largest seed.
    drawn = noise(2**64 - 1, 0, 50, 100)
    assert drawn.dtype == np.float32
    golden = ["0x1.cbb9140000000p-1", "0x1.043b160000000p+0", "-0x1.35a9c60000000p+0"]
    assert [float(value).hex() for value in drawn[0, :3]] == golden
