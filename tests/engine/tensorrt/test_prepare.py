"""Engines are used if they agree with the CPU's numbers; others are refused and replaced."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.cli import main
from appliance.config import EngineConfig
from appliance.contract import bundle as contract
from appliance.contract.bundle import FLOAT32, FLOAT32_SUMS, Bundle
from appliance.engine import loading
from appliance.engine.backend import Arithmetic
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_for
from appliance.engine.ort import OrtBackend
from appliance.engine.tensorrt import build, gate, prepare
from appliance.engine.tensorrt.trt import TrtBackend
from appliance.errors import BundleError, EngineFault, Interrupted, StorageError
from tests.engine.lanes import BATCHED, changed, relative, segment, solo
from tests.fakes.nvidia import installed
from tests.fakes.nvidia.device import Device
from tests.fakes.nvidia.tensorrt import TensorRT
from tests.harness.daemons import ROOT, write_config
from tests.harness.patience import PATIENCE_S

# A single Python is enough: builds and comparisons do not depend on its version.
pytestmark = [pytest.mark.slow, pytest.mark.once]

Array = NDArray[Any]
Falsify = Callable[[str, dict[str, Array], Array], Array]
DEMO = ROOT / "appliance/demo/bundle"
ENGINES = ("condition", "step", "step_keys", "step_reply", "update", "vocoder")


@pytest.fixture(scope="module")
def made(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The tiny bundle with few frames, `short-kv`, and a variant in float32 that copies the default."""
    folder = shutil.copytree(tiny.folder, tmp_path_factory.mktemp("made") / "bundle")
    (folder / contract.MANIFEST).unlink()
    safer = {}
    for name in ("condition", "vocoder", "step", "step_keys", "step_reply"):
        safer[name] = f"{name}_float32.onnx"
        # Another doc_string makes the graphs differ.
        (folder / safer[name]).write_bytes(tiny.graph(name).read_bytes() + b"\x32\x01x")
    variants = {**tiny.manifest.variants, FLOAT32: safer}
    return contract.write(folder, changed(tiny, "short-kv", variants=variants, max_frames=256).manifest)


@pytest.fixture
def bundle(made: Bundle, tmp_path: Path) -> Bundle:
    return replace(made, folder=shutil.copytree(made.folder, tmp_path / "bundle"))


def without_float32(bundle: Bundle) -> Bundle:
    for path in bundle.folder.glob("*_float32.onnx"):
        path.unlink()
    (bundle.folder / contract.MANIFEST).unlink()
    variants = {name: v for name, v in bundle.manifest.variants.items() if name != FLOAT32}
    return contract.write(bundle.folder, replace(bundle.manifest, variants=variants))


@pytest.fixture(scope="module")
def prepared(made: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of engines that passed, with a file of the reports during their build."""
    folder, lines = tmp_path_factory.mktemp("prepared") / "engines", list[str]()
    started(made, folder, report=lines.append)
    folder.with_name("lines").write_text("\n".join(lines))
    return folder


def opened(
    bundle: Bundle,
    engines: Path,
    trt: TensorRT | None = None,
    *,
    backend: str = "tensorrt",
    report: Callable[[str], None] = lambda line: None,
    postponed: str = "",
) -> Synthesizer:
    trt = trt or TensorRT(Device())
    settings = EngineConfig(backend=backend, threads=1, lanes=2, cache=engines)
    with installed(trt.device, trt):
        return load_for(bundle, settings, report, postponed)


def started(bundle: Bundle, engines: Path, trt: TensorRT | None = None, **options: Any) -> Device:
    """Open an engine and shut it down; return its device, which counted."""
    trt = trt or TensorRT(Device())
    opened(bundle, engines, trt, **options).shutdown()
    return trt.device


def falsified(what: Falsify, version: str = "10.16.0") -> TensorRT:
    trt = TensorRT(Device(), version)
    trt.falsify = what
    return trt


def records(engines: Path) -> list[Path]:
    return list(engines.glob("*.json"))


def test_before_a_reboot_for_the_power_mode_none_is_built(
    made: Bundle, prepared: Path, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` uses the next backend until the reboot; existing engines are used."""
    monkeypatch.setattr(loading, "BACKENDS", ("tensorrt", "ort-cpu"))
    reboot = {"backend": "auto", "postponed": "a reboot is due"}
    waiting = opened(made, engines, **reboot)
    waiting.shutdown()
    [passed] = waiting.passed_over
    assert (passed.backend, passed.reason) == ("tensorrt", "engines are not built yet: a reboot is due")
    assert not list(engines.glob("*.engine"))
    ready = opened(made, prepared, **reboot)
    ready.shutdown()
    assert (ready.backend, ready.passed_over) == ("tensorrt", ())


def test_another_version_keeps_the_engines_of_the_previous_one(
    made: Bundle, prepared: Path, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines of the earlier version remain, so that undoing the upgrade builds nothing."""
    shutil.copytree(prepared, engines, dirs_exist_ok=True)
    with monkeypatch.context() as other:
        other.setattr(build, "FORMAT", build.FORMAT + 1)
        assert started(made, engines).counts["build"] == len(ENGINES)
    assert started(made, engines).counts["build"] == 0 and len(records(engines)) == 2


def test_engines_are_built_and_compared_once(made: Bundle, prepared: Path) -> None:
    assert len(list(prepared.glob("*.engine"))) == len(ENGINES)
    [path] = records(prepared)
    record = json.loads(path.read_bytes())
    assert sorted(record["engines"]) == sorted(ENGINES)
    assert record["arithmetic"] == record["refused"] == {} and sorted(record["build_s"]) == sorted(ENGINES)
    assert sorted(record["worst"]) == ["condition", "sample", "step", "step_keys", "step_reply", "vocoder"]
    assert 0 < max(record["worst"].values()) < 1e-4, "the fake computes as the CPU does, padded"
    lines = prepared.with_name("lines").read_text().splitlines()
    assert lines[0].startswith("engines for Orin")
    building = [line for line in lines if line.startswith("building ") and "for Orin" in line]
    numbers = [
        re.match(r"building the engine of (\w+), (\d) of 6: \d+ s so far, ", line) for line in building
    ]
    assert [(found[1], found[2]) for found in numbers if found] == [
        (graph, str(number)) for number, graph in enumerate(record["build_s"], 1)
    ]
    assert any(" so far, step_reply at 150 frames after 106: " in line for line in lines)
    assert lines[-1] == "every engine is built and agrees with the CPU's numbers"
    counts = started(made, prepared).counts
    assert counts["build"] == counts["run"] == 0


@pytest.mark.parametrize("longest", [256, 900, 4096])
def test_every_profile_is_compared_at_both_ends_and_with_one_and_two_rows(made: Bundle, longest: int) -> None:
    exact: Any = SimpleNamespace(
        manifest=replace(made.manifest, max_frames=longest),
        longest_reference=min(1126, longest - 1),
        condition=lambda given: np.ones(1),
        decode=lambda log_mel: np.ones(1),
    )
    found: set[tuple[str, int, int, int]] = set()

    def steps(engine: Any, exact: Any, given: Any, graphs: Any) -> Any:
        known = len(given.reference_log_mel)
        frames, reference = (given.frames, 0) if given.sampling == "exact" else (given.frames - known, known)
        assert given.frames <= longest
        found.update((graph, frames, reference, 2 if given.guidance else 1) for graph in graphs)
        return iter(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "_steps", steps)
        patch.setattr(gate, "share", lambda *_: 0.0)
        vocabulary = contract.read_vocabulary(made.vocab)
        lines = list(map(str, gate.compare(exact, exact, vocabulary)))
    rows = {(n, r) for graph, n, _, r in found if graph == "step"}
    replies = {(n, p) for graph, n, p, _ in found if graph == "step_reply"}
    assert replies == {(n, p) for graph, n, p, _ in found if graph == "step_keys"}
    ends = [*(end for end in build.RANGES if end < longest), longest]
    for least, most in zip((1, *(end + 1 for end in ends)), ends, strict=False):
        for count in (1, 2):
            assert {n for n, r in rows if r == count and least <= n <= most} >= {most}
            assert any(least <= n < least + 64 for n, r in rows if r == count)
        assert any(least <= n < least + 64 for n, _ in replies)
    assert len({p for _, p in replies}) == min(len(ends) + 1, 3)
    frames = {int(line.split()[2]) for line in lines if line.startswith("vocoder")}
    assert frames == {n for n in gate.LENGTHS if n < longest} | {longest}


def on(
    *graphs: str,
    where: Callable[..., bool] = lambda **_: True,
    wrong: Callable[[Array], Array] = lambda output: output * 0,
) -> Falsify:
    """Falsify the outputs of graphs for some of their inputs."""

    def falsify(stem: str, inputs: dict[str, Array], output: Array) -> Array:
        return wrong(output) if stem in graphs and where(**inputs) else output

    return falsify


nan_in_one_size = on("step", where=lambda latents, **_: latents.shape[1] == 256, wrong=lambda x: x * np.nan)
drift_in_two_rows = on("step", where=lambda latents, **_: len(latents) == 2, wrong=lambda out: out * 1.05)
blank_vocoder = on("vocoder", where=lambda log_mel: len(log_mel) > 200)
wrong_condition = on("condition", wrong=lambda out: out[::-1])
blank_in_float16 = on("vocoder")
always_blank = on("vocoder", "vocoder_float32")


@pytest.mark.parametrize(("what", "graph", "message"), [
    (nan_in_one_size, "step", "step at 256 frames: inf off, 0.001 allowed"),
    (drift_in_two_rows, "step", "in 2 rows: 5.0e-02 off, 0.001 allowed"),
    (blank_vocoder, "vocoder", "vocoder at 256 frames: 1.0e+00 off"),
    (wrong_condition, "condition", "condition at 16 frames: "),
])  # fmt: skip
def test_a_wrong_engine_is_refused_and_float32_takes_its_place(
    bundle: Bundle, engines: Path, what: Falsify, graph: str, message: str, caplog: Any
) -> None:
    caplog.set_level("INFO")
    engine = opened(bundle, engines, falsified(what))
    assert engine.backend == f"tensorrt ({graph} in float32)"
    assert f"the engine of {graph} is refused, float32 takes its place: " in caplog.text
    assert message in caplog.text
    given = segment(200, nfe=3, sampling="short-kv", reference=60)
    assert relative(solo(engine, given), solo(Synthesizer(bundle, OrtBackend(1)), given)) <= BATCHED
    engine.shutdown()
    # The next start reads the recorded result and reports it again.
    caplog.clear()
    assert started(bundle, engines, falsified(what)).counts["build"] == 0
    assert f"{graph} is computed in float32: {graph} at " in caplog.text


def test_a_graph_that_cannot_be_built_is_built_in_float32(bundle: Bundle, engines: Path) -> None:
    trt = TensorRT(Device())
    trt.refused = {"vocoder"}
    assert opened(bundle, engines, trt).backend == "tensorrt (vocoder in float32)"


def test_a_half_precision_bundle_has_three_answers(made: Bundle) -> None:
    both = {FLOAT32: {"step": "a.onnx", "vocoder": "b.onnx"}, FLOAT32_SUMS: {"step": "c.onnx"}}
    half = replace(made.manifest, precision="fp16", variants={**made.manifest.variants, **both})
    answers = {g: [prepare.safer(half, g, now) for now in (None, *Arithmetic)] for g in ("step", "vocoder")}
    sums, tf32, float32 = Arithmetic
    after = [tf32, float32, None]
    assert answers == {"step": [sums, *after], "vocoder": [tf32, *after]}
    assert [a.variant for a in Arithmetic] == [FLOAT32_SUMS, FLOAT32, FLOAT32]
    single = replace(half, precision="fp32")
    assert [prepare.safer(single, "vocoder", now) for now in (None, float32)] == [float32, None]
    assert prepare.safer(half, "update", None) is None


def test_tf32_is_tried_before_float32(engines: Path) -> None:
    """The voice is the shipped one, in half precision."""
    demo, trt = changed(contract.read(DEMO), "exact", max_frames=256), falsified(blank_in_float16)
    engine = opened(demo, engines, trt)
    assert engine.backend == "tensorrt (vocoder in TF32)"
    engine.shutdown()
    assert trt.in_tf32 == {"vocoder_float32"}
    assert not started(demo, engines, falsified(blank_in_float16)).counts["build"]


def test_a_bundle_that_is_wrong_in_float32_too_is_refused(bundle: Bundle, engines: Path) -> None:
    message = "not for Orin with tensorrt: vocoder at 16 frames: 1.0e[+]00 off, 0.001 allowed"
    with pytest.raises(BundleError, match=message):
        opened(bundle, engines, falsified(always_blank))
    assert not records(engines)


def test_if_float32_is_missing_the_next_backend_speaks(bundle: Bundle, engines: Path, caplog: Any) -> None:
    caplog.set_level("INFO")
    bundle = without_float32(bundle)
    with pytest.raises(BundleError, match="not for Orin with tensorrt: vocoder at"):
        opened(bundle, engines, falsified(blank_vocoder))
    engine = opened(bundle, engines, falsified(blank_vocoder), backend="auto")
    assert engine.backend == "ort-cuda"
    assert "engine.backend auto: " in caplog.text and "vocoder at 256 frames: 1.0e+00 off" in caplog.text


def test_a_sample_that_is_wrong_as_a_whole_puts_every_graph_in_float32(
    bundle: Bundle, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter((0.3, 0.2))
    monkeypatch.setattr(gate, "share", lambda *_: next(shares))
    label = opened(bundle, engines).backend
    assert label == "tensorrt (condition, vocoder, step, step_keys, step_reply in float32)"


def damage(folder: Path) -> None:
    path = next(folder.glob("*.engine"))
    path.write_bytes(path.read_bytes()[:-1])


def spoil_the_record(folder: Path) -> None:
    records(folder)[0].write_text("{")


def age_the_record(folder: Path) -> None:
    [path] = records(folder)
    path.write_text(path.read_text().replace(f'"format": {prepare.FORMAT}', '"format": 0'))


@pytest.mark.parametrize(("change", "builds"), [(damage, 1), (spoil_the_record, 0), (age_the_record, 0)])
def test_changed_inputs_are_built_or_compared_again(
    made: Bundle, prepared: Path, engines: Path, change: Callable[[Path], None], builds: int
) -> None:
    shutil.copytree(prepared, engines)
    change(engines)
    trt = TensorRT(Device())
    counts = started(made, engines, trt).counts
    assert (counts["build"], counts["run"] > 0) == (builds, True) and not trt.in_tf32
    counts = started(made, engines).counts
    assert counts["build"] == counts["run"] == 0


def test_old_engines_stay_until_new_ones_have_passed(bundle: Bundle, prepared: Path, engines: Path) -> None:
    shutil.copytree(prepared, engines)
    old = {path.name for path in engines.glob("*.engine")}
    [record] = records(engines)
    before = record.read_bytes()
    bundle = without_float32(bundle)
    with pytest.raises(BundleError):
        opened(bundle, engines, falsified(blank_vocoder, "10.17.0"))
    assert old < {path.name for path in engines.glob("*.engine")}
    assert record.read_bytes() == before
    started(bundle, engines, TensorRT(Device(), "10.17.0"))
    assert len(list(engines.glob("*.engine"))) == 2 * len(ENGINES), "a bundle to go back to"
    third = replace(bundle.manifest, family="third")
    (bundle.folder / contract.MANIFEST).unlink()
    started(contract.write(bundle.folder, third), engines, TensorRT(Device(), "10.17.0"))
    assert len(records(engines)) == 2
    assert not old & {path.name for path in engines.glob("*.engine")}


def test_engines_of_every_bundle_in_use_are_built_at_once_and_kept(
    bundle: Bundle, prepared: Path, engines: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(prepared, engines)
    rows: dict[str, Any] = {}
    for code in ("de", "fr"):
        folder = shutil.copytree(bundle.folder, tmp_path / code)
        (folder / "vocoder.onnx").write_bytes(bundle.graph("vocoder").read_bytes() + f"2\1{code[0]}".encode())
        (folder / contract.MANIFEST).unlink()
        contract.write(folder, bundle.manifest)
        rows[code] = {"voice": "ann", "bundle": str(folder)}
    keys = {"engine": {"backend": "tensorrt", "cache": str(engines)}, "text": {"languages": rows}}
    config = write_config(tmp_path, bundle.folder, **keys)

    def built() -> int:
        device = Device()
        with installed(device, TensorRT(device)):
            assert main(["prepare", "--config", str(config)]) == 0
        return device.counts["build"]

    main(["check", "--json", "--only", "bundle,engines", "--config", str(config)])
    of_bundle, of_engines = json.loads(capsys.readouterr().out)["findings"]
    assert (of_bundle["level"], of_engines["level"]) == ("PASS", "WARN")
    assert f"{tmp_path / 'fr'}: tiny fp32" in of_bundle["value"]
    assert of_engines["value"].count("none for this bundle") == 2
    assert (built(), len(records(engines))) == (2, 3)
    # Another bundle in place of the first one keeps the engines of the other languages.
    (bundle.folder / contract.MANIFEST).unlink()
    contract.write(bundle.folder, replace(bundle.manifest, family="another"))
    before = set(records(engines))
    assert built() == 0
    assert len(set(records(engines)) - before) == 1 and before < set(records(engines))
    assert built() == 0


def test_an_engine_that_is_refused_is_removed(made: Bundle, prepared: Path, engines: Path) -> None:
    shutil.copytree(prepared, engines)
    patched = TensorRT(Device())
    patched.patch = 1  # no call reports this version
    message = "TensorRT refuses the kept engine; it is removed, the next start builds another: the engine is"
    with pytest.raises(EngineFault, match=message):
        opened(made, engines, patched)
    assert len(list(engines.glob("*.engine"))) == len(ENGINES) - 1


@pytest.mark.parametrize("line", [
    "building the engine of condition", "built the engine of step_keys", r"comparing: .* condition",
    r"comparing: .* sample",
])  # fmt: skip
def test_killed_at_any_stage_the_next_start_is_whole(made: Bundle, engines: Path, line: str) -> None:
    """test_trt.py tests kills while a file is written."""
    command = [sys.executable, "-u", "-m", "tests.fakes.nvidia", "prepare"]
    settings = {"backend": "tensorrt", "cache": engines, "threads": 1}
    for setting in (f"bundle.path={made.folder}", *(f"engine.{name}={of}" for name, of in settings.items())):
        command += ["--set", setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        assert any(re.match(line, printed) for printed in child.stdout)
        child.kill()
    assert child.returncode == -signal.SIGKILL and not records(engines)
    started(made, engines)
    assert len(list(engines.glob("*.engine"))) == len(ENGINES) and len(records(engines)) == 1


def test_a_dry_run_lists_missing_engines_and_builds_none(made: Bundle, prepared: Path, engines: Path) -> None:
    def planned(folder: Path) -> list[str]:
        trt = TensorRT(Device())
        with installed(trt.device, trt):
            lines = prepare.plan(made, TrtBackend(folder), 2).lines()
        assert trt.device.counts["build"] == trt.device.counts["run"] == 0
        return lines

    lines = planned(engines)
    assert lines[0] == f"engines for Orin (8.7), TensorRT 10.16.0, in {engines}"
    assert [line.split()[:5] for line in lines[2:8]] == [
        [name, "profiles", count, "to", "build"]
        for name, count in zip(
            ("condition", "vocoder", "update", "step", "step_keys", "step_reply"), "111111", strict=True
        )
    ]
    assert "minutes for each engine; none was built here yet" in lines[8]
    assert lines[9].startswith("disk ") and lines[10].startswith("memory ")
    assert lines[-1] == "then every engine is compared with the CPU's numbers, which takes minutes too"
    assert not engines.exists()
    lines = planned(prepared)
    assert lines[-1] == "nothing to do: the engines were compared with the CPU's numbers and passed"
    shutil.copytree(prepared, engines)
    next(path for path in engines.glob("*.engine")).unlink()
    assert any(line.startswith("time      about 1 min, by earlier builds here") for line in planned(engines))


def test_a_full_disk_is_foreseen(made: Bundle, engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "free_bytes", lambda folder: 1000)
    trt = TensorRT(Device())
    with pytest.raises(StorageError, match=f"{engines}: needs about 9 MiB, 0 MiB are free"):
        opened(made, engines, trt)
    assert trt.device.counts["build"] == 0


def test_a_build_that_has_to_stop_ends_and_leaves_nothing_half(
    made: Bundle, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first report within TensorRT's build raises; engines that were built before remain."""
    monkeypatch.setattr(build, "REPORT_S", 0.01)
    raised, trt = threading.Event(), TensorRT(Device())

    def stop(line: str) -> None:
        if re.match("building the engine of step, .* Building ", line):
            raised.set()
            raise Interrupted

    built = trt.device.counts
    trt.before_build = lambda: bool(built["build"] < 3 or raised.wait(PATIENCE_S))
    with pytest.raises(Interrupted):
        opened(made, engines, trt, report=stop)
    assert len(list(engines.glob("*.engine"))) == 3 and not records(engines)
    assert started(made, engines).counts["build"] == 3


def test_unfused_attention_is_reported(bundle: Bundle, engines: Path, tmp_path: Path, capsys: Any) -> None:
    trt, lines = TensorRT(Device()), list[str]()
    trt.unfused = {"step_keys"}
    started(bundle, engines, trt, report=lines.append)
    assert "attention fused kernels: step 1, step_reply 1" in lines
    assert "attention not fused in step_keys: steps take more than twice as long" in lines
    with installed(trt.device, trt):
        assert lines[-3:-1] == [
            line for line in prepare.plan(bundle, TrtBackend(engines), 2).lines() if line.startswith("atten")
        ]
    found = checked(bundle, engines, tmp_path, capsys)
    assert found["level"] == "WARN" and "TensorRT fused no attention in step_keys" in found["value"]
    assert found["figures"]["fused_attentions"] == {"step": 1, "step_keys": 0, "step_reply": 1}


def test_a_daemon_stopped_while_building_ends_well(made: Bundle, engines: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, made.folder, engine={"backend": "tensorrt", "cache": str(engines)})
    command = [sys.executable, "-m", "tests.fakes.nvidia", "serve", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            if "built the engine of condition" in line:
                break
        daemon.send_signal(signal.SIGTERM)
        left = daemon.stderr.read()
        assert daemon.wait(PATIENCE_S) == 0, left
    assert "stopped while engines were built; the next start goes on" in left
    assert "Traceback" not in left


def checked(bundle: Bundle, engines: Path, tmp_path: Path, capsys: Any, backend: str = "tensorrt") -> Any:
    """The finding of `appliance check --only engines`."""
    config = write_config(tmp_path, bundle.folder, engine={"backend": backend, "cache": str(engines)})
    main(["check", "--json", "--only", "engines", "--config", str(config)])
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    return finding


def test_check_reports_the_state_of_the_engines(
    made: Bundle, bundle: Bundle, prepared: Path, tmp_path: Path, capsys: Any
) -> None:
    found = checked(made, prepared, tmp_path, capsys)
    assert found["level"] == "PASS" and found["value"].startswith("6 built, at most ")
    assert found["value"].endswith(", fused attentions: step 1, step_keys 1, step_reply 1")
    found = checked(made, tmp_path / "none", tmp_path, capsys)
    none = "none for this bundle; the next start builds them for minutes"
    assert (found["level"], found["value"]) == ("WARN", none)
    assert "appliance prepare" in found["remedy"]
    started(bundle, tmp_path / "engines", falsified(blank_vocoder))
    found = checked(bundle, tmp_path / "engines", tmp_path, capsys)
    assert found["level"] == "WARN"
    assert found["value"].startswith("vocoder in float32: vocoder at 256 frames: 1.0e+00 off")
    for backend in ("auto", "ort-cpu"):
        assert checked(made, prepared, tmp_path, capsys, backend)["level"] == "SKIP"


def test_the_command_builds_and_reports_its_steps(
    made: Bundle, engines: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, made.folder, engine={"backend": "tensorrt", "cache": str(engines)})
    device = Device()
    with installed(device, TensorRT(device)):
        assert main(["prepare", "--dry-run", "--config", str(config)]) == 0
        assert "step_keys    profiles 1   to build" in capsys.readouterr().out
        assert main(["prepare", "--config", str(config)]) == 0
        assert capsys.readouterr().out.endswith("agrees with the CPU's numbers\nprepared\n")
        assert main(["prepare", "--dry-run", "--config", str(config)]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("nothing to do: ")
        assert main(["prepare", "--config", str(config), "--set", "engine.backend=ort-cpu"]) == 0
        assert capsys.readouterr().out == "nothing is built for ort-cpu\n"
    assert not device.wrong
    assert main(["prepare", "--config", str(config)]) == 1
    assert "backend 'tensorrt': needs TensorRT's Python package" in capsys.readouterr().err
    assert main(["prepare", "--config", str(config), "--set", "engine.backend=auto"]) == 0
    assert capsys.readouterr().out.startswith("nothing is built for ort-cuda and ort-cpu; backend 'tensorrt'")
