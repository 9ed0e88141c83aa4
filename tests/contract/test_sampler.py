"""Samplers: the manifest's names, the options of a request, and the arithmetic of a step."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from appliance.contract import bundle as contract
from appliance.contract.sampler import UPSTREAM, Sampler, Unguided
from appliance.contract.schedule import noise, time_grid
from tests.harness.daemons import BUNDLE

pytestmark = pytest.mark.once


def test_a_bundle_that_names_none_is_sampled_as_ever() -> None:
    manifest = contract.read(BUNDLE, verify=False).manifest
    assert manifest.format == "1.2"
    assert manifest.sampler == UPSTREAM == Sampler("euler", "two-row", (), ())
    assert manifest.dimensions.conditions == 2
    assert np.array_equal(manifest.times(7), time_grid(7))


@pytest.mark.parametrize(("values", "message"), [
    ({"update": "renoise"}, "renoise has one row: guidance must be none or embedded, not two-row"),
    ({"steps": (4, 2)}, "steps: must increase, not 4, 2"),
    ({"steps": (2, 2)}, "steps: must increase"),
    ({"steps": (0, 2)}, "nfe must be between 1 and 64, not 0"),
    ({"steps": (65,)}, "nfe must be between 1 and 64, not 65"),
    ({"strengths": (3.0, 1.0)}, "strengths: must be up to two increasing numbers of 0 to 10"),
    ({"strengths": (1.0, 11.0)}, "strengths: must be"),
    ({"strengths": (-1.0,)}, "strengths: must be"),
    ({"strengths": (1.0, float("nan"))}, "strengths: must be"),
    ({"strengths": (1.0, 2.0, 3.0)}, "strengths: must be"),
    ({"guidance": "none", "unguided": (Unguided(),)}, "unguided: is of a second row, which guidance none"),
    ({"unguided": (Unguided("speech", 0.5),)}, "unguided: until must increase from above 0 to 1"),
    ({"unguided": (Unguided("speech", 1.0), Unguided())}, "unguided: until must increase"),
])  # fmt: skip
def test_samplers_that_contradict_themselves(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Sampler(**values)


@pytest.mark.parametrize(("sampler", "guidance", "message"), [
    (Sampler(guidance="none"), 2.0, "defaults: guidance: must be 0 or absent with this bundle"),
    (Sampler(guidance="embedded", strengths=(1, 3)), 0.5, "defaults: guidance: must be between 1 and 3"),
])  # fmt: skip
def test_a_usual_strength_that_weights_cannot_take(sampler: Sampler, guidance: float, message: str) -> None:
    manifest = contract.read(BUNDLE, verify=False).manifest
    defaults = dataclasses.replace(manifest.defaults, guidance=guidance)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(manifest, sampler=sampler, defaults=defaults)


def test_steps_are_those_named() -> None:
    few = Sampler(steps=(1, 2, 4))
    for nfe in few.steps:
        few.check_steps(nfe)
    for nfe in (3, 7):
        with pytest.raises(ValueError, match=f"must be 1, 2 or 4 with this bundle, not {nfe}"):
            few.check_steps(nfe)
    assert [few.nearest(nfe) for nfe in (1, 3, 4, 7, 64)] == [1, 4, 4, 4, 4]
    assert [UPSTREAM.nearest(nfe) for nfe in (1, 7, 64)] == [1, 7, 64]
    manifest = dataclasses.replace(contract.read(BUNDLE, verify=False).manifest, sampler=few)
    with pytest.raises(ValueError, match="not 7"):
        manifest.times(7)


@pytest.mark.parametrize(
    ("guidance", "rows"), [("two-row", (2, 2, 1)), ("none", (1, 1, 1)), ("embedded", (1, 1, 1))]
)
def test_rows_of_a_lane(guidance: Any, rows: tuple[int, ...]) -> None:
    sampler = Sampler(guidance=guidance)
    assert tuple(sampler.rows(w) for w in (2.0, 1e-5, 0.9e-5)) == rows


@pytest.mark.parametrize("nfe", [1, 2, 4])
@pytest.mark.parametrize("w", [0.0, 1.5])
@pytest.mark.parametrize(("update", "guidance"), [
    *(("euler", guidance) for guidance in ("two-row", "none", "embedded")), ("renoise", "none"),
])  # fmt: skip
def test_a_step_by_its_formula(update: Any, guidance: Any, w: float, nfe: int) -> None:
    rng, times = np.random.default_rng(nfe), time_grid(nfe)
    x, c, u, fresh = rng.standard_normal((4, 5, 4))
    v = c + w * (c - u) if guidance == "two-row" else c
    for (a, b), t, then in zip(Sampler(update, guidance).weights(times, w), times, times[1:], strict=False):
        if update == "euler":
            assert np.allclose(x + a * c + b * u, x + (then - t) * v, atol=1e-6)
        else:
            wanted = (1 - then) * fresh + then * (x + (1 - t) * v)
            assert np.allclose((1 - np.float32(then)) * fresh + a * x + b * v, wanted, atol=1e-6)


def test_fresh_noise_is_numpys_spawned_stream_of_each_step() -> None:
    for step in (1, 2, 63):
        sequence = np.random.SeedSequence([7, 3], spawn_key=(step,))
        wanted = np.random.Generator(np.random.PCG64(sequence)).standard_normal((9, 4), dtype=np.float32)
        assert np.array_equal(noise(7, 3, 9, 4, step), wanted)
        assert np.array_equal(noise(7, 3, 5, 4, step), wanted[:5])  # independent of the segment's length
    # A seed never gives the later noise of another seed, not even if it is larger than 32 bits.
    drawn = [
        noise(*of, 4, 4, step).tobytes() for of in ((7, 3), (7 + (3 << 32), 1), (7, 1)) for step in (0, 1, 3)
    ]
    assert len(set(drawn)) == len(drawn)
    # The values are the same on every machine.
    golden = ["-0x1.6da2940000000p-2", "0x1.ce5e400000000p-1", "-0x1.0faa360000000p-1"]
    assert [float(value).hex() for value in noise(2**64 - 1, 0, 50, 100, 1)[0, :3]] == golden
