"""A recorded case on the engine: its parsing, its refusals, its result."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.contract.schedule import time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.replay import read_case, replay, write_result
from appliance.errors import EngineFault, InvalidRequest
from tests.engine.lanes import relative, solo

FRAMES, HEARD = 60, 20


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    return {
        "cond": rng.normal(-4, 2, (1, HEARD, 100)).astype(np.float32),
        "ids": rng.integers(0, 113, (1, 9)).astype(np.int64),
        "n_frames": np.int64(FRAMES),
        "noise": rng.standard_normal((FRAMES, 100)).astype(np.float32),
    }


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "case.npz"
    whole = {**arrays(), **changes}
    np.savez(path, **{name: value for name, value in whole.items() if value is not None})
    return path


def test_a_case_is_read_with_the_bundles_defaults_or_its_own(engine: Synthesizer, tmp_path: Path) -> None:
    case, given = read_case(written(tmp_path), engine, 8), arrays()
    assert (case.frames, case.reference_frames, case.guidance, case.gain) == (FRAMES, HEARD - 1, 2.0, 1.0)
    assert np.array_equal(case.reference_log_mel, given["cond"][0])
    assert np.array_equal(case.ids, given["ids"][0]) and case.ids.dtype == np.int32
    assert np.array_equal(case.noise, given["noise"])
    assert np.array_equal(case.times, time_grid(8, grid="epss", sway=-1.0))
    own = written(tmp_path, guidance=np.float32(0.5), sway=np.float64(0.0), grid=np.array("uniform"))
    case = read_case(own, engine, 5)
    assert case.guidance == 0.5
    assert case.times == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_the_reference_is_restored_and_every_frame_is_decoded(engine: Synthesizer, tmp_path: Path) -> None:
    case = read_case(written(tmp_path), engine, 5)
    mel, wave = replay(engine, case)
    assert mel.shape == (FRAMES, 100) and mel.dtype == np.float32
    assert np.array_equal(mel[:HEARD], case.reference_log_mel)
    assert np.array_equal(mel[HEARD:] - case.noise[HEARD:], solo(engine, case))
    assert wave.shape == ((FRAMES - 1) * 256,) and wave.dtype == np.float32
    assert np.array_equal(wave, engine.decode(mel))
    fine, _ = replay(engine, read_case(written(tmp_path), engine, 32))
    assert relative(mel, fine) > 1e-4, "steps are those that were asked for"


def test_a_result_is_written_under_the_very_name(tmp_path: Path) -> None:
    mel, wave = np.ones((3, 100), np.float32), np.zeros(512, np.float32)
    write_result(tmp_path / "out.result", mel, wave)
    assert [path.name for path in tmp_path.iterdir()] == ["out.result"]
    with np.load(tmp_path / "out.result") as stored:
        assert np.array_equal(stored["mel"], mel) and np.array_equal(stored["wave"], wave)


def test_a_case_that_fails_gives_its_lane_back(make_engine: Any, tmp_path: Path) -> None:
    engine = make_engine(lanes=1)
    noise = arrays()["noise"]
    noise[30] = np.nan
    for _ in range(2):
        with pytest.raises(EngineFault, match="not finite"):
            replay(engine, read_case(written(tmp_path, noise=noise), engine, 2))
    replay(engine, read_case(written(tmp_path), engine, 2))


@pytest.mark.parametrize(("change", "message"), [
    ({"noise": None, "ids": None}, "lacks ids, noise; it must hold cond, ids, n_frames, noise"),
    ({"seed": np.int64(3)}, "unknown array seed; optional: guidance, sway, grid"),
    ({"cond": np.zeros((20, 100), np.float32)}, r"cond: must be \(1, frames, 100\), not \(20, 100\)"),
    ({"cond": np.zeros((1, 20, 80), np.float32)}, r"not \(1, 20, 80\)"),
    ({"ids": np.zeros(9, np.int64)}, r"ids: must be \(1, tokens\) integers, not \(9,\)"),
    ({"ids": np.zeros((1, 9))}, r"ids: must be \(1, tokens\) integers, not \(1, 9\) float64"),
    ({"grid": np.array("cosine")}, "grid must be one of epss, uniform, shift, not 'cosine'"),
    ({"sway": np.float32(-3)}, "times that do not increase"),
    ({"n_frames": np.array([60, 61])}, "n_frames must be one finite number"),
    ({"n_frames": np.array("many")}, "n_frames must be one finite number"),
    ({"guidance": np.float32(np.nan)}, "guidance must be one finite number"),
    ({"nfe": 0}, "nfe must be between 1 and 64, not 0"),
    ({"nfe": 65}, "nfe must be between 1 and 64, not 65"),
    # More than the bundle can hold.
    ({"n_frames": np.int64(61)}, r"noise must be \(61, 100\), not \(60, 100\)"),
    ({"ids": np.array([[113]])}, "under 113"),
    ({"n_frames": np.int64(3000)}, "3000 frames exceed"),
    ({"upsample_index": np.zeros(60, np.int64)}, "upsample_index must be absent"),
])  # fmt: skip
def test_a_case_that_cannot_be_run_is_refused_by_the_arrays_name(
    change: dict[str, Any], message: str, engine: Synthesizer, tmp_path: Path
) -> None:
    given = dict(change)
    nfe = given.pop("nfe", 5)
    with pytest.raises(InvalidRequest, match=message):
        read_case(written(tmp_path, **given), engine, nfe)


def test_invalid_cases_are_refused(engine: Synthesizer, tmp_path: Path) -> None:
    whole, path = bytearray(written(tmp_path).read_bytes()), tmp_path / "case.npz"
    whole[len(whole) // 2] ^= 0xFF
    array = tmp_path / "array.npy"
    np.save(array, np.zeros(3))
    for content in (b"", b"no zip", b"PK\x03\x04 torn off", whole, array.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(InvalidRequest, match=r"case: .*case\.npz is not an \.npz file"):
            read_case(path, engine, 5)
    with pytest.raises(InvalidRequest, match=r"absent\.npz is not an \.npz file"):
        read_case(tmp_path / "absent.npz", engine, 5)
