"""Each row of the known weights: fetched from a hub with its layout, and accepted by the printed command."""

import dataclasses
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from appliance.contract.bundle import Arch
from export import assemble, families, fetch
from export.cli import main
from export.families import f5, zipvoice
from export.model.dit import DiT
from export.sources import weights
from export.sources.weights import KNOWN, VOCODERS, Known
from tests.export.hub import Hub, serving
from tests.export.random_checkpoint import redraw, write_random_zipvoice
from tests.export.zipvoice import TOKENS, TRACED
from tests.harness import small
from tests.text.emilia.spoken import NUMBERS

pytestmark = pytest.mark.torch

SMALL = Arch(dim=32, depth=1, heads=1, ff_mult=2, text_dim=16, conv_layers=1, dim_head=32)
VOCAB = [" ", *"abcdefghijklmnopqrstuvwxyz"]
ZIPVOICES = {family.name for family in zipvoice.NAMED}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub; the families of the rows are small."""
    monkeypatch.setenv("no_proxy", "*")
    for family in f5.NAMED:
        flags = {key: getattr(family.arch, key) for key in ("text_mask_padding", "pe_attn_head")}
        arch = dataclasses.replace(SMALL, **flags)
        monkeypatch.setitem(families.NAMED, family.name, dataclasses.replace(family, arch=arch))
    for name in ZIPVOICES:
        monkeypatch.setitem(families.NAMED, name, dataclasses.replace(families.NAMED[name], arch=TRACED))
    with serving(Hub({})) as hub:
        monkeypatch.setattr(fetch, "fetch", functools.partial(fetch.fetch, endpoint=hub.address))
        yield hub


def publish(row: Known, folder: Path) -> dict[str, bytes]:
    """Random weights in the row's layout: "repository/file" → bytes."""
    wide = {"num_mels": families.MELS["bigvgan"].mels} if row.vocoder == "bigvgan" else {}
    voice = small.write_vocoder(folder / "voice", row.vocoder, 3, **wide)
    source = VOCODERS[row.vocoder]
    vocoder_files = {f"{source.repository}/{name}": (voice / name).read_bytes() for name in source.files}
    if row.family in ZIPVOICES:
        embeds = families.NAMED[row.family].sampler.guidance == "embedded"
        tokens = TOKENS if row.tokenizer == "letters" else [token for token in NUMBERS if token != "_"]
        made = write_random_zipvoice(folder / "zip", TRACED, tokens, embeds_guidance=embeds)
        return vocoder_files | {
            f"{row.repository}/{name}": (made / Path(name).name).read_bytes()
            for name in (row.checkpoint, row.vocab)
        }
    marks = sorted({sign for around in row.dialects.values() for sign in "".join(around)})
    model = DiT(families.NAMED[row.family].arch, len(VOCAB) + len(marks), families.MELS[row.vocoder].mels)
    redraw(model, 7)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    written = folder / Path(row.checkpoint).name
    if row.own_vocoder:
        stored = torch.load(voice / "pytorch_model.bin")
        vocoder = {f"vocoder._orig_mod.{name}": value.clone() for name, value in stored.items()}
        save_file(named("ema_model._orig_mod.transformer.", state) | vocoder, written)
    elif written.suffix == ".safetensors":
        save_file(named("ema_model.transformer.", state), written)
    elif row.weights == "raw":
        torch.save({"model_state_dict": named("transformer.", state)}, written)
    else:
        torch.save({"ema_model_state_dict": named("ema_model.transformer.", state)}, written)
    vocab = "".join(f"{token}\n" for token in [*VOCAB, *marks]).encode()
    files = {
        f"{row.repository}/{row.checkpoint}": written.read_bytes(),
        f"{row.vocab_repository or row.repository}/{row.vocab}": vocab,
    }
    if row.config:
        arch = {**dataclasses.asdict(families.NAMED[row.family].arch), "attn_backend": "torch"}
        text = yaml.safe_dump({"model": {"name": row.name, "tokenizer": "pinyin", "arch": arch}})
        files[f"{row.repository}/{row.config}"] = text.encode()
    return files | vocoder_files


def named(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize("name", KNOWN)
def test_a_row_is_fetched_after_its_terms_and_its_command_works(
    name: str, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = KNOWN[name]
    hub.files = publish(row, tmp_path)
    assert main(["fetch", name, "--out", str(tmp_path / "my weights")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"{row.repository}: {row.licence}") and row.warning in printed[0]
    assert ("not for money" in printed[0]) == row.licence.startswith("CC-BY-NC")
    if not row.own_vocoder:
        assert printed[1].startswith(f"{VOCODERS[row.vocoder].repository}: {VOCODERS[row.vocoder].licence}")
    assert any(row.unverified in line for line in printed)
    assert any(f"{row.repository}/{row.checkpoint} → " in line for line in printed)

    words = shlex.split(printed[-1])
    assert words[:3] == ["python", "-m", "export"]
    at = words.index("--out")
    words[at + 1] = str(tmp_path / "bundle")
    one = small.opened_by(words[3:])
    assert one.text.languages == row.languages
    assert one.text.tokenizer == row.tokenizer
    assert one.mel == (zipvoice.MEL if name in ZIPVOICES else families.MELS[row.vocoder])
    usual = next(iter(row.dialects.items()), ("", ("", "")))
    assert (one.text.dialect, one.text.around) == usual
    assert one.weights().averaged == (row.weights == "ema")
    assert one.sources.family.arch == families.NAMED[row.family].arch
    assert assemble.licence(one.sources.checkpoint, one.sources.vocoder_path).weights == row.licence


def test_all_rows_are_listed_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch"]) == 0
    printed = capsys.readouterr().out
    assert all(f"`{row.name}`" in printed and row.licence in printed for row in KNOWN.values())


def test_the_readme_has_the_list(root: Path) -> None:
    assert weights.listing() in (root / "export/README.md").read_text("utf-8")


def test_rows_state_their_doubts() -> None:
    for row in KNOWN.values():
        assert all(re.fullmatch("[a-z]{2}", code) for code in row.languages) and row.languages
        assert row.family in families.NAMED
        if row.licence.startswith("CC-BY-NC"):
            assert "not for money" in row.note
        else:
            assert "scratch" in row.note or "doubtful" in row.note
