"""Styles on a whole daemon: what is heard is what voices of these recordings alone say, sample for sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import Client, Header, Piece
from tests.harness.daemons import Shared, reference_wav
from tests.harness.patience import PATIENCE_S

pytestmark = pytest.mark.slow

GLAD = "Oh, how glad I am that all of you came today."
GLAD_WAV = reference_wav(2.2, level=0.05)


def add_voices(box: Shared) -> None:
    """Give `ann` her style `happy`, and store `glad`, a voice of that recording alone."""
    with Client(box.address) as client:
        client.add_style("ann", "happy", GLAD_WAV, GLAD, timeout=PATIENCE_S)
        client.add_voice("glad", GLAD_WAV, GLAD, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def client(bundles_box: Shared) -> Iterator[Client]:
    with bundles_box.lent(add_voices) as box, Client(box.address) as client:
        yield client


def pieces(client: Client, text: str, voice: str, **more: Any) -> tuple[Header, list[bytes]]:
    """PCM16 of each segment."""
    header, audio = Header(), dict[int, bytes]()
    for event in client.stream(text, voice, seed=5, nfe=2, timeout=PATIENCE_S, **more):
        if isinstance(event, Header):
            header = event
        elif isinstance(event, Piece):
            audio[event.segment] = audio.get(event.segment, b"") + event.data
    return header, [audio[number] for number in sorted(audio)]


@pytest.mark.parametrize("chosen", [{"style": "happy"}, {"style": "HAPPY"}, {"tag": "[happy] "}])
def test_a_style_speaks_as_a_voice_of_its_recording(client: Client, chosen: dict[str, str]) -> None:
    text, tag = "Thanks for the follow, everyone. And welcome to all.", chosen.pop("tag", "")
    for segmentation in ("upstream", "low_latency"):
        made = client.speak(tag + text, "ann", seed=3, nfe=2, segmentation=segmentation, **chosen)  # type: ignore[arg-type]
        alone = client.speak(text, "glad", seed=3, nfe=2, segmentation=segmentation)  # type: ignore[arg-type]
        own = client.speak(text, "ann", seed=3, nfe=2, segmentation=segmentation)  # type: ignore[arg-type]
        assert made.audio == alone.audio != own.audio
        assert made.header.voice == "ann" and made.header.text == text


def test_two_tags_are_the_segments_of_these_voices_in_turn(client: Client) -> None:
    # Over a pause nothing is faded, so that each segment's samples stand for themselves.
    parts = ("Hello there, all of you.", "Thanks for the follow, friend.", "Now to the game, at last.")
    plain = " [pause:200ms] ".join(parts)
    tagged = "{} [pause:200ms] [happy] {} [pause:200ms] [neutral] {}".format(*parts)
    header, made = pieces(client, tagged, "ann")
    assert header.text == " ".join(parts) and header.segments == len(made) == 3
    styles = [(c.before, c.after) for c in header.changes if c.kind == "style"]
    assert styles == [("[happy]", ""), ("[neutral]", "")]
    (_, own), (_, glad) = pieces(client, plain, "ann"), pieces(client, plain, "glad")
    assert made == [own[0], glad[1], own[2]] and own[1] != glad[1]
    # The phrase is kept as itself, and neither as the plain one nor as another style's.
    again, kept = pieces(client, tagged, "ann")
    assert again.cached and kept == made
    assert pieces(client, plain, "ann", style="happy")[1] == glad


def test_words_are_timed_over_styles(client: Client) -> None:
    text = "Hello there, all of you. [happy] Thanks for the follow, friend. [neutral] Now to the game."
    reply = client.speak(text, "ann", seed=5, nfe=2, word_timings=True)
    assert " ".join(word.word for word in reply.words) == reply.header.text
    assert [word.segment for word in reply.words] == [0] * 5 + [1] * 5 + [2] * 4
    ends = [0.0, *(word.end_s for word in reply.words)]
    starts = [*(word.start_s for word in reply.words), reply.audio_s]
    assert all(end <= start + 1e-6 for end, start in zip(ends, starts, strict=True))


def test_a_tag_that_a_voice_lacks_is_left_out(client: Client) -> None:
    text = "Thanks for the follow, everyone."
    assert client.speak(f"[angry] {text}", "ann", seed=3, nfe=2).audio == (
        client.speak(text, "ann", seed=3, nfe=2).audio
    )
