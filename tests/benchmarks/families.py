"""Families side by side on the CPU: full-size F5-TTS v1 Base and ZipVoice-LibriTTS-Distill, random weights.

Each contender lives in a process of its own and they take turns (`cpu.py`): same reference of 5 s, same text.
On a busy machine processor times say more than times.

    [PYTHONPATH=CHECKOUT] python -m tests.benchmarks.families WORK [--rounds 3] [--threads 2] [--only GLOB]

WORK holds checkpoints and bundles; what is there already is not made again. Those of `upstream` need a
checkout of k2-fsa/ZipVoice at 2f7326f: its torch model, and its own ONNX export in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import soundfile

from appliance.config import EngineConfig
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Precision, Sampling
from appliance.engine.condition import condition_inputs
from appliance.engine.loading import load_for
from appliance.plan import Planner
from appliance.request import Reference, Request, Segment, Segmentation
from appliance.text.spelling import Spelling
from appliance.text.tokens.tokenizers import maker
from appliance.voices.reference import prepare
from appliance.voices.rules import RULES
from tests.benchmarks.cpu import Run, answer, speaking, take_turns
from tests.benchmarks.random_base import FloatArray, upstream_noise
from tests.daemons import SPEECH
from tests.sounds import to_file

TEXT = "The boss has two phases, and the second one is much harder, so keep your shield up and go left."
TRANSCRIPT = "Time to drink some water and stretch your legs. Time to drink some water,"
REFERENCE_S = 5.0
SEED = 0
F5, ZIPVOICE = "F5TTS_v1_Base", "ZipVoice-LibriTTS-Distill"
NFE = {F5: 7, ZIPVOICE: 4}
STAND_INS = (
    "torch.utils.tensorboard", "lhotse", "lhotse.dataset", "lhotse.dataset.sampling",
    "lhotse.dataset.sampling.base", "jieba", "cn2an", "piper_phonemize", "inflect", "unidecode",
)  # fmt: skip
"""Imports of upstream's modules that its model and export never call."""


def prepare_bundle(work: Path, name: str, precision: Precision = "fp32") -> Bundle:
    folder = work / name / precision
    if not folder.exists():
        from export import assemble
        from export.families import NAMED
        from export.proof import parity
        from tests.benchmarks import random_base
        from tests.export.random_checkpoint import write_random_vocos, write_random_zipvoice
        from tests.export.zipvoice import TOKENS

        family, files = NAMED[name], work / name
        if name == F5:
            random_base.write(files, family, 2545)
            given = files / "checkpoint/model.safetensors", files / "checkpoint/vocab.txt"
        else:
            write_random_zipvoice(files / "model", family.arch, TOKENS, SEED, embeds_guidance=True)
            write_random_vocos(files / "vocos", seed=SEED)
            given = files / "model/model.pt", files / "model/tokens.txt"
        sources = assemble.Sources(
            family,
            *given,
            "vocos",
            files / "vocos",
            weights_licence="none",
            languages=("en",),
            sampler=family.sampler,
            defaults=family.defaults,
        )
        loaded = assemble.load(sources)
        assemble.build(loaded, precision, folder, lambda _: parity.Report(precision))
    return contract.read(folder, verify=False)


@contextmanager
def stood_in() -> Iterator[None]:
    """Upstream's imports without what its model never calls; its own modules stay."""
    absent = [name for name in STAND_INS if not _is_there(name)]
    sys.modules.update({name: MagicMock(__spec__=None) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _is_there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def upstream_model(work: Path) -> Any:
    import torch

    with stood_in():
        from zipvoice.models.zipvoice_distill import ZipVoiceDistill
    stored = torch.load(work / ZIPVOICE / "model/model.pt", weights_only=True)["model"]
    sizes = json.loads((work / ZIPVOICE / "model/model.json").read_text())["model"]
    model = ZipVoiceDistill(**sizes, vocab_size=len(stored["embed.weight"]), pad_id=0)
    model.load_state_dict(stored, strict=True)
    return model.eval()


def upstream_onnx(work: Path) -> Path:
    """Folder of upstream's own export; it traces, for which torch keeps the exporter of old."""
    folder = work / ZIPVOICE / "upstream"
    if not folder.exists():
        import torch

        model, export = upstream_model(work), torch.onnx.export
        with stood_in():
            from zipvoice.bin import onnx_export
            from zipvoice.utils.scaling_converter import convert_scaled_to_non_scaled
        folder.mkdir()
        with torch.no_grad(), patch("torch.onnx.export", lambda *a, **k: export(*a, **k, dynamo=False)):
            convert_scaled_to_non_scaled(model, inplace=True, is_onnx=True)
            onnx_export.export_text_encoder(onnx_export.OnnxTextModel(model), folder / "text_encoder.onnx")
            decoder = onnx_export.OnnxFlowMatchingModel(model, distill=True)
            onnx_export.export_fm_decoder(decoder, folder / "fm_decoder.onnx")
        for name in ("text_encoder", "fm_decoder"):  # as the `main` of upstream's export ends
            onnx_export.quantize_dynamic(
                folder / f"{name}.onnx",
                folder / f"{name}_int8.onnx",
                op_types_to_quantize=["MatMul"],
                weight_type=onnx_export.QuantType.QInt8,
            )
    return folder


def segments(bundle: Bundle, nfe: int, sampling: Sampling, segmentation: Segmentation) -> list[Segment]:
    m, vocabulary = bundle.manifest, bundle.vocabulary()
    read = Spelling(vocabulary).read
    given = Reference(
        read(TRANSCRIPT), prepare(reference(), m.mel, m.defaults.target_rms, rule=RULES[m.reference])
    )
    planner = Planner(m, vocabulary, lambda *_: given, maker(vocabulary.tokenizer, vocabulary.voice))
    request = Request(read(TEXT), "", nfe, SEED, m.defaults.guidance, segmentation, stream=True)
    [(_, planned)] = planner.ways([request])
    return [dataclasses.replace(one, sampling=sampling) for one in planned]


def reference() -> bytes:
    """A demo voice, said again until it takes REFERENCE_S."""
    sound, rate_hz = soundfile.read(SPEECH, dtype="int16")
    return to_file(np.resize(sound, (round(REFERENCE_S * rate_hz), 1)), rate_hz)


def ours(bundle: Bundle, nfe: int, sampling: Sampling, threads: int, *, first: bool) -> Run:
    """The device's engine with its vocoder: the whole in one piece, or the first piece of a stream."""
    way = Segmentation.LOW_LATENCY if first else Segmentation.UPSTREAM
    planned = segments(bundle, nfe, sampling, way)[0]
    engine = load_for(bundle, EngineConfig(backend="ort-cpu", lanes=1, threads=threads))

    return speaking(engine, planned, engine.finish)


def planned_zipvoice(work: Path) -> tuple[Segment, FloatArray]:
    bundle = prepare_bundle(work, ZIPVOICE)
    [planned] = segments(bundle, NFE[ZIPVOICE], "exact", Segmentation.UPSTREAM)
    return planned, upstream_noise(planned.frames)


def our_torch(work: Path) -> Run:
    """The plain model of `export.model.zipformer`, without a vocoder."""
    import torch

    from export.families import NAMED
    from export.model import zipformer

    planned, noise = planned_zipvoice(work)
    family = NAMED[ZIPVOICE]
    stored = torch.load(work / ZIPVOICE / "model/model.pt", weights_only=True)["model"]
    model = zipformer.ZipVoice(family.arch, len(stored["embed.weight"]) - 1, embeds_guidance=True).eval()
    model.load_state_dict(stored)
    given = condition_inputs(planned.ids, planned.reference_log_mel, planned.frames, "floor")
    ids, index = (torch.from_numpy(given[name]).long() for name in ("ids", "upsample_index"))
    cond = torch.from_numpy(planned.reference_log_mel)

    @torch.inference_mode()
    def run() -> FloatArray:
        text = model.text(ids, index)
        at = planned.times.tolist()
        *_, (mel, _) = zipformer.states(
            model, cond, text, torch.from_numpy(noise), at, planned.guidance, family.sampler
        )
        return np.asarray(mel.numpy())

    return run


def upstream_torch(work: Path) -> Run:
    """The published package's model and solver, without a vocoder."""
    import torch

    planned, noise = planned_zipvoice(work)
    model = upstream_model(work)
    cond = torch.from_numpy(planned.reference_log_mel)
    speech = torch.nn.functional.pad(cond, (0, 0, 0, planned.frames - len(cond)))[None]

    @torch.inference_mode()
    def run() -> FloatArray:
        embed, lengths = model.forward_text_embed([(planned.ids + 1).tolist()])
        text, mask = model.forward_text_condition(embed, lengths, torch.tensor([planned.frames]))
        found = model.solver.sample(
            x=torch.from_numpy(noise)[None],
            text_condition=text,
            speech_condition=speech,
            padding_mask=mask,
            num_step=planned.nfe,
            guidance_scale=planned.guidance,
            t_shift=float(contract.read(work / ZIPVOICE / "fp32", verify=False).manifest.defaults.shift),
        )
        return np.asarray(found[0].numpy())

    return run


def upstream_ort(work: Path, threads: int, suffix: str = "") -> Run:
    """Upstream's own ONNX export in ONNX Runtime, without a vocoder; `suffix` of its files."""
    import onnxruntime

    planned, noise = planned_zipvoice(work)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    text, decoder = (
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for path in (upstream_onnx(work) / f"{name}{suffix}.onnx" for name in ("text_encoder", "fm_decoder"))
    )
    speech = np.zeros((1, planned.frames, planned.reference_log_mel.shape[1]), np.float32)
    speech[0, : len(planned.reference_log_mel)] = planned.reference_log_mel
    ids = (planned.ids[None] + 1).astype(np.int64)
    # A first token as the prompt whose frames are such that the ratio gives the planned number.
    speed = np.array(ids.shape[1] / planned.frames, np.float32)

    def run() -> FloatArray:
        [said] = text.run(
            None,
            {
                "prompt_tokens": ids[:, :1],
                "tokens": ids[:, 1:],
                "prompt_features_len": np.array(1, np.int64),
                "speed": speed,
            },
        )
        said = said[:, : planned.frames]
        x = noise[None]
        for now, then in zip(planned.times[:-1], planned.times[1:], strict=True):
            [v] = decoder.run(
                None,
                {
                    "t": np.array(now, np.float32),
                    "x": x,
                    "text_condition": said,
                    "speech_condition": speech,
                    "guidance_scale": np.array(planned.guidance, np.float32),
                },
            )
            x = x + np.float32(then - now) * v
        return np.asarray(x[0])

    return run


def contender(name: str, work: Path, threads: int) -> Run:
    made: dict[str, Callable[[], Run]] = {
        "our torch": lambda: our_torch(work),
        "upstream torch": lambda: upstream_torch(work),
        "upstream onnx": lambda: upstream_ort(work, threads),
        "upstream onnx int8": lambda: upstream_ort(work, threads, "_int8"),
    }
    if name in made:
        return made[name]()
    family, precision, sampling, part = name.split()
    bundle = prepare_bundle(work, family, precision)  # type: ignore[arg-type]
    return ours(bundle, NFE[family], sampling, threads, first=part == "first")  # type: ignore[arg-type]


ENGINE = {
    f"{F5} fp32 short-kv": F5,
    **{
        f"{ZIPVOICE} {precision} {sampling}": ZIPVOICE
        for precision in ("fp32", "int8")
        for sampling in ("exact", "short-kv")
    },
}
TORCH = "our torch", "upstream torch", "upstream onnx", "upstream onnx int8"
BASE = f"{ZIPVOICE} fp32 exact whole"
"""Contender whose processor time is the unit of the ratios."""


def compare(work: Path, rounds: int, threads: int, only: str) -> dict[str, Any]:
    names = [f"{name} {part}" for name in ENGINE for part in ("whole", "first")] + list(TORCH)
    is_there = _is_there("zipvoice")
    names = [name for name in names if fnmatch(name, only) and (is_there or "upstream" not in name)]
    for name in names:
        if name not in TORCH:
            family, precision, *_ = name.split()
            prepare_bundle(work, family, precision)  # type: ignore[arg-type]
    if any("onnx" in name for name in names):
        upstream_onnx(work)
    ran = take_turns(names, work, rounds, "tests.benchmarks.families", ("--threads", str(threads)))
    rows = dict[str, Any]()
    least_s = {name: min(one.cpu_s) for name, one in ran.items()}
    print(
        f"\n{rounds} rounds, {threads} threads; reference {REFERENCE_S:g} s; ratios of least processor times"
    )
    print(f"{'':46s} {'median s':>9s} {'cpu s':>7s} {'× ZipVoice':>10s} {'peak GB':>8s}")
    for name, one in ran.items():
        rows[name] = {"seconds": one.seconds, "cpu_s": one.cpu_s, "peak_gb": one.peak_gb}
        ratio = least_s[name] / least_s.get(BASE, least_s[name])
        print(f"{name:46s} {one.median:9.2f} {least_s[name]:7.2f} {ratio:10.2f} {one.peak_gb:8.2f}")
    for name, family in ENGINE.items():
        if f"{name} whole" in ran and f"{name} first" in ran:
            rate = prepare_bundle(work, family).manifest.mel.sample_rate_hz
            whole, first = (len(ran[f"{name} {part}"].result()) / rate for part in ("whole", "first"))
            rows[name] = {"whole": whole, "first": first}
            print(f"{name}: {whole:.2f} s of speech, its first piece {first:.2f} s")
    if "upstream torch" in ran:
        expected = ran["upstream torch"].result()
        for name in (name for name in TORCH if name in ran and name != "upstream torch"):
            far = float(np.linalg.norm(ran[name].result() - expected) / np.linalg.norm(expected))
            rows[name]["error"] = far
            print(f"{name}: {far:.1e} from upstream's torch")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("served", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="*", metavar="GLOB", help="contenders")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.served:
        name, out = options.served
        if "torch" in name:
            import torch

            torch.set_num_threads(options.threads)
        answer(contender(name, options.work, options.threads), Path(out))
        return
    results = compare(options.work, options.rounds, options.threads, options.only)
    (options.work / "families.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
