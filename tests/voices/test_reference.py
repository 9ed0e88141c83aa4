"""References against upstream's `preprocess_ref_audio_text` and `infer_batch_process`."""

import io

import numpy as np
import pytest
import soundfile

from appliance.contract.mel import MelSpec, log_mel
from appliance.engine.cases import FEMALE, MALE
from appliance.errors import Cancelled, InvalidReference
from appliance.voices.decode import decode
from appliance.voices.recording import Recording
from appliance.voices.reference import prepare, resample, trim
from appliance.voices.rules import F5, ZIPVOICE, ConditioningRule, complete_transcript
from tests.harness.rows import rows
from tests.harness.sounds import RATE_HZ, burst, silence, to_file
from tests.oracle import upstream

pytestmark = pytest.mark.once

SPEC = MelSpec("vocos")


def speech(rate_hz: int = RATE_HZ, channels: int = 1, rms: float = 0.1) -> np.ndarray:
    """Bursts between pauses, with a faint noise throughout; some pauses exceed the kept length."""
    stretches = [
        silence(0.7, rate_hz, channels),
        burst(1.3, rms, rate_hz, channels, 1),
        silence(0.4, rate_hz, channels),
        burst(0.8003, rms / 3, rate_hz, channels, 2),
        silence(3.1, rate_hz, channels),
        burst(1.9, rms, rate_hz, channels, 3),
        silence(1.2345, rate_hz, channels),
    ]
    whole = np.concatenate(stretches)
    return np.clip(whole + burst(len(whole) / rate_hz, 1e-4, rate_hz, channels, 4)[: len(whole)], -1, 1)


@pytest.mark.torch
@pytest.mark.parametrize("rate_hz", [11_025, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_U8"])
def test_trims_as_upstream_to_the_sample(tmp_path, rate_hz, channels, subtype):
    audio = to_file(speech(rate_hz, channels), rate_hz, subtype=subtype)
    (tmp_path / "voice.wav").write_bytes(audio)
    want, rate, text = upstream.preprocess_reference(tmp_path / "voice.wav", "Hello there")
    ours = trim(decode(audio))
    assert (ours.rate_hz, complete_transcript("Hello there")) == (rate, text)
    assert np.array_equal(ours.samples.T / np.float32(ours.full_scale), want)


@pytest.mark.torch
@pytest.mark.parametrize("leading_s", [0.0, 0.5])
def test_long_recordings_are_cut_at_short_pauses_as_upstream_unless_that_clips(tmp_path, leading_s):
    """A recording over 12 s with its pauses gets a second, stricter pass."""
    parts = [burst(5.0, seed=1), burst(2.5, 0.006, seed=2), burst(5.0, seed=3)]
    audio = to_file(np.concatenate([burst(leading_s, 0.002, seed=4), *parts]))
    (tmp_path / "voice.wav").write_bytes(audio)
    theirs, _, _ = upstream.preprocess_reference(tmp_path / "voice.wav", "Hello there.")
    ours = trim(decode(audio)).samples.T / np.float32(32768)
    if leading_s == 0.0:
        assert np.array_equal(ours, theirs)
    else:
        assert theirs.shape[1] < 6 * RATE_HZ, "upstream drops the second half"
        assert ours.shape[1] > 12 * RATE_HZ


@pytest.mark.torch
@pytest.mark.parametrize("rms", [0.02, 0.2])
@pytest.mark.parametrize(("rate_hz", "channels"), [(24_000, 1), (24_000, 2), (44_100, 1), (16_000, 2)])
def test_levels_and_mel_as_upstream(tmp_path, rms, rate_hz, channels):
    import torch

    audio = to_file(speech(rate_hz, channels, rms), rate_hz)
    (tmp_path / "voice.wav").write_bytes(audio)
    trimmed, rate, text = upstream.preprocess_reference(tmp_path / "voice.wav", "Hello there.")
    mono = torch.from_numpy(trimmed).mean(0, keepdim=True)
    measured = torch.sqrt(torch.mean(torch.square(mono)))
    levelled = upstream.resample(mono * 0.1 / measured if measured < 0.1 else mono, rate, RATE_HZ)
    ours = prepare(audio, SPEC, 0.1)
    assert complete_transcript("Hello there.") == text
    assert ours.rms == pytest.approx(float(measured), rel=1e-6)
    assert len(ours.samples) == levelled.shape[-1]
    assert ours.samples.dtype == ours.log_mel.dtype == np.float32
    if rate == RATE_HZ:
        assert np.abs(ours.samples - levelled[0].numpy()).max() <= 1e-6
        assert np.abs(ours.log_mel - upstream.vocos_mel(levelled)[0].T.numpy()).max() <= 1e-4
    assert np.array_equal(ours.log_mel, log_mel(ours.samples, SPEC))


def of_zipvoice(pydub, wave: np.ndarray) -> tuple[np.ndarray, float]:
    """(frames, channels) at 24 kHz, conditioned as ZipVoice does, by pydub: levelled mean, and RMS before."""
    samples = (wave * np.float32(32768)).clip(-32768, 32767).astype(np.int16)
    whole = pydub.AudioSegment(
        data=samples.tobytes(), sample_width=2, frame_rate=RATE_HZ, channels=samples.shape[1]
    )
    pauses = {"min_silence_len": 1000, "silence_thresh": -50, "keep_silence": 1000, "seek_step": 10}
    whole = sum(pydub.silence.split_on_silence(whole, **pauses), pydub.AudioSegment.silent(0))
    for _ in range(2):  # the beginning, then the end
        quiet_ms = pydub.silence.detect_leading_silence(whole, silence_threshold=-50)
        whole = whole[max(quiet_ms - 100, 0) :].reverse()
    whole += pydub.AudioSegment.silent(200)
    made = np.array(whole.get_array_of_samples()).reshape(-1, whole.channels).astype(np.float32) / 32768
    rms = float(np.sqrt(np.mean(made.astype(np.float64) ** 2)))
    return (made * max(0.1 / rms, 1.0)).mean(axis=1), rms


@pytest.mark.parametrize("rms", [0.02, 0.2])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_U8", "PCM_24"])
@pytest.mark.parametrize(("rate_hz", "channels"), [(24_000, 1), (24_000, 2), (44_100, 1), (16_000, 2)])
def test_zipvoices_references_are_conditioned_as_its_makers_do(pydub, rms, subtype, rate_hz, channels):
    """The channels differ in level; the level of the result counts both."""
    given = speech(rate_hz, channels, rms) * np.linspace(1.0, 0.4, channels)
    audio = to_file(given, rate_hz, subtype=subtype)
    read, _ = soundfile.read(io.BytesIO(audio), dtype="float32", always_2d=True)
    at_24_khz = np.stack([resample(channel, rate_hz, RATE_HZ) for channel in read.T], axis=1)
    expected, level = of_zipvoice(pydub, at_24_khz)
    spec = MelSpec("vocos", scale=10.0, floor=1e-7, rounded=True)
    ours = prepare(audio, spec, 0.1, rule=ZIPVOICE)
    assert ours.rms == pytest.approx(level, rel=1e-6)
    assert ours.samples.shape == expected.shape and np.abs(ours.samples - expected).max() <= 1e-6
    assert not ours.samples[-4_800 + 10 :].any() and ours.samples[-4_900:-4_800].any()
    assert len(ours.log_mel) == round(len(expected) / 256)
    assert len(ours.samples) > len(prepare(audio, spec, 0.1).samples)


def test_zipvoice_adds_a_full_stop_and_advises_short_recordings():
    assert [ZIPVOICE.complete(text) for text in ("Hello! ", "你好。", " Hello", "No;")] == [
        *("Hello!", "你好。", "Hello.", "No;")
    ]

    def found(seconds: float, rule: ConditioningRule) -> str:
        return " ".join(prepare(to_file(burst(seconds)), SPEC, 0.1, rule=rule).warnings)

    assert "of speech" not in found(2.0, ZIPVOICE) and "only 2.0 s of speech" in found(2.0, F5)
    assert "10.6 s of speech: over 10 s replies take longer" in found(10.4, ZIPVOICE)
    assert "of speech" not in found(7.9, F5) and "over 8 s replies take longer" in found(8.1, F5)
    with pytest.raises(InvalidReference, match="louder than -50 dBFS"):
        prepare(to_file(burst(3.0, 1e-3)), SPEC, 0.1, rule=ZIPVOICE)


def test_the_same_file_gives_the_same_bytes():
    audio = to_file(speech(44_100, 2), 44_100)
    first, second = (prepare(audio, SPEC, 0.1) for _ in range(2))
    assert first.samples.tobytes() == second.samples.tobytes()
    assert first.log_mel.tobytes() == second.log_mel.tobytes()


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_resampling_keeps_a_tone_and_counts_as_torchaudio(rate_hz):
    seconds = np.arange(rate_hz + 7) / rate_hz
    tone = np.sin(2 * np.pi * 440 * seconds).astype(np.float32)
    got = resample(tone, rate_hz, RATE_HZ)
    assert len(got) == -(-len(tone) * RATE_HZ // rate_hz)
    want = np.sin(2 * np.pi * 440 * np.arange(len(got)) / RATE_HZ)
    assert np.abs(got - want)[500:-500].max() < 1e-5
    assert resample(tone, rate_hz, rate_hz) is tone


@pytest.mark.parametrize(("given", "want"), rows(__file__, "endings.jsonl"))
def test_transcripts_are_completed(given, want):
    assert complete_transcript(given) == want


@pytest.mark.parametrize("wave", [
    silence(3.0),
    silence(0.3),
    burst(3.0, 1e-4),
    burst(3.0, 10 ** (-43 / 20)),
    np.concatenate([silence(2.0), burst(0.05), silence(2.0)]),
])  # fmt: skip
def test_silence_is_refused(wave):
    with pytest.raises(InvalidReference, match="audio: is silent"):
        prepare(to_file(wave), SPEC, 0.1)


@pytest.mark.parametrize("residue", [0, 1, 9])
def test_channels_that_cancel_each_other_are_refused(residue):
    """The second channel is the first with its sign changed, plus up to 9 of 32,768."""
    left = np.rint(burst(2.0) * 30000) / 32768
    right = -left + residue * np.sign(burst(2.0, seed=1)) / 32768
    with pytest.raises(InvalidReference, match=r"cancel each other .*RMS 0\.000"):
        prepare(to_file(np.concatenate([left, right], axis=1)), SPEC, 0.1)


def test_over_twelve_seconds_of_speech_are_refused_not_clipped():
    trim(decode(to_file(burst(12.0))))
    with pytest.raises(InvalidReference, match=r"lasts 12\.3 s without its silences, at most 12 s"):
        trim(decode(to_file(burst(12.3))))


def square(seconds: float, amplitude: int) -> np.ndarray:
    """(frames, 1) of a wave whose RMS is its amplitude over 32,768."""
    return np.resize([amplitude / 32768, -amplitude / 32768], (round(seconds * RATE_HZ), 1))


@pytest.mark.parametrize(("amplitude", "kept_s"), [(260, 3.0), (261, 3.5)])
def test_edges_are_cut_below_minus_42_dbfs(amplitude, kept_s):
    wave = np.concatenate([square(0.2, amplitude), square(3.0, 5_000), square(0.3, amplitude)])
    assert trim(decode(to_file(wave))).duration_ms == pytest.approx(1000 * kept_s + 50, abs=1)


@pytest.mark.parametrize(("amplitude", "kept_s"), [(103, 8.0), (104, 11.0)])
def test_long_pauses_are_cut_at_minus_50_dbfs(amplitude, kept_s):
    wave = np.concatenate([square(3.0, 5_000), square(5.0, amplitude), square(3.0, 5_000)])
    assert trim(decode(to_file(wave))).duration_ms == pytest.approx(1000 * kept_s + 50, abs=1)


def test_long_recordings_are_cut_at_minus_40_dbfs():
    loud = square(4.5, 5_000)
    cut = trim(decode(to_file(np.concatenate([loud, square(4.0, 327), loud]))))
    assert cut.duration_ms == pytest.approx(11_050, abs=1)
    with pytest.raises(InvalidReference, match=r"lasts 13\.0 s"):
        trim(decode(to_file(np.concatenate([loud, square(4.0, 328), loud]))))


@pytest.mark.parametrize("name", [FEMALE, MALE])
def test_noise_and_music_behind_a_voice_get_a_warning(root, name):
    recording, rate_hz = soundfile.read(root / f"appliance/demo/voices/{name}.wav")
    seconds = np.arange(len(recording)) / rate_hz
    chords = [(220, 277, 330), (196, 247, 294), (262, 330, 392), (174, 220, 262)]
    music = sum(
        np.where(seconds // 0.5 % 4 == place, np.sin(2 * np.pi * tone * overtone * seconds) / overtone, 0.0)
        for place, chord in enumerate(chords)
        for tone in chord
        for overtone in range(1, 6)
    )
    noise = np.random.default_rng(1).standard_normal(len(recording))

    def warned(behind: np.ndarray, below_db: float) -> str:
        level = np.std(recording) / np.std(behind) * 10 ** (-below_db / 20)
        return " ".join(prepare(to_file((recording + level * behind)[:, None], rate_hz), SPEC, 0.1).warnings)

    for behind in (noise, music):
        quiet = warned(behind, 60.0)
        assert "noisy" not in quiet and "music" not in quiet
    assert "noisy: only 1" in warned(noise, 10.0) and "music" not in warned(noise, 10.0)
    assert "music or a hum" in warned(music, 10.0)


def test_warnings_name_the_defect():
    def found(wave: np.ndarray) -> str:
        return " ".join(prepare(to_file(wave), SPEC, 0.1).warnings)

    assert found(burst(5.0)).startswith("noisy: ")  # it is noise
    assert "only 2.0 s of speech" in found(burst(2.0))
    assert "very quiet" in found(burst(5.0, 0.009))
    assert "clipped" in found(np.clip(burst(5.0, 0.5), -1, 1))


def test_a_preparation_can_be_stopped_between_its_stages():
    def stop_at(count: int) -> None:
        calls = 0

        def checkpoint() -> None:
            nonlocal calls
            calls += 1
            if calls == count:
                raise Cancelled

        with pytest.raises(Cancelled):
            prepare(to_file(speech()), SPEC, 0.1, checkpoint)

    for stage in (1, 2, 3):
        stop_at(stage)


def test_mono_is_the_mean_of_the_channels():
    recording = Recording(np.array([[100, 300], [-32768, 0]], np.int16), 24_000)
    assert recording.mono().tolist() == [200 / 32768, -0.5]
