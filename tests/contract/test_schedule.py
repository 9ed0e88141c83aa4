"""Time grids against upstream's, and their shape."""

from __future__ import annotations

import math

import numpy as np
import pytest

from appliance.contract.schedule import EPSS_32NDS, MAX_NFE, time_grid
from tests import upstream


@pytest.mark.torch
@pytest.mark.parametrize("sway", [-1.0, 0.0, -0.4])
def test_every_grid_equals_upstreams(sway):
    import torch

    for nfe in range(1, MAX_NFE + 1):
        t = upstream.f5_utils().get_epss_timesteps(nfe, device="cpu", dtype=torch.float64)
        want = t + sway * (torch.cos(torch.pi / 2 * t) - 1 + t)
        assert np.abs(time_grid(nfe, sway=sway) - want.numpy()).max() <= 1e-15, nfe


@pytest.mark.torch
def test_upstream_tabulates_the_same_step_counts():
    import torch

    for nfe in range(1, MAX_NFE + 1):
        t = upstream.f5_utils().get_epss_timesteps(nfe, device="cpu", dtype=torch.float64).numpy()
        pruned = np.abs(t - np.linspace(0, 1, nfe + 1)).max() > 1e-12
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nfe": 0}, "between 1 and 64, not 0"),
        ({"nfe": 65}, "between 1 and 64, not 65"),
        ({"nfe": 8, "grid": "cosine"}, "epss, uniform, not 'cosine'"),
        ({"nfe": 8, "sway": math.nan}, "finite"),
        ({"nfe": 8, "sway": -3.0}, "do not increase"),
    ],
)
def test_unusable_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        time_grid(**arguments)
