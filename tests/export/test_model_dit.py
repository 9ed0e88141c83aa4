"""Our DiT against upstream's, on random weights, for every option of the architecture."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from appliance.contract.schedule import time_grid
from export.families import NAMED
from export.model.dit import DiT, sample, upsample_index
from export.model.redraw import redraw
from export.sources.checkpoint import Weights, build_dit, load_dit
from tests import upstream
from tests.export.random_checkpoint import write_random
from tests.export.small import upstream_dit

pytestmark = pytest.mark.torch

VOCAB, MELS = 37, 20
TINY = Arch(dim=64, depth=3, heads=2, ff_mult=2, text_dim=48, conv_layers=2, dim_head=32)
ARCHS = {
    "v1": TINY,
    "v0": dataclasses.replace(TINY, text_mask_padding=False, pe_attn_head=1),
    "qk_norm": dataclasses.replace(TINY, qk_norm="rms_norm"),
    "long_skip": dataclasses.replace(TINY, long_skip_connection=True),
    "upsampling": dataclasses.replace(TINY, text_embedding_average_upsampling=True),
    "no_convs": dataclasses.replace(TINY, conv_layers=0),
    "no_convs_upsampling": dataclasses.replace(TINY, conv_layers=0, text_embedding_average_upsampling=True),
    "text_dim_is_mels": dataclasses.replace(TINY, text_dim=MELS),
    "wide_heads": dataclasses.replace(TINY, heads=3, dim_head=64, ff_mult=4, pe_attn_head=2),
    "everything": dataclasses.replace(
        TINY,
        qk_norm="rms_norm",
        long_skip_connection=True,
        text_embedding_average_upsampling=True,
        pe_attn_head=1,
    ),
}
CASES = [(1, 1, 7), (23, 11, 60), (40, 64, 113)]  # reference frames, tokens, frames in all


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def theirs(arch: Arch, seed: int = 3) -> Any:
    """Upstream's DiT with redrawn weights."""
    model = upstream_dit(arch, VOCAB, mels=MELS)
    redraw(model, seed)
    return model


def ours(arch: Arch, weights: nn.Module) -> DiT:
    model = DiT(arch, VOCAB, MELS).eval()
    model.load_state_dict(weights.state_dict(), strict=True)
    return model


@pytest.fixture(params=ARCHS)
def pair(request: pytest.FixtureRequest) -> tuple[Any, DiT]:
    arch = ARCHS[request.param]
    oracle = theirs(arch)
    return oracle, ours(arch, oracle)


def case(reference: int, tokens: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
    """(R, M) reference, (T,) ids, (N, M) noise."""
    generator = torch.Generator().manual_seed(frames)
    cond = torch.randn(reference, MELS, generator=generator)
    ids = torch.randint(0, VOCAB, (tokens,), generator=generator)
    return cond, ids, torch.randn(frames, MELS, generator=generator)


@pytest.mark.parametrize("shape", CASES)
@pytest.mark.parametrize("time", [0.0, 0.0012, 0.61])
def test_one_step_equals_upstreams(pair: tuple[Any, DiT], shape: tuple[int, int, int], time: float) -> None:
    oracle, model = pair
    cond, ids, noise = case(*shape)
    frames = len(noise)
    padded = torch.cat((cond, torch.zeros(frames - len(cond), MELS)))
    with torch.inference_mode():
        wanted = oracle(
            x=noise[None], cond=padded[None], text=ids[None], time=torch.tensor(time), cfg_infer=True
        )
        found = model(noise, padded, model.text_embed(ids, frames), torch.tensor(time))
        alone = model(noise, padded, model.text_embed(ids, frames, 1), torch.tensor(time))
    assert found.shape == (2, frames, MELS)
    for row in (0, 1):
        assert relative(found[row], wanted[row]) <= 5e-6
    assert relative(alone[0], wanted[0]) <= 5e-6
    assert relative(found[0], wanted[1]) > 1e-3  # the rows do differ, so the comparison can fail


@pytest.mark.parametrize("name", ["v1", "v0", "everything"])
@pytest.mark.parametrize("nfe", [5, 7, 8, 16, 32])
def test_a_whole_sample_equals_upstreams(name: str, nfe: int) -> None:
    oracle = theirs(ARCHS[name])
    check_sample(oracle, ours(ARCHS[name], oracle), case(23, 31, 97), nfe, 2.0)


def test_every_option_samples_as_upstream(pair: tuple[Any, DiT]) -> None:
    for shape in CASES[:2]:
        check_sample(*pair, case(*shape), 7, 2.0)


@pytest.mark.parametrize("guidance", [0.0, 0.7])
def test_other_guidance_samples_as_upstream(guidance: float) -> None:
    oracle = theirs(TINY)
    check_sample(oracle, ours(TINY, oracle), case(23, 31, 97), 6, guidance)


def check_sample(
    oracle: Any,
    model: DiT,
    given: tuple[Tensor, Tensor, Tensor],
    nfe: int,
    guidance: float,
) -> None:
    cond, ids, noise = given
    mel = nn.Module()
    mel.n_mel_channels = noise.shape[1]  # type: ignore[assignment]
    flow = upstream.cfm_class()(transformer=oracle, mel_spec_module=mel).eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", lambda *_, **__: noise.clone())
        wanted, _ = flow.sample(
            cond=cond[None],
            text=ids[None],
            duration=len(noise),
            steps=nfe,
            cfg_strength=guidance,
            sway_sampling_coef=-1.0,
        )
    found = sample(model, cond, ids, len(noise), noise, time_grid(nfe).tolist(), guidance)
    assert torch.equal(found[: len(cond)], cond)
    assert relative(wanted[0, len(cond) :], noise[len(cond) :]) > 0.05  # the velocity did move the noise
    assert relative(found[len(cond) :], wanted[0, len(cond) :]) <= 5e-5


def test_a_mask_from_the_text_reaches_the_row_without_text() -> None:
    model = ours(TINY, theirs(TINY))
    with torch.inference_mode():
        short = model.text_embed(torch.arange(5), 40)[1]
        long = model.text_embed(torch.arange(20), 40)[1]
    assert relative(short, long) > 1e-2


@pytest.mark.parametrize(("tokens", "frames"), [(1, 9), (4, 10), (5, 5), (9, 4), (7, 100)])
def test_upsampling_spreads_tokens_and_gives_the_rest_to_the_last(tokens: int, frames: int) -> None:
    index = upsample_index(tokens, frames).tolist()
    counts = [index.count(token) for token in range(min(tokens, frames))]
    assert len(index) == frames and index == sorted(index)
    assert counts == sorted(counts) and counts[-1] - counts[0] <= 1


def test_lengths_that_do_not_fit_are_refused() -> None:
    model = DiT(TINY, VOCAB, MELS)
    cond, ids, noise = case(23, 31, 97)
    grid = time_grid(5).tolist()
    with pytest.raises(ValueError, match="frames must be above 23 reference frames and 31 tokens"):
        sample(model, cond, ids, 31, noise[:31], grid)
    with pytest.raises(ValueError, match="at most 8192"):
        sample(model, cond, ids, 8193, noise, grid)
    with pytest.raises(ValueError, match=r"noise must be \(96, 20\)"):
        sample(model, cond, ids, 96, noise, grid)


def test_redrawing_touches_every_parameter_and_repeats_by_seed() -> None:
    model = DiT(ARCHS["everything"], VOCAB, MELS)
    before = {name: value.clone() for name, value in model.named_parameters()}
    redraw(model, 1)
    first = {name: value.clone() for name, value in model.named_parameters()}
    redraw(model, 2)
    second = {name: value.clone() for name, value in model.named_parameters()}
    redraw(model, 1)
    for name, value in model.named_parameters():
        assert torch.equal(value, first[name]), name
        assert not torch.equal(value, second[name]), name
        assert not torch.equal(value, before[name]), name
        assert bool(value.isfinite().all()) and float(value.detach().abs().max()) > 0
    assert torch.equal(model.rotary_embed.inv_freq, DiT(TINY, 1, 1).rotary_embed.inv_freq)


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Weights of a full-size Base; v0 and v1 have the same tensors."""
    vocab = [" ", *(f"t{n}" for n in range(1, 2545))]
    arch = NAMED["F5TTS_v1_Base"].arch
    path, _ = write_random(tmp_path_factory.mktemp("full"), arch, vocab)
    return load_dit(path, arch, len(vocab))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["F5TTS_v1_Base", "F5TTS_Base"])
def test_full_size_equals_upstreams(name: str, full_size: Weights) -> None:
    arch = NAMED[name].arch
    model = build_dit(full_size, arch, 2545)
    with torch.device("meta"):
        oracle = upstream_dit(arch, 2545)
    oracle.load_state_dict(model.state_dict(), assign=True)
    oracle.text_embed.freqs_cis = upstream.f5_modules().precompute_freqs_cis(arch.text_dim, 8192)
    frames = 211
    cond, ids, noise = torch.randn(40, 100), torch.randint(0, 2545, (30,)), torch.randn(frames, 100)
    padded = torch.cat((cond, torch.zeros(frames - 40, 100)))
    with torch.inference_mode():
        time = torch.tensor(0.3)
        wanted = oracle(x=noise[None], cond=padded[None], text=ids[None], time=time, cfg_infer=True)
        found = model(noise, padded, model.text_embed(ids, frames), time)
    assert relative(found, wanted) <= 5e-6
