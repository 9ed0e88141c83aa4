"""The cache of phrases, against a plain list; and requests that its keys distinguish."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.audio.phrases import Phrase, Phrases, key_of
from appliance.request import Segment, SegmentAudio
from tests.harness.segments import segment

KEYS = st.sampled_from([bytes([number]) for number in range(6)])
LIMIT_BYTES = 400


def phrase(samples: int, seed: int = 0) -> Phrase:
    return Phrase((SegmentAudio(np.zeros(samples, np.float32), 0, True),), seed)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("keep"), KEYS, st.integers(0, 120)),
            st.tuples(st.just("find"), st.lists(KEYS, max_size=3), st.none()),
        ),
        max_size=60,
    )
)
def test_the_cache_holds_the_entries_of_a_plain_list(operations: list[tuple[str, Any, Any]]) -> None:
    phrases, model = Phrases(LIMIT_BYTES), []  # type: ignore[var-annotated]
    hits = misses = 0
    for number, (what, key, samples) in enumerate(operations):
        if what == "keep":
            one = phrase(samples, number)
            phrases.keep(key, one)
            model = [(k, p) for k, p in model if k != key]
            if 4 * samples <= LIMIT_BYTES:
                model.append((key, one))
            while sum(len(p.segments[0].samples) * 4 for _, p in model) > LIMIT_BYTES:
                del model[0]
        else:
            kept = dict(model)
            place = next((place for place, one in enumerate(key) if one in kept), None)
            found = phrases.find(key)
            if place is None:
                misses += 1
                assert found is None
            else:
                hits += 1
                assert found == (place, kept[key[place]])
                model = [(k, p) for k, p in model if k != key[place]] + [(key[place], kept[key[place]])]
        assert phrases.size_bytes == sum(len(p.segments[0].samples) * 4 for _, p in model) <= LIMIT_BYTES
        assert (phrases.hits, phrases.misses) == (hits, misses)


@pytest.mark.parametrize(("limit_bytes", "drawn", "takes"), [
    (0, True, (False, False)), (1, False, (True, False)), (1, True, (True, True)),
])  # fmt: skip
def test_limit_and_option_decide_on_caching(limit_bytes: int, drawn: bool, takes: tuple[bool, bool]) -> None:
    phrases = Phrases(limit_bytes, drawn_seeds=drawn)
    assert tuple(phrases.keys([[]], "", seeded=seeded) != [None] for seeded in (True, False)) == takes
    assert phrases.find(phrases.keys([[]], "", seeded=False)) is None and phrases.misses == takes[1]


def test_a_phrase_keeps_no_larger_buffer_alive() -> None:
    buffer = np.ones(1_000, np.float32)
    kept = Phrase.of([SegmentAudio(buffer[:10], 0, True)], 7)
    buffer[:] = 0.0
    [made] = kept.segments
    assert (made.samples.tolist(), made.samples.base, made.last, kept.seed) == ([1.0] * 10, None, True, 7)


CHANGES: dict[str, Callable[[Segment], Any]] = {
    "index": lambda s: s.index + 1,
    "text": lambda s: s.text + "!",
    "ids": lambda s: s.ids + 1,
    "frames": lambda s: s.frames + 1,
    "reference_log_mel": lambda s: s.reference_log_mel + np.float32(1e-6),
    "reference_frames": lambda s: s.reference_frames + 1,
    "times": lambda s: np.linspace(0.0, 1.0, 4) ** 2,
    "guidance": lambda s: s.guidance + 1e-9,
    "seed": lambda s: s.seed + 1,
    "noise": lambda s: np.zeros((2, 2), np.float32),
    "gain": lambda s: 0.5,
    "sampling": lambda s: "short",
    "pause_s": lambda s: 0.5,
    "upsample_index": lambda s: np.zeros(s.frames, np.int32),
    "words": lambda s: ((0.0, 0.5),),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Segment) if field.name != "audio_s"])
def test_whatever_changes_a_segment_changes_its_key(name: str) -> None:
    one = segment("hello", seed=3)
    other = replace(one, **{name: CHANGES[name](one)})
    before, after = (key_of([s], "ort-cpu", seeded=True) for s in (one, other))
    assert before != after
    assert (key_of([one], "", seeded=False) == key_of([other], "", seeded=False)) is (name == "seed")


def test_keys_tell_what_computes_and_how_a_text_is_cut() -> None:
    one, other = segment("a"), segment("b", index=1)
    ways = ("ort-cuda", "ort-cuda (plain attention)")
    replies = ([one], [other], [one, other], [other, one], [])
    keys = {key_of(segments, by, seeded=True) for segments in replies for by in ways}
    assert len(keys) == 10
    same = replace(one, ids=one.ids.copy(), reference_log_mel=one.reference_log_mel.copy())
    assert key_of([one], "x", seeded=True) == key_of([same], "x", seeded=True)
