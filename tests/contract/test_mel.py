"""The log-mel in numpy against upstream's in torch, directly and by golden file."""

import math

import numpy as np
import pytest

from appliance.contract.mel import FLOOR, MelSpec, filterbank, log_mel
from tests.harness.rows import rows
from tests.oracle import upstream
from tests.oracle.golden import generate

pytestmark = pytest.mark.once

KINDS = ("vocos", "bigvgan")
LARGEST_ERROR = 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wave", ["voiced", "noise", "click"])
def test_equals_golden(golden_mels, kind, wave):
    samples = golden_mels[f"{wave}.wave"].astype(np.float32) / 32768
    got, want = log_mel(samples, MelSpec(kind)), golden_mels[f"{wave}.{kind}"]
    assert got.shape == want.shape
    assert got.dtype == np.float32
    assert np.abs(got - want).max() <= LARGEST_ERROR


@pytest.mark.torch
def test_golden_file_is_what_upstream_makes(golden_mels):
    made = generate.make_mels()
    assert made.keys() == golden_mels.keys()
    for name, values in made.items():
        # The last digits may differ: torch's transform differs between processors.
        assert np.abs(values.astype(np.float64) - golden_mels[name]).max() <= LARGEST_ERROR, name


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [600, 1023, 1024, 1025, 24_000, 100_003])
@pytest.mark.parametrize("level", [0.3, 1e-3])
def test_equals_upstream(kind, samples, level):
    import torch

    wave = (np.random.default_rng(samples).standard_normal(samples) * level).astype(np.float32)
    make = upstream.vocos_mel if kind == "vocos" else upstream.bigvgan_mel
    want = make(torch.from_numpy(wave)[None])[0].T.numpy()
    spec = MelSpec(kind)
    got = log_mel(wave, spec)
    assert got.shape == want.shape == (spec.frames(samples), spec.mels)
    assert np.abs(got - want).max() <= LARGEST_ERROR


@pytest.mark.parametrize("samples", [600, 1023, 1024, 1279, 1280, 24_000])
def test_frame_counts_are_upstreams_formulas(samples):
    assert MelSpec("vocos").frames(samples) == samples // 256 + 1
    assert MelSpec("bigvgan").frames(samples) == samples // 256
    for kind in KINDS:
        found = log_mel(np.zeros(samples, np.float32), MelSpec(kind))
        assert len(found) == MelSpec(kind).frames(samples)
        assert kind != "vocos" or np.all(found == np.float32(math.log(FLOOR)))  # digital silence


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rate_hz", "mels", "hop", "n_fft", "win"), [(16_000, 80, 256, 1024, 1024), (22_050, 64, 200, 1000, 800)]
)
@pytest.mark.parametrize("samples", [1024, 1279, 1280, 16_000, 50_001])
def test_hifigans_mels_equal_their_definition(rate_hz, mels, hop, n_fft, win, samples):
    """Raon-OpenTTS computes so: no padding, power 1, Slaney's filters to 8 kHz, ln of at least 1e-5."""
    import torch
    from librosa.filters import mel

    wave = (np.random.default_rng(samples).standard_normal(samples) * 0.1).astype(np.float32)
    window = torch.hann_window(win)
    spectrum = torch.stft(torch.from_numpy(wave), n_fft, hop, win, window, center=False, return_complex=True)
    filters = torch.from_numpy(mel(sr=rate_hz, n_fft=n_fft, n_mels=mels, fmin=0.0, fmax=8000.0))
    want = (filters @ spectrum.abs()).clamp(min=1e-5).log().T.numpy()
    spec = MelSpec("hifigan", rate_hz, mels, hop, n_fft, win)
    got = log_mel(wave, spec)
    assert got.shape == want.shape == (spec.frames(samples), mels)
    assert np.abs(got - want).max() <= LARGEST_ERROR


def test_frames_do_not_depend_on_what_follows():
    wave = np.random.default_rng(0).standard_normal(30_000).astype(np.float32)
    short, long = (log_mel(wave[:n], MelSpec("vocos")) for n in (20_000, 30_000))
    whole = (20_000 - 512) // 256
    assert np.array_equal(short[:whole], long[:whole])


@pytest.mark.parametrize("kind", KINDS)
def test_every_filter_hears_something(kind):
    bank = filterbank(MelSpec(kind))
    assert bank.shape == (513, 100)
    assert (bank >= 0).all()
    assert (bank.max(axis=0) > 0).all()


def test_fingerprint_tells_specs_apart():
    specs = [MelSpec("vocos"), MelSpec("bigvgan"), MelSpec("vocos", mels=80), MelSpec("vocos", hop=128)]
    assert len({spec.fingerprint for spec in specs}) == len(specs)
    assert MelSpec("vocos").frames_per_second == 93.75


def test_zipvoices_mels_are_vocoss_with_another_floor_scale_and_count():
    spec = MelSpec("vocos", scale=10.0, floor=1e-7, rounded=True)
    samples = np.random.default_rng(2).standard_normal(9000).astype(np.float32)
    plain = log_mel(samples, MelSpec("vocos"))
    for length, frames in ((9000, 35), (8960, 35), (8831, 34), (8832, 35), (8833, 35)):
        found = log_mel(samples[:length], spec)
        assert len(found) == spec.frames(length) == spec.reply_begins(length) == frames
    assert np.allclose(log_mel(samples, spec), plain[:35] / 10, atol=1e-6)
    silent = log_mel(np.zeros(4000, np.float32), spec)
    assert np.allclose(silent, math.log(1e-7) / 10)
    assert MelSpec("vocos").reply_begins(9215) == 35 and MelSpec("vocos").frames(9215) == 36
    others = [MelSpec("vocos", floor=1e-7), MelSpec("vocos", rounded=True), MelSpec("vocos"), spec]
    assert len({one.fingerprint for one in others}) == 4


@pytest.mark.parametrize(("fields", "wave", "message"), rows(__file__, "wrong_mels.jsonl"))
def test_unusable_specs_and_waves_are_refused(fields, wave, message):
    with pytest.raises(ValueError, match=message):
        log_mel(np.zeros(wave, np.float32), MelSpec(**fields))
