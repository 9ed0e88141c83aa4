"""The measurement: its oracles agree with upstream's sampler, and it sees what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from appliance.contract.mel import MelSpec
from appliance.contract.schedule import time_grid
from export import checkpoint, parity
from export.checkpoint import load_dit
from tests import upstream
from tests.export import small
from tests.export.small import Made, Workshop

pytestmark = pytest.mark.torch

SIZE = len(small.VOCABULARY)


@pytest.fixture(scope="module")
def made(workshop: Workshop) -> Made:
    return workshop.make("v1")


@pytest.fixture(scope="module")
def oracles(made: Made) -> list[parity.Oracle]:
    upstream.require()
    upstream.dit_class()
    weights = load_dit(made.files.checkpoint, made.arch, SIZE)
    return [
        parity.TorchOracle(checkpoint.build_dit(weights, made.arch, SIZE)),
        parity.UpstreamOracle(weights, made.arch, SIZE, small.MELS),
    ]


@pytest.mark.parametrize("nfe", [5, 8])
def test_both_oracles_sample_as_upstreams_own_sampler(
    oracles: list[parity.Oracle], made: Made, nfe: int
) -> None:
    given = parity.random_case(90, MelSpec("vocos"), SIZE)
    wanted = small.upstream_sample(small.upstream_flow(made.files, made.arch), given, nfe)
    for oracle in oracles:
        found = oracle.sample(given, time_grid(nfe))
        assert np.array_equal(found[:36], given.cond)
        assert parity.relative_error(found[36:], wanted[36:]) <= 5e-6


def test_cases_repeat_and_look_like_log_mels() -> None:
    mel = MelSpec("vocos")
    one, two = (parity.random_case(128, mel, SIZE) for _ in range(2))
    assert np.array_equal(one.cond, two.cond) and np.array_equal(one.noise, two.noise)
    assert one.cond.shape == (51, 100) and one.noise.shape == (128, 100) and one.ids.shape == (20,)
    assert one.cond.min() >= -11.5 and one.cond.std() > 1.0
    other = parity.random_case(128, mel, SIZE, seed=1)
    assert not np.array_equal(one.noise, other.noise)
    segment = one.segment(time_grid(5))
    assert (segment.frames, segment.reference_frames, segment.guidance) == (128, 50, 2.0)


def expected(made: Made, oracles: list[parity.Oracle], vocoder: nn.Module | None = None) -> Any:
    config, weights = checkpoint.load_vocos(made.files.vocoder_path)
    model = vocoder or checkpoint.build_vocos(config, weights)
    makers = [lambda o=o: o for o in oracles]
    return parity.expect(
        makers, lambda: model, MelSpec("vocos"), SIZE, step_frames=(41,), sample_frames=50, nfes=(5,)
    )


def test_a_sound_bundle_passes_and_says_by_how_much(made: Made, oracles: list[parity.Oracle]) -> None:
    report = parity.measure(made.bundle, expected(made, oracles))
    assert report.failed == []
    found = [(row.what, row.against, row.frames, row.nfe) for row in report.rows]
    assert found == [
        ("modulation", "torch", 0, 0),
        ("condition", "torch", 41, 0),
        ("vocoder", "torch", 128, 0),
        *(
            row
            for name in ("torch", "upstream")
            for row in (("step", name, 41, 1), ("sample", name, 50, 5), ("wave", name, 50, 5))
        ),
    ]
    assert all(1e-9 < row.error <= row.bound for row in report.rows)
    record = report.record()
    assert record["upstream"] == "measured"
    assert record["rows"][0]["snr_db"] == pytest.approx(-20 * np.log10(report.rows[0].error), abs=0.06)
    lines = report.table().splitlines()
    assert len(lines) == 1 + len(report.rows)
    assert lines[0].split() == ["what", "against", "frames", "NFE", "rel.", "error", "SNR", "dB", "bound"]


class Off:
    """An oracle whose answers are off by a share of themselves."""

    name = "off"

    def __init__(self, oracle: parity.Oracle, share: float) -> None:
        self._oracle, self._share = oracle, share

    def sample(self, case: parity.Case, times: Any) -> Any:
        out = self._oracle.sample(case, times)
        out[len(case.cond) :] *= np.float32(1.0 + self._share)
        return out


@pytest.mark.parametrize("share", [2e-4, float("nan")])
def test_an_error_beyond_its_bound_fails_and_so_does_a_nan(
    made: Made, oracles: list[parity.Oracle], share: float
) -> None:
    report = parity.measure(made.bundle, expected(made, [Off(oracles[0], share)]))
    assert {line.split(" at ")[0] for line in report.failed} >= {"step", "sample"}
    assert "sample at 50 frames, NFE 5, against off: " in " ".join(report.failed)
    assert "allowed 5.0e-05" in " ".join(report.failed)


def test_a_vocoder_that_is_off_fails_alone(made: Made, oracles: list[parity.Oracle]) -> None:
    config, weights = checkpoint.load_vocos(made.files.vocoder_path)
    louder = checkpoint.build_vocos(config, weights)
    with torch.no_grad():
        louder.head.out.bias[:513] += 1e-2
    report = parity.measure(made.bundle, expected(made, oracles, louder))
    assert {line.split(" at ")[0] for line in report.failed} == {"vocoder", "wave"}


def test_a_package_that_is_not_installed_is_noted_as_absent(made: Made, oracles: list[parity.Oracle]) -> None:
    def absent() -> parity.Oracle:
        raise ImportError("No module named 'f5_tts'")

    asked = parity.expect(
        [lambda: oracles[0], absent],
        lambda: checkpoint.build_vocos(*checkpoint.load_vocos(made.files.vocoder_path)),
        MelSpec("vocos"),
        SIZE,
        step_frames=(41,),
        sample_frames=50,
        nfes=(5,),
    )
    report = parity.measure(made.bundle, asked)
    assert report.failed == [] and {row.against for row in report.rows} == {"torch"}
    assert report.record()["upstream"] == "not installed here (No module named 'f5_tts')"
    assert report.table().endswith("upstream's package: not installed here (No module named 'f5_tts')")


@pytest.mark.parametrize("failure", [KeyError("f5_tts.model"), RuntimeError("half installed")])
def test_a_package_that_fails_while_it_is_imported_is_absent(
    failure: Exception, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, *rest: Any) -> Any:
        if name.startswith("f5_tts"):
            raise failure
        return imported(name, *rest)

    imported = __import__
    monkeypatch.setattr("builtins.__import__", broken)
    with pytest.raises(ImportError, match=r"f5_tts\.model|half installed"):
        parity.UpstreamOracle({}, made.arch, SIZE, small.MELS)


def test_errors_are_relative_and_shapes_must_agree() -> None:
    a = np.array([3.0, 4.0], np.float32)
    assert parity.relative_error(a * np.float32(1.5), a) == 0.5
    assert parity.relative_error(a, a) == 0.0
    assert parity.relative_error(a[:1], a) == float("inf")
    row = parity.Row("step", "torch", 1, 1, 0.01, 1.0)
    assert row.snr_db == pytest.approx(40.0)
    assert parity.Report("fp32", [dataclasses.replace(row, error=float("inf"))]).failed
