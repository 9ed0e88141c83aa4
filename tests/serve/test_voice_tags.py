"""Voices within a text on a whole daemon: what is heard is what a request for each voice says, by sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.client import AsyncClient, Client, Header, Piece
from tests.harness.daemons import Shared, reference_wav
from tests.harness.patience import PATIENCE_S
from tests.serve.test_styles import pieces

pytestmark = pytest.mark.slow

WORDS = "Oh, how glad I am that all of you came today."
PARTS = ("Hello there, all of you.", "Thanks for the follow, Xx_Bo.", "Now to the game, at last.")
AS_MADE: dict[str, Any] = {"seed": 5, "nfe": 2, "timeout": PATIENCE_S}


def add_berta(box: Shared) -> None:
    """She has a style and a pronunciation of her own."""
    with Client(box.address) as client:
        client.add_voice("berta", reference_wav(2.2), WORDS, timeout=PATIENCE_S)
        client.add_style("berta", "happy", reference_wav(1.7), WORDS, timeout=PATIENCE_S)
        client.update_voice("berta", pronunciations={"Xx_Bo": "Bo"}, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def box(bundles_box: Shared) -> Iterator[Shared]:
    with bundles_box.lent(add_berta):
        yield bundles_box


@pytest.fixture(scope="module")
def client(box: Shared) -> Iterator[Client]:
    with Client(box.address) as client:
        yield client


@pytest.mark.parametrize("segmentation", ["upstream", "low_latency"])
@pytest.mark.parametrize(("tag", "style"), [("[voice:berta]", ""), ("[VOICE: Berta] [happy]", "happy")])
def test_a_voice_says_by_tag_what_it_says_by_request(
    client: Client, tag: str, style: str, segmentation: str
) -> None:
    text = "666 thanks for the follow, Xx_Bo. And welcome to all."
    more = {**AS_MADE, "segmentation": segmentation}
    tagged = client.speak(f"{tag} {text}", "ann", voice_tags=True, **more)
    asked = client.speak(text, "berta", style=style, **more)
    assert tagged.audio == asked.audio != client.speak(text, "ann", **more).audio
    assert tagged.header.text == asked.header.text and "Xx" not in asked.header.text
    assert tagged.header.voice == "ann"


@pytest.mark.parametrize(
    ("text", "handling"),
    [
        ("{} [pause:200ms] [voice:berta] {} [pause:200ms] [voice] {}", "chat"),
        (
            '<speak>{}<break time="200ms"/><voice name="berta">{}</voice><break time="200ms"/>{}</speak>',
            "ssml",
        ),
    ],
)
def test_a_text_of_two_voices_is_the_segments_of_each(client: Client, text: str, handling: Any) -> None:
    # Over a pause nothing is faded, so that each segment's samples stand for themselves.
    _, made = pieces(client, text.format(*PARTS), "ann", voice_tags=True, text_handling=handling)
    plain = " [pause:200ms] ".join(PARTS)
    (_, ann), (_, berta) = pieces(client, plain, "ann"), pieces(client, plain, "berta")
    assert made == [ann[0], berta[1], ann[2]] and ann[1] != berta[1]
    # The phrase is kept as itself, and sounds as when it was made.
    again, kept = pieces(client, text.format(*PARTS), "ann", voice_tags=True, text_handling=handling)
    assert again.cached and kept == made


def test_the_request_s_style_comes_back_with_its_voice(client: Client) -> None:
    text = "[voice:ann] {} [pause:200ms] [voice] {} [pause:200ms] [neutral] {}".format(*PARTS)
    _, made = pieces(client, text, "berta", style="happy", voice_tags=True)
    plain = " [pause:200ms] ".join(PARTS)
    (_, ann), (_, berta) = pieces(client, plain, "ann"), pieces(client, plain, "berta")
    assert made == [ann[0], pieces(client, plain, "berta", style="happy")[1][1], berta[2]]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("[voice:berta] Hello there.", False), ("[voice:nobody] Hello there.", True), ("[voice] Hello.", False)],
)
def test_a_tag_that_is_not_allowed_or_names_nobody_is_text(client: Client, text: str, allowed: bool) -> None:
    reply = client.speak(text, "ann", voice_tags=allowed, **AS_MADE)
    assert "voice" in reply.header.text and not [c for c in reply.header.changes if c.kind == "voice"]
    assert reply.audio == client.speak(reply.header.text, "ann", text_handling="verbatim", **AS_MADE).audio


def test_ssml_of_a_voice_that_is_not_allowed_is_spoken_as_before(client: Client) -> None:
    text = '<speak>Hello. <voice name="{}">Hello there.</voice></speak>'
    plain = client.speak("Hello. Hello there.", "ann", **AS_MADE)
    for name, allowed in (("berta", False), ("nobody", True)):
        reply = client.speak(text.format(name), "ann", text_handling="ssml", voice_tags=allowed, **AS_MADE)
        assert reply.audio == plain.audio
        assert [(c.kind, c.before) for c in reply.header.changes] == [("ssml", f"<voice name='{name}'>")]


async def test_a_session_goes_on_in_the_voice_of_its_last_tag(box: Shared) -> None:
    async with AsyncClient(box.address) as client:
        session = client.session("ann", seed=5, nfe=2, voice_tags=True)
        for text in (
            f"{PARTS[0]} [voi",
            "ce:ber",
            f"ta] {PARTS[1]} It is nice of you. ",
            f"[voice] {PARTS[2]}",
        ):
            await session.say(text)
        await session.close()
        heard = dict[int, bytes]()
        spoken: list[str] = []
        async for _, event in session:
            if isinstance(event, Header):
                spoken.append(event.text)
            elif isinstance(event, Piece):
                heard[len(spoken)] = heard.get(len(spoken), b"") + event.data
    assert "".join(spoken).count("voice") == 0
    voices = ["ann", "berta", "berta", "ann"]
    with Client(box.address) as alone:
        for place, (text, voice) in enumerate(zip(spoken, voices, strict=True), 1):
            reply = alone.speak(text, voice, encoding="pcm16", **AS_MADE)
            assert heard[place] == reply.audio, text
