"""The named families and the reading of upstream's YAML files."""

import dataclasses
import inspect
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.contract.bundle import Arch, Defaults
from appliance.contract.mel import MelSpec
from appliance.contract.sampler import Sampler
from export.families import FamilyError, family, with_mels_for, zipvoice
from export.families.f5 import NAMED as F5
from export.families.f5 import parse_family
from tests.harness.rows import rows
from tests.oracle import upstream

pytestmark = pytest.mark.torch

NAMED = {one.name: one for one in F5}


def config_of(name: str) -> Any:
    """Upstream's own file of a family."""
    upstream.require()
    return yaml.safe_load((resources.files("f5_tts") / "configs" / f"{name}.yaml").read_text("utf-8"))


def changed(change: dict[str, Any]) -> dict[str, Any]:
    """v1_Base's file with other keys; keys of its sections are merged."""
    whole: dict[str, Any] = config_of("F5TTS_v1_Base")["model"]
    for key, value in change.items():
        whole[key] = {**whole[key], **value} if key in ("arch", "mel_spec") else value
    return {"model": {key: value for key, value in whole.items() if value is not ...}}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_family_is_what_upstreams_own_file_says(name: str) -> None:
    assert parse_family(config_of(name), name=name) == NAMED[name]


def test_the_defaults_are_upstreams() -> None:
    """Defaults of all but `dim`, which has none; a `text_dim` of None is the number of mels."""
    known = inspect.signature(upstream.dit_class().__init__).parameters
    actual = parse_family({"model": {"arch": {"dim": 256}}}, name="mine")
    assert actual.name == "mine" and actual.mel == MelSpec("vocos")
    expected = {n: known[n].default for n in dataclasses.asdict(actual.arch)} | {"dim": 256, "text_dim": 100}
    assert actual.arch == Arch(**expected) == Arch(256, 8, 8, 4, text_dim=100, conv_layers=0, dim_head=64)


UPSAMPLES = {"text_embedding_average_upsampling": True}
LENGTHS = {"tokenizer": "phones", "duration": "tokens", "durations": {" ": [2, 3, 1], "ʤ": [4.5, 9, 1]}}
OFF = {"logit_softcapping": None, "post_norm": False, "norm_type": "rmsnorm", "use_moe": False, "experts": 0}
EIGHTY = {"mel_spec": {"n_mel_channels": 80, "mel_spec_type": "bigvgan"}}
V1 = NAMED["F5TTS_v1_Base"]
READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"arch": {"dropout": 0.1, "checkpoint_activations": True, "attn_mask_enabled": True}}, {}),
    ({"arch": OFF}, {}),
    ({"arch": {"norm_type": "layernorm"}}, {}),
    ({"mel_spec": {"fmin": 0, "fmax": None}}, {}),
    (
        {
            "mel_spec": {
                **{"target_sample_rate": 16000, "n_mel_channels": 80, "mel_spec_type": "bigvgan"},
                **{"hop_length": 200, "win_length": 800, "n_fft": 800},
            }
        },
        {"mel": MelSpec("bigvgan", 16_000, 80, 200, 800, 800)},
    ),
    (
        {"arch": {"text_dim": None}, **EIGHTY},
        {"arch": dataclasses.replace(V1.arch, text_dim=80), "mel": MelSpec("bigvgan", mels=80)},
    ),
    ({"tokenizer": ...}, {}),
    ({"tokenizer": "custom"}, {}),
    ({"tokenizer": "char"}, {"tokenizer": "char"}),
    (
        {"arch": UPSAMPLES, **LENGTHS},
        {
            "arch": dataclasses.replace(V1.arch, **UPSAMPLES),
            "tokenizer": "phones",
            "duration": "tokens",
            "durations": {" ": (2.0, 3.0, 1.0), "ʤ": (4.5, 9.0, 1.0)},
        },
    ),
]
"""Changes of v1_Base's file (`...`: removed), and of the result."""


@pytest.mark.parametrize(("change", "read"), READ)
def test_a_file_is_read_and_disabled_or_training_options_change_nothing(
    change: dict[str, Any], read: dict[str, Any]
) -> None:
    assert parse_family(changed(change), name="x") == dataclasses.replace(V1, **read)


@pytest.mark.parametrize("before", ["", "Config: "])
def test_the_line_that_upstream_prints_is_a_family(before: str) -> None:
    v0 = '{"dim": 1024, "depth": 22, "heads": 16, "ff_mult": 2, "text_dim": 512, "text_mask_padding": False, '
    v0 += '"conv_layers": 4, "pe_attn_head": 1}'
    v1 = '{"dim": 1024, "depth": 22, "heads": 16, "ff_mult": 2, "text_dim": 512, "conv_layers": 4}'
    assert family(before + v0) == NAMED["F5TTS_Base"]
    assert family(before + v1) == NAMED["F5TTS_v1_Base"]
    with pytest.raises(FamilyError, match=r"model\.arch: missing key dim"):
        family(before + '{"depth": 2}')


def test_known_weights_are_families_by_name_and_by_repository() -> None:
    silma = family("SILMA")
    assert silma.arch == NAMED["F5TTS_v1_Small"].arch
    assert (silma.name, silma.tokenizer, silma.mel) == ("SILMA", "char", MelSpec("vocos"))
    assert family("silma-ai/silma-tts") == silma
    bigvgan = family("F5TTS_Base_bigvgan")
    assert bigvgan.mel == MelSpec("bigvgan")
    with pytest.raises(FamilyError, match="kind bigvgan, which vocos cannot read; pass --vocoder bigvgan"):
        with_mels_for(bigvgan, "vocos")


def test_a_named_family_takes_the_mels_of_its_vocoder_and_a_file_keeps_its_own() -> None:
    named = family("F5TTS_Base")
    heard = with_mels_for(named, "bigvgan")
    assert (heard.mel.kind, heard.mel.mels, heard.arch) == ("bigvgan", 100, named.arch)
    assert with_mels_for(named, "vocos") == named
    written = dataclasses.replace(named, name="of a file")
    assert with_mels_for(written, "vocos") is written
    with pytest.raises(FamilyError, match="of a file: its mels are of the kind vocos, which bigvgan cannot"):
        with_mels_for(written, "bigvgan")


REFUSED: list[tuple[str, dict[str, Any], str]] = rows(__file__, "refused_architectures.jsonl")
"""A section (empty: the model), its changes, and the refusal."""


@pytest.mark.parametrize(("section", "change", "message"), REFUSED)
def test_unsupported_settings_are_named(section: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(FamilyError, match=message):
        parse_family(changed({section: change} if section else change), name="x")


@pytest.mark.parametrize(("name", "content", "message"), rows(__file__, "no_family.jsonl"))
def test_an_error_for_no_family_lists_families(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(content)
    with pytest.raises(FamilyError, match=message):
        family(name.replace("FOLDER", str(tmp_path)))


NONE, EMBEDDED = Sampler(guidance="none"), Sampler(guidance="embedded")
RANGE = {"guidance": "embedded", "strength": 2, "strengths": [1, 3]}
EPSS, SHIFT = Defaults(), Defaults(grid="shift", shift=0.5, cross_fade_s=0.1)
SAMPLED: list[tuple[str, dict[str, Any], Sampler, Defaults]] = [
    ("F5TTS_Base", {}, Sampler(), EPSS),
    ("F5TTS_Base", {"guidance": "two-row", "strength": 1.5}, Sampler(), replace(EPSS, guidance=1.5)),
    ("F5TTS_Base", {"steps": [2, 4]}, Sampler(steps=(2, 4)), EPSS),
    ("F5TTS_Base", {"grid": "epss"}, Sampler(), EPSS),
    ("F5TTS_Base", {"grid": "sway"}, Sampler(), replace(EPSS, grid="uniform")),
    ("F5TTS_Base", {"grid": "uniform"}, Sampler(), replace(EPSS, grid="uniform", sway=0.0)),
    ("F5TTS_Base", {"guidance": "none"}, NONE, replace(EPSS, guidance=0.0)),
    (*("F5TTS_Base", {"guidance": "none", "strength": 2}),
     *(replace(NONE, strengths=(2.0,)), replace(EPSS, guidance=0.0))),
    ("F5TTS_Base", RANGE, replace(EMBEDDED, strengths=(1.0, 3.0)), EPSS),
    (*("F5TTS_Base", {"update": "renoise", "guidance": "none", "steps": [4], "grid": "sway"}),
     *(Sampler("renoise", "none", (4,)), replace(EPSS, guidance=0.0, grid="uniform"))),
    ("ZipVoice", {"steps": [8]}, replace(zipvoice.TWO_ROWS, steps=(8,)), replace(SHIFT, guidance=1.0)),
    ("ZipVoice", {"guidance": "embedded"}, EMBEDDED, replace(SHIFT, guidance=3.0)),
    ("ZipVoice", {"guidance": "embedded", "strength": 2.5}, EMBEDDED, replace(SHIFT, guidance=2.5)),
    ("ZipVoice-Distill", {"guidance": "two-row"}, zipvoice.TWO_ROWS, replace(SHIFT, guidance=1.0)),
]  # fmt: skip
"""Family, section `sampler`, expected sampler and defaults."""


@pytest.mark.parametrize(("name", "section", "sampler", "defaults"), SAMPLED)
def test_the_section_sampler_reaches_the_manifest(
    name: str, section: dict[str, Any], sampler: Sampler, defaults: Defaults, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"family": name, "sampler": section}))
    expected = replace(family(name), sampler=sampler, defaults=defaults)
    assert family(str(path)) == family(json.dumps({"family": name, "sampler": section})) == expected
    # The mels of a named family follow the vocoder, with and without the section.
    if name == "F5TTS_Base":
        assert with_mels_for(family(str(path)), "bigvgan").mel.kind == "bigvgan"


def test_a_file_of_a_training_has_the_section_and_another_may_replace_it(tmp_path: Path) -> None:
    own, other = tmp_path / "own.yaml", tmp_path / "other.yml"
    own.write_text(yaml.safe_dump({**changed({}), "sampler": {"guidance": "none"}}))
    other.write_text(f"family: {own}\nsampler: {{steps: [4]}}\n")
    assert family(str(own)).sampler == NONE and family(str(own)).arch == V1.arch
    assert family(str(other)).sampler == Sampler(steps=(4,)) and family(str(other)).arch == V1.arch
    other.write_text(f"family: {other}\n")
    with pytest.raises(FamilyError, match=r"other\.yml: model: must be a mapping, not NoneType"):
        family(str(other))


def test_a_model_json_has_the_section_too(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    content = {"model": {}, "feature": {}, "sampler": {"guidance": "embedded"}}
    path.write_text(json.dumps(content, indent="\t"))  # which YAML does not read
    assert family(str(path)).sampler == EMBEDDED
    assert family(str(path)).defaults.guidance == 3.0


@pytest.mark.parametrize(("section", "message"), rows(__file__, "wrong_samplers.jsonl"))
def test_a_wrong_section_sampler_names_key_value_and_choices(section: Any, message: str) -> None:
    with pytest.raises(FamilyError, match=f"^--family: {message}"):
        family(json.dumps({"family": "F5TTS_Base", "sampler": section}))
