"""Transcripts before their recordings, through the store that every way to add a voice calls.

Recordings are the demo's, and sounds of as many syllables as a speaker of the language counts, at its pace.
"""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from appliance.voices.records import Place
from tests.harness.daemons import store_in
from tests.harness.sounds import RATE_HZ, to_file

RIGHT = "We are live every Monday at seven, so say hello."
OTHER = "Please bring those heavy boxes down to the shop, and then call my brother about the party."
FEW, MANY = "the transcript probably lacks words", "the transcript probably has words too many"
UNMARKED = "the transcript has no punctuation"
READ = {
    "en": ("Hello everyone, welcome back to the stream.", 11, 2.4),
    "de": ("Hallo zusammen, schön, dass ihr wieder da seid.", 12, 2.5),
    "es": ("Hola a todos, qué alegría veros por aquí.", 16, 2.4),
    "fr": ("Bonjour à tous, quel plaisir de vous revoir.", 12, 2.1),
    "fi": ("Hei kaikki, tervetuloa takaisin lähetykseen.", 15, 2.5),
    "vi": ("Chào mọi người, chào mừng các bạn trở lại.", 10, 2.0),
    "ru": ("Всем привет, рад снова вас видеть сегодня.", 12, 2.3),
    "el": ("Γεια σε όλους, καλώς ήρθατε πίσω.", 11, 2.0),
    "ka": ("გამარჯობა ყველას, კეთილი იყოს თქვენი დაბრუნება.", 18, 3.1),
    "zh": ("大家好，欢迎回到直播间。", 10, 2.2),
    "ja": ("みなさん、こんばんは。今日の配信では、いくつかゲームをします。", 22, 3.7),
    "kana": ("おはようございます、きょうもよろしくおねがいします。", 22, 3.1),
    "ko": ("여러분 안녕하세요, 다시 만나서 반갑습니다.", 18, 3.0),
    "hi": ("सबको नमस्ते, फिर से मिलकर अच्छा लगा।", 13, 2.2),
    "th": ("สวัสดีทุกคน ยินดีต้อนรับกลับมา", 11, 2.4),
    "ar": ("مرحبا بالجميع، يسعدني أن أراكم من جديد.", 17, 3.1),
    "he": ("שלום לכולם, ברוכים השבים אל השידור.", 14, 2.7),
    "numbers": ("In 2026 we had 350,000 followers.", 18, 4.0),
    "a link": ("Visit twitch.tv/anna for more.", 11, 2.6),
    "a private character": ("Hello everyone,\U00100000 welcome back to the stream.", 11, 2.4),
    "slow": ("Hello everyone, welcome back to the stream.", 11, 3.8),
    "fast": ("Hello everyone, welcome back to the stream.", 11, 1.8),
}
"""Transcript, its syllables by hand, seconds."""


def read(syllables: int, seconds: float) -> bytes:
    """Vowels with a consonant's dip between them."""
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    vowel = sum(np.sin(2 * np.pi * 150 * overtone * time_s) / overtone for overtone in range(1, 12))
    return to_file((0.1 * vowel * np.sin(np.pi * syllables * time_s / seconds) ** 2)[:, None])


def told(folder: Path, audio: bytes, transcript: str) -> list[str]:
    """Beginnings of what is said of the transcript."""
    found = store_in(folder).create(Place("ann"), audio, transcript, validate_only=True).warnings
    return [start for start in (FEW, MANY, UNMARKED) for warning in found if warning.startswith(start)]


@pytest.mark.parametrize("voice", ["heart", "michael"])
def test_the_demos_voices(tmp_path: Path, root: Path, voice: str) -> None:
    audio = (root / f"appliance/demo/voices/{voice}.wav").read_bytes()
    for transcript, expected in {
        RIGHT: [],
        "We are live every Monday at seven.": [],
        RIGHT.lower().replace(",", "").replace(".", ""): [UNMARKED],
        "We are live.": [FEW],
        "We are live every Monday,": [FEW],
        "at seven, so say hello.": [FEW],
        OTHER: [MANY],
        f"{RIGHT} {RIGHT}": [MANY],
        "2026": [FEW, UNMARKED],
        "https://www.twitch.tv/videos/123456789?t=1h2m3s,": [MANY],
    }.items():
        assert told(tmp_path, audio, transcript) == expected, transcript
    wave, rate_hz = soundfile.read(io.BytesIO(audio), always_2d=True)
    assert told(tmp_path, to_file(wave[: len(wave) // 2], rate_hz), RIGHT) == [MANY]


@pytest.mark.parametrize("language", READ)
def test_a_transcript_has_the_syllables_that_are_heard(tmp_path: Path, language: str) -> None:
    transcript, syllables, seconds = READ[language]
    assert told(tmp_path, read(syllables, seconds), transcript) == []
    assert told(tmp_path, read(3 * syllables, 3 * seconds), transcript) == [FEW]
    assert told(tmp_path, read(syllables, seconds), f"{transcript} {transcript}") == [MANY]


@pytest.mark.parametrize(("transcript", "marked"), [
    ("Hello everyone, welcome back to the stream", True),
    ("it's a well-known 3.5 of twitch.tv for you all", False),
    ("大家好欢迎回到直播间看我玩", False),
    ("大家好欢迎回到直播间看我玩。", True),
    ("सबको नमस्ते फिर से मिलकर अच्छा लगा", False),
    ("सबको नमस्ते फिर से मिलकर अच्छा लगा।", True),
    ("مرحبا بالجميع، يسعدني أن أراكم", True),
    ("สวัสดีทุกคน ยินดีต้อนรับกลับมา", True),  # Thai has spaces instead
])  # fmt: skip
def test_speech_without_punctuation(tmp_path: Path, transcript: str, marked: bool) -> None:
    assert (UNMARKED in told(tmp_path, read(12, 2.8), transcript)) == (not marked)
    assert UNMARKED not in told(tmp_path, read(12, 2.3), transcript)
