"""Plans against the plans of upstream's `infer_process` in the golden file, and against our own rules."""

import gc
import json
import math
import re
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.audio.join import Joiner, overlap_samples
from appliance.contract import bundle
from appliance.contract.bundle import Text
from appliance.contract.mel import MelSpec
from appliance.contract.tokens import Vocabulary
from appliance.errors import InvalidRequest
from appliance.request import Direction, Features, Pause, Reference, Request, Segment, Segmentation, Switch
from appliance.speech.budget import LONGEST_PIECE_S, SHORT_TEXT_BYTES
from appliance.speech.plan import Planner
from appliance.speech.work import LOOKUP
from appliance.text.pieces.pace import exchange
from appliance.text.tokens.chinese import to_tokens
from tests.harness.daemons import BUNDLE
from tests.harness.segments import done
from tests.oracle.golden import generate

VOCOS = MelSpec("vocos")
SENTENCES = (
    "Welcome back, everyone. Today we play something new! It has cats, dogs; even a whale? "
    "欢迎大家，今天我们玩一个新游戏。It costs 1,234.50 dollars at https://example.com/a,b, they say. "
)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(generate.GOLDEN_LINES.read_text("utf-8"))


def make_reference(
    transcript: str = "Some call me nature. ", samples: int = 100_000, rms: float = 0.1, spec: MelSpec = VOCOS
) -> Reference:
    mel = np.zeros((spec.frames(samples), spec.mels), np.float32)
    return Reference(transcript, Features(np.zeros(samples, np.float32), mel, rms))


def make_request(text: str, **fields: Any) -> Request:
    defaults = {"voice": "voice", "nfe": 4, "seed": 1, "guidance": 2.0, "segmentation": Segmentation.UPSTREAM}
    return Request(text=text, **{**defaults, **fields})


MANIFEST = bundle.read(BUNDLE, verify=False).manifest


def make_planner(reference: Reference | None = None, **fields: Any) -> Planner:
    prepared = reference or make_reference()
    durations = fields.pop("durations", {})
    text = {"duration": fields.pop("duration", "script"), "around": fields.pop("around", ("", ""))}
    manifest = replace(
        MANIFEST,
        arch=replace(MANIFEST.arch, text_embedding_average_upsampling=bool(durations)),
        mel=fields.pop("spec", VOCOS),
        max_frames=fields.pop("max_frames", 8192),
        text=Text(durations=durations, **text),
    )
    settings = {"vocabulary": Vocabulary((" ", *"abcdefghij")), "to_tokens": list, **fields}
    return Planner(manifest, reference=lambda voice, style: prepared, **settings)


def test_the_vocabularys_tokenizer_makes_the_ids() -> None:
    texts = []

    def pinyin(text: str) -> list[str]:
        texts.append(text)
        return ["b", "a"]

    vocabulary = Vocabulary((" ", *"abc"))
    (segment,) = make_planner(vocabulary=vocabulary, to_tokens=pinyin).plan(make_request("ab c"))
    assert segment.ids.tolist() == [2, 1]
    characters = make_planner(vocabulary=replace(vocabulary, tokenizer="char"), to_tokens=pinyin)
    (segment,) = characters.plan(make_request("ab c"))
    assert segment.ids.tolist() == vocabulary.ids(list(texts[0])).tolist()
    assert texts[0].endswith("ab c") and len(texts) == 1


def test_signs_around_a_text_stand_around_the_transcript_too_and_count_for_no_length() -> None:
    """habibi-tts 0.1.1 orders ①〈, transcript, text, 〉; durations count the bytes of transcript and text."""
    vocabulary = Vocabulary((" ", *"abcdefghij", *"①〈〉"), "char")
    plain, framed = (
        make_planner(vocabulary=vocabulary, around=around).plan(make_request("abc. " * 60))
        for around in (("", ""), ("①〈", "〉"))
    )
    assert len(framed) > 1
    for without, within in zip(plain, framed, strict=True):
        assert [*vocabulary.ids("①〈"), *without.ids, *vocabulary.ids("〉")] == within.ids.tolist()
        assert (without.text, without.frames) == (within.text, within.frames)


@pytest.mark.parametrize("segmentation", Segmentation)
def test_a_text_is_cut_at_its_pauses(segmentation: Segmentation) -> None:
    first, second = "abcdef ghij. " * 20, "jihgfedcba abcdef"
    text = f"{first.strip()} {second}"
    pauses = (Pause(len(first) - 1, 0.5), Pause(len(text), 1.5))
    silent = make_plan(first.strip(), segmentation=segmentation), make_plan(second, segmentation=segmentation)
    parts = make_plan(text, segmentation=segmentation, pauses=pauses)
    assert [s.text for s in parts] == [s.text for part in silent for s in part]
    ends = [len(silent[0]) - 1, len(parts) - 1]
    assert [s.pause_s for s in parts] == [{ends[0]: 0.5, ends[1]: 1.5}.get(n, 0.0) for n in range(len(parts))]
    # Nothing is cross-faded over a pause.
    total_s = sum(s.audio_s for part in silent for s in part)
    assert sum(s.audio_s for s in parts) == pytest.approx(total_s + 2.0)
    assert [s.frames for s in parts] == [s.frames for part in silent for s in part]
    cut = done(make_planner().ways([make_request(text, pauses=pauses, max_spoken_s=1.0)]))[0][0]
    assert len(cut.text) < len(first) and cut.pauses == ()
    directions = (Direction(0, "waves"), Direction(len(text) - 1, "sighs"))
    cut = done(make_planner().ways([make_request(text, directions=directions, max_spoken_s=1.0)]))[0][0]
    assert cut.directions == directions[:1]


@pytest.mark.parametrize("segmentation", Segmentation)
def test_each_run_is_planned_as_in_a_voice_of_its_style(segmentation: Segmentation) -> None:
    own = make_reference()
    styles = {"": own, "happy": make_reference("Oh, how glad I am today! ", 60_000, rms=0.02)}
    planner = replace(make_planner(), reference=lambda voice, style: styles[style])
    first, second, third = "abcdef ghij. " * 30, "jihgfedcba abcdef. " * 20, "cdef ghij abcdefg. " * 3
    text = f"{first}{second}{third}".strip()
    cuts = len(first) - 1, len(first + second) - 1
    switches = Switch(cuts[0], "happy"), Switch(cuts[1], "")
    request = make_request(text, switches=switches, segmentation=segmentation)
    segments = planner.plan(request)
    parts = [
        make_plan(part.strip(), reference, segmentation=segmentation)
        for part, reference in ((first, own), (second, styles["happy"]), (third, own))
    ]
    alone = [segment for part in parts for segment in part]
    assert len(segments) == len(alone) > 3 and [s.index for s in segments] == list(range(len(segments)))
    for one, other in zip(segments, alone, strict=True):
        assert (one.text, one.frames, one.gain) == (other.text, other.frames, other.gain)
        assert (one.ids == other.ids).all() and one.reference_frames == other.reference_frames
        assert one.reference_log_mel.shape == other.reference_log_mel.shape
    # Runs of different styles are cross-faded like the pieces of a run.
    fades_s = 2 * MANIFEST.defaults.cross_fade_s
    assert sum(s.audio_s for s in segments) == pytest.approx(sum(s.audio_s for s in alone) - fades_s)

    # A switch to the present style changes nothing.
    plain = planner.plan(make_request(text, segmentation=segmentation))
    same = planner.plan(make_request(text, switches=(Switch(5, ""),), segmentation=segmentation))
    assert [s.text for s in same] == [s.text for s in plain]
    all_happy = planner.plan(make_request(text, style="happy", segmentation=segmentation))
    alone = make_plan(text, styles["happy"], segmentation=segmentation)
    assert [(s.text, s.frames, s.gain) for s in all_happy] == [(s.text, s.frames, s.gain) for s in alone]

    pauses = Pause(3, 0.25), Pause(cuts[0], 0.5), Pause(len(text), 1.0)
    paused = planner.plan(replace(request, pauses=pauses))
    assert [s.pause_s for s in paused if s.pause_s] == [0.25, 0.5, 1.0]
    assert "".join(s.text for s in paused).replace(" ", "") == text.replace(" ", "")


def test_a_text_of_styles_is_cut_by_the_pace_of_each() -> None:
    styles = {"": make_reference(), "fast": make_reference("Some call me nature. " * 4)}
    planner = replace(make_planner(), reference=lambda voice, style: styles[style])
    text = "abcdef ghij. " * 90
    for switches, least in (((), 0), ((Switch(0, "fast"),), 0), ((Switch(52, "fast"), Switch(104, "")), 52)):
        request = make_request(text, switches=switches, max_spoken_s=13.0)
        [(cut, segments)] = done(planner.ways([request]))
        assert text.startswith(cut.text) and least < len(cut.text) < len(text)
        # The difference is at most a clause, which is cut off, and the rounding to frames.
        assert 11.0 < sum(s.audio_s for s in segments) < 14.5
        assert all(switch.after < len(cut.text) for switch in cut.switches)


@pytest.mark.parametrize("speed", [1.0, 1.3, 0.7])
@pytest.mark.parametrize(("samples", "frames"), [(100_000, 391), (25_600, 100), (25_727, 100), (25_728, 101)])
def test_durations_by_tokens_are_zipvoices(speed: float, samples: int, frames: int) -> None:
    """⌈R / tokens · tokens / speed⌉ frames besides the R of the reference, which is rounded; no space before
    the text."""
    spec = MelSpec("vocos", scale=10.0, floor=1e-7, rounded=True)
    reference = make_reference("Ab cé. ", samples, spec=spec)
    vocabulary = Vocabulary((" ", *"Abcdefg."), "letters")
    planner = make_planner(reference, spec=spec, duration="tokens", vocabulary=vocabulary)
    for text, tokens in (("bc d", 5), ("bc d?", 4), ("b.", 2), ("bé c d e f g b c d e f.", 22)):
        (segment,) = planner.plan(make_request(text, speaking_rate=speed))
        ended = text if text[-1] in ".?" else f"{text}."
        characters = [character for character in f"Ab cé.{ended}" if character in vocabulary.tokens]
        assert segment.ids.tolist() == [vocabulary.tokens.index(character) for character in characters]
        assert len(characters) == 5 + tokens
        assert segment.reference_frames == len(segment.reference_log_mel) == frames
        expected = np.ceil(np.float32(frames) / np.float32(5) * np.float32(tokens) / np.float32(speed))
        assert segment.frames == frames + int(expected)


def test_tokens_that_set_a_length_come_from_each_text_alone() -> None:
    """ZipVoice's transcript and text are separate sentences. A text without tokens would have no length."""
    texts: list[str] = []

    def make(text: str) -> list[str]:
        texts.append(text)
        return [] if text.startswith("e") else ["b"]

    vocabulary = Vocabulary((" ", "b"), "emilia")
    planner = make_planner(duration="tokens", vocabulary=vocabulary, to_tokens=make)
    sizes = (max(one.ways([make_request("a d")])) for one in (planner, make_planner()))
    assert next(sizes) >= LOOKUP > next(sizes)
    (segment,) = planner.plan(make_request("a d"))
    assert segment.ids.tolist() == [1, 1] and "a d." in texts
    # A text whose tokens just fit is not cut.
    dense: dict[str, Any] = {"duration": "tokens", "vocabulary": vocabulary, "to_tokens": list}
    reference = make_reference("e" * 60 + "b. ", 20_000)
    (whole,) = make_plan("bb bb bb bb", reference, **dense)
    assert len(make_plan("bb bb bb bb", reference, max_frames=whole.frames, **dense)) == 1
    with pytest.raises(InvalidRequest, match=r"'e f\.' has nothing that the bundle can say"):
        planner.plan(make_request("e f"))


PLACED: dict[str, Any] = {
    "duration": "tokens",
    "durations": {"a": (10, 20, 1), "b": (1, 2, 1), " ": (2, 3, 1), ".": (1, 30, 12), "!": (1, 30, 12)},
    "vocabulary": Vocabulary((" ", "a", "b", ".", "!"), "phones"),
    "to_tokens": list,
}


@pytest.mark.parametrize("speed", [1.0, 0.5, 16.0])
def test_tokens_are_placed_by_the_table_within_reference_and_reply(speed: float) -> None:
    """The numbers are worked out by hand. The last four tokens before a mark have the second number, the mark
    that ends a text has the third, and the space after the transcript belongs to the reference."""
    reference = make_reference("aaaaaab!. ", 100_000)
    before = [10, 10, 10, 20, 20, 20, 2, 12, 2]
    texts = {
        "ab": ("ab.", [20, 2, 12]),  # a short text is not slower
        "aab.b.": ("aab.b.", [20, 20, 2, 30, 2, 12]),
        "c bbbbbb": (" bbbbbb.", [2, 1, 1, 2, 2, 2, 2, 12]),  # the vocabulary lacks c
    }
    for text, (spoken, after) in texts.items():
        (segment,) = make_plan(text, reference, speaking_rate=speed, **PLACED)
        assert segment.ids.tolist() == [" ab.!".index(token) for token in f"aaaaaab! {spoken}"]
        reply = math.ceil(390 / sum(before) * sum(after) / speed)
        assert (segment.reference_frames, segment.frames) == (390, 390 + max(reply, len(spoken)))
        assert segment.upsample_index is not None and segment.upsample_index.dtype == np.int32
        assert (np.diff(segment.upsample_index) >= 0).all()
        lasts = np.bincount(segment.upsample_index, minlength=len(segment.ids))
        expected = [
            n * part / sum(of) for of, part in ((before, 390), (after, segment.frames - 390)) for n in of
        ]
        assert sum(lasts[: len(before)]) == 390
        ends = np.cumsum(after) * (segment.frames - 390) / sum(after) / VOCOS.frames_per_second
        begin = ends[0] if spoken[0] == " " else 0.0
        assert segment.words == (pytest.approx((begin, ends[-2])),)
        np.testing.assert_allclose(lasts, expected, atol=1.0)
    assert make_plan("ab")[0].upsample_index is None


@pytest.mark.parametrize("segmentation", Segmentation)
def test_a_text_whose_tokens_are_longer_than_its_bytes_is_cut_by_them(segmentation: Segmentation) -> None:
    """Most of the transcript and the end of the text are quick; the beginning of the text is slow."""
    reference = make_reference("bbbb bbbb bbbb aaaa. ", 100_000)
    text = ("aa aa. " * 45 + "bb bb. " * 45).strip()
    request = {"segmentation": segmentation, **PLACED}
    segments = make_plan(text, reference, max_frames=938, **request)
    assert max(segment.frames for segment in segments) <= 938
    assert "".join("".join(s.text for s in segments).split()) == "".join(text.split())
    slow = make_request("aa aa. " * 45, segmentation=segmentation, max_spoken_s=30.0)
    [(_, segments)] = done(make_planner(reference, **PLACED).ways([slow]))
    assert 20.0 < sum(segment.audio_s for segment in segments) <= 30.0
    with pytest.raises(InvalidRequest, match=r"makes \d+ s of speech; at most 50 s are allowed"):
        make_plan(text, reference, max_audio_s=50.0, **request)


def make_plan(text: str, reference: Reference | None = None, **fields: Any) -> list[Segment]:
    of_request = {name: fields.pop(name) for name in Request.__dataclass_fields__ if name in fields}
    return make_planner(reference, **fields).plan(make_request(text, **of_request))


@pytest.mark.parametrize("voice", range(len(generate.REFERENCES)))
def test_a_hundred_lines_are_planned_as_upstream_plans_them(golden, voice):
    row_of_voice = golden["references"][voice]
    reference = make_reference(row_of_voice["transcript"], row_of_voice["samples"])
    vocabulary = Vocabulary(tuple(golden["vocabulary"]))
    assert len(golden["plans"][voice]) == len(golden["lines"])
    for row, passes in zip(golden["lines"], golden["plans"][voice], strict=True):
        of = {"vocabulary": vocabulary, "to_tokens": to_tokens, "duration": "bytes"}
        segments = make_plan(row["line"], reference, speaking_rate=row_of_voice["speed"], **of)
        is_short = any(len(segment.text.encode()) < SHORT_TEXT_BYTES for segment in segments)
        planned = [
            {"frames": s.frames, "condition_frames": len(s.reference_log_mel), "ids": s.ids.tolist()}
            for s in segments
        ]
        if is_short and row_of_voice["speed"] != 1.0:  # our rate changes their length, upstream's does not
            assert [p.pop("frames") for p in planned] != [p["frames"] for p in passes]
            passes = [{name: p[name] for name in ("condition_frames", "ids")} for p in passes]
        assert planned == passes, row["line"]


def syllables(text: str) -> int:
    return len(re.findall("[aeiouyаеёиоуыэюя]+", text.lower()))


@pytest.mark.parametrize("segmentation", Segmentation)
@pytest.mark.parametrize("voice", [0, 1])
def test_a_line_of_another_script_keeps_the_pace(voice: int, segmentation: Segmentation) -> None:
    transcripts = (
        "Today we play a new game together and have a lot of fun with it. ",
        "Сегодня мы вместе играем в новую игру и весело проводим время. ",
    )
    line = (
        "Хорошая игра, все было очень близко, спасибо всем за этот вечер.",
        "Good game everyone, that was really close, thanks to all of you.",
    )[voice]
    reference = make_reference(transcripts[voice], round(4.4 * 24_000))
    pace = syllables(transcripts[voice]) / 4.4

    def ratio(text: str, duration: str) -> float:
        segments = make_plan(text, reference, duration=duration, segmentation=segmentation)
        frames = sum(segment.frames - segment.reference_frames for segment in segments)
        return syllables(text) / (frames / 93.75) / pace

    assert 0.8 < ratio(line, "script") < 1.25
    assert not 0.67 < ratio(line, "bytes") < 1.5
    # The longest piece lasts as long as a piece in the voice's own script may.
    pieces = make_plan(f"{line} " * 8, reference, segmentation=Segmentation.LOW_LATENCY)
    longest_s = max(segment.frames - segment.reference_frames for segment in pieces) / 93.75
    assert LONGEST_PIECE_S / 2 < longest_s < 1.05 * LONGEST_PIECE_S


@pytest.mark.parametrize(("transcript", "text"), [
    ("Plain words.", "Other words!"),
    ("Ein schöner Tag über Köln.", "Straße"),
    ("你好，朋友", "Hello there, 你好"),
    ("こんにちは、世界", "ありがとう"),
    ("Привет", "пока"),
])  # fmt: skip
def test_bytes_are_upstreams_measure_within_a_script(transcript: str, text: str) -> None:
    assert exchange(transcript, text) == 1.0


@pytest.mark.torch
def test_golden_plans_are_what_upstream_makes(golden):
    """The test covers every fifth line."""
    for reference, plans in zip(generate.REFERENCES, golden["plans"], strict=True):
        for row, passes in list(zip(golden["lines"], plans, strict=True))[::5]:
            assert generate._plan(row["line"], reference, golden["vocabulary"]) == passes


def test_bigvgan_has_a_frame_of_condition_less():
    spec = MelSpec("bigvgan")
    (segment,) = make_plan("hello there, all of you", make_reference(spec=spec), spec=spec)
    assert (len(segment.reference_log_mel), segment.reference_frames) == (390, 390)
    (segment,) = make_plan("hello there, all of you")
    assert (len(segment.reference_log_mel), segment.reference_frames) == (391, 390)


@pytest.mark.parametrize(("spreads", "duration", "frames"), [
    (True, "script", (455, 498, 517)), (True, "bytes", (455, 552, 682)), (False, "script", (455, 552, 682)),
])  # fmt: skip
def test_short_texts_are_slowed_less_where_letters_are_spread_over_all_frames(spreads, duration, frames):
    planner = make_planner(make_reference("x" * 39), duration=duration)
    arch = replace(planner.manifest.arch, text_embedding_average_upsampling=spreads)
    planner = replace(planner, manifest=replace(planner.manifest, arch=arch))
    # The reference has 390 frames for 40 bytes. Two, five and nine bytes follow at 0.3, or at 0.3, 0.45 and
    # 0.69, of the pace.
    assert tuple(planner.plan(make_request("a" * n))[0].frames for n in (2, 5, 9)) == frames


@pytest.mark.parametrize(("transcript", "text", "speed", "reply"), [
    ("x" * 39, "y" * 20, 1.0, 195),  # of 390 frames for 40 bytes: a space follows ASCII
    ("x" * 39, "y" * 20, 2.0, 97),
    ("x" * 39, "y" * 9, 2.0, 146),  # at 0.3 of the pace, times the rate
    ("完" * 13, "你好吗朋友", 1.0, 150),  # counted in bytes
])  # fmt: skip
def test_durations_by_hand(transcript: str, text: str, speed: float, reply: int) -> None:
    (segment,) = make_plan(text, make_reference(transcript), speaking_rate=speed)
    assert segment.frames - segment.reference_frames == reply


def test_more_tokens_than_time_make_room_for_every_token():
    reference = make_reference("a" * 400 + ". ", samples=24_000)
    (segment,) = make_plan("b" * 12, reference)
    assert segment.frames == len(segment.ids) + 1 == 400 + 3 + 12 + 1
    (segment,) = make_plan("b", speaking_rate=1e4)
    assert segment.frames == len(segment.reference_log_mel) + 1


def test_a_quiet_reference_is_restored_and_a_loud_one_left():
    gains = [make_plan("hello there", make_reference(rms=rms))[0].gain for rms in (0.025, 0.1, 0.3)]
    assert gains == [0.25, 1.0, 1.0]


@pytest.mark.parametrize("segmentation", Segmentation)
def test_the_seconds_of_the_segments_add_up_to_the_reply(segmentation):
    segments = make_plan(SENTENCES * 4, segmentation=segmentation)
    joiner = Joiner(overlap_samples(MANIFEST.defaults.cross_fade_s, VOCOS.sample_rate_hz))
    samples = 0
    for place, segment in enumerate(segments):
        audio = np.zeros((segment.frames - segment.reference_frames - 1) * VOCOS.hop, np.float32)
        samples += len(joiner.push(audio, last=place == len(segments) - 1))
    assert len(segments) > 1
    assert sum(s.audio_s for s in segments) == pytest.approx(samples / VOCOS.sample_rate_hz, abs=1e-6)


def test_the_work_of_a_request_is_bounded():
    """A limit of characters is not enough: seconds depend on bytes and pace, and each step computes all of
    them."""
    emoji = "😂" * 2_000
    low = {"segmentation": Segmentation.LOW_LATENCY}
    with pytest.raises(InvalidRequest, match=r"^text: makes \d+ s of speech; at most 180 s are allowed"):
        make_plan(emoji, max_audio_s=180.0, speaking_rate=0.25, **low)
    with pytest.raises(InvalidRequest) as caught:
        make_plan(SENTENCES * 4, nfe=32, max_work_s=500.0, **low)
    assert caught.value.field == "nfe_steps"
    most = int(re.search(r"at most (\d+) steps, or a shorter text", str(caught.value))[1])
    assert 1 < most < 32
    segments = make_plan(SENTENCES * 4, nfe=most, max_work_s=500.0, **low)
    assert sum(s.audio_s for s in segments) * most <= 500.0
    with pytest.raises(InvalidRequest, match="nfe_steps"):
        make_plan(SENTENCES * 4, nfe=most + 1, max_work_s=500.0, **low)


def test_a_refusal_of_work_costs_no_tokens():
    def to_tokens(text):
        raise AssertionError("the length alone says that it is too much")

    with pytest.raises(InvalidRequest, match="makes"):
        make_plan(SENTENCES * 4, to_tokens=to_tokens, max_audio_s=10.0, segmentation=Segmentation.LOW_LATENCY)


def test_a_full_line_of_long_texts_takes_little_memory():
    planner = make_planner(max_audio_s=180.0, max_work_s=1_800.0)
    request = make_request(SENTENCES * 4, segmentation=Segmentation.LOW_LATENCY, nfe=7)
    plans = [planner.plan(request)]
    assert sum(s.audio_s for s in plans[0]) > 60.0
    tracemalloc.start()
    try:
        plans += [planner.plan(request) for _ in range(15)]
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 << 20, f"{taken >> 20} MiB for {len(plans)} requests"


def test_ways_differ_in_cut_and_steps_and_exclude_impossible_ones():
    planner = make_planner(max_work_s=1_500.0)
    plain = make_request(SENTENCES * 4, segmentation=Segmentation.LOW_LATENCY)
    requests = [replace(plain, nfe=nfe) for nfe in (32, 8, 4)]
    requests.insert(0, replace(plain, text="x" * 2_000, segmentation=Segmentation.UPSTREAM))
    ways = done(planner.ways(requests))
    assert [request.nfe for request, _ in ways] == [8, 4]
    for request, segments in ways:
        for way, alone in zip(segments, planner.plan(request), strict=True):
            assert way.nfe == request.nfe and np.array_equal(way.times, alone.times)
            assert (way.text, way.frames) == (alone.text, alone.frames)
            assert (way.seed, way.audio_s) == (alone.seed, alone.audio_s)
    with pytest.raises(InvalidRequest, match="nfe_steps"):
        done(planner.ways(requests[:2]))


def test_grid_guidance_and_how_noise_is_drawn_travel():
    segments = make_plan(SENTENCES * 4, seed=7)
    assert len(segments) > 2
    assert [(s.seed, s.index, s.noise) for s in segments] == [(7, i, None) for i in range(len(segments))]
    (segment,) = make_plan("hello there", nfe=3, guidance=0.5)
    assert segment.guidance == 0.5
    assert np.allclose(segment.times, [1 - math.cos(math.pi / 2 * n / 3) for n in range(4)])


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1_300, 3_000), st.floats(0.5, 2.0))
def test_low_latency_fits_into_any_bundle(repeats, max_frames, rate):
    text = (SENTENCES * repeats).strip()
    low = Segmentation.LOW_LATENCY
    segments = make_plan(text, max_frames=max_frames, speaking_rate=rate, segmentation=low)
    assert max(segment.frames for segment in segments) <= max_frames
    assert "".join("".join(s.text for s in segments).split()) == "".join(text.split())


def test_low_latency_starts_short():
    segments = make_plan(SENTENCES, segmentation=Segmentation.LOW_LATENCY)
    assert segments[0].text == "Welcome back,"
    assert segments[0].frames < segments[1].frames
    slow, fast = (make_planner().budgets(make_request("", speaking_rate=rate)) for rate in (1.0, 2.0))
    assert fast.reference == 2 * slow.reference
    # A short reply next to a long reference stays whole: a cut would cost more than it gains.
    assert len(make_plan("Welcome back, dear friend.", segmentation=Segmentation.LOW_LATENCY)) == 1


def test_a_text_that_does_not_fit_is_refused_with_the_limit():
    message = r"^text: .* allowed in one piece.*shorter reference"
    for segmentation in Segmentation:
        with pytest.raises(InvalidRequest, match=message) as caught:
            make_plan("hello there", max_frames=300, segmentation=segmentation)
        assert caught.value.field == "text"


@pytest.mark.parametrize("segmentation", Segmentation)
@pytest.mark.parametrize("text", ["x" * 150, "Kappa " * 80, "https://example.com/" + "x" * 300, "好" * 200])
def test_no_text_is_refused_for_its_shape(text, segmentation):
    segments = make_plan(text, max_frames=938, segmentation=segmentation)
    assert all(segment.frames <= 938 for segment in segments)
    assert "".join("".join(s.text for s in segments).split()) == "".join(text.split())


def test_a_text_is_cut_to_the_limit_of_speech_at_a_clause():
    request = make_request(SENTENCES * 3, max_spoken_s=4.0)
    [(cut, segments)] = done(make_planner().ways([request]))
    assert request.text.startswith(cut.text) and cut.text[-1] in ",.!?"
    assert sum(segment.audio_s for segment in segments) <= 4.2
    assert cut.changes[-1].kind == "cut" and cut.changes[-1].before
    assert done(make_planner().ways([replace(request, max_spoken_s=1e3)]))[0][0].text == request.text


@pytest.mark.parametrize(("fields", "message"), [
    ({"nfe": 0}, "nfe_steps: nfe must be between 1 and 64, not 0"),
    ({"nfe": 65}, "nfe_steps: nfe must be between 1 and 64, not 65"),
    ({"speaking_rate": 0.0}, "speaking_rate: must be above 0, not 0.0"),
    ({"speaking_rate": math.nan}, "speaking_rate: must be above 0, not nan"),
    ({"text": "  "}, "text: is empty"),
    ({"text": ""}, "text: is empty"),
])  # fmt: skip
@pytest.mark.parametrize("segmentation", Segmentation)
def test_unusable_requests_are_refused_by_field(fields, message, segmentation):
    request = replace(make_request("hello there", segmentation=segmentation), **fields)
    with pytest.raises(InvalidRequest, match=message):
        make_plan(**vars(request))
