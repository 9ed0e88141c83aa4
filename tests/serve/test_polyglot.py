"""The voice of a text's language on a whole daemon, at each door, and what a table is refused for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.client import AsyncClient, CallFailed, Client, End, Header
from appliance.serve import daemon
from appliance.text import polyglot
from tests.gateway.conftest import Gateway, gateway_of
from tests.gateway.sockets import connected
from tests.harness.daemons import Running, Shared, reference_wav, shared, write_config
from tests.harness.patience import PATIENCE_S, until
from tests.serve.test_daemon import rewrite

pytestmark = pytest.mark.slow

WORDS = "Oh, how glad I am that all of you came today."
TABLE = {"en": {"voice": "ann"}, "de": {"voice": "berta"}, "fr": {"voice": "berta", "style": "happy"}}
LINES = {
    "en": "I have been watching for 3 years now.",
    "de": "ich schaue jetzt seit 3 Jahren zu.",
    "fr": "je te regarde depuis 3 ans maintenant.",
}
SAID = {"en": "three years", "de": "drei Jahren", "fr": "trois ans"}
AS_MADE: dict[str, Any] = {"seed": 5, "nfe": 2, "timeout": PATIENCE_S}


def add_berta(box: Shared) -> None:
    """She has a style."""
    with Client(box.address) as client:
        client.add_voice("berta", reference_wav(2.2), WORDS, timeout=PATIENCE_S)
        client.add_style("berta", "happy", reference_wav(1.7), WORDS, timeout=PATIENCE_S)


box = shared(add_berta, text={"languages": TABLE})


@pytest.fixture(scope="module")
def client(box: Running) -> Iterator[Client]:
    with Client(box.address) as client:
        yield client


@pytest.mark.parametrize("left", ["", "auto", "AUTO"])
@pytest.mark.parametrize("code", LINES)
def test_a_line_is_said_as_by_a_request_for_its_row(client: Client, code: str, left: str) -> None:
    made = client.speak(LINES[code], left, **AS_MADE)
    row = TABLE[code]
    assert made.header.voice == row["voice"] and SAID[code] in made.header.text
    asked = client.speak(LINES[code], row["voice"], style=row.get("style", ""), language=code, **AS_MADE)
    assert made.audio == asked.audio


def test_who_names_a_voice_a_style_or_a_language_gets_it(client: Client) -> None:
    assert client.speak(LINES["de"], "ann", **AS_MADE).header.voice == "ann"
    neutral = client.speak(LINES["fr"], "", style="neutral", **AS_MADE).audio
    assert neutral == client.speak(LINES["fr"], "berta", language="fr", **AS_MADE).audio
    assert client.speak(LINES["de"], "", language="en", **AS_MADE).header.voice == "ann"


def test_a_short_line_is_said_by_the_voice_of_its_channel(client: Client) -> None:
    # The file's first row is German: YAML was written in alphabetical order.
    said = [("chat", LINES["en"]), ("chat", "gg"), ("other", "gg"), ("", "gg")]
    voices = [client.speak(text, "", channel=channel, **AS_MADE).header.voice for channel, text in said]
    assert voices == ["ann", "ann", "berta", "berta"]


def test_a_tag_leaves_and_returns_to_the_text_s_voice(client: Client) -> None:
    made = client.speak(f"{LINES['de']} [voice:ann] Hello. [voice] Danke.", "", voice_tags=True, **AS_MADE)
    tagged = f"{LINES['de']} [voice:ann] Hello. [voice] Danke."
    asked = client.speak(tagged, "berta", language="de", voice_tags=True, **AS_MADE)
    assert made.audio == asked.audio


async def test_each_clause_of_a_session_has_the_voice_of_its_language(box: Running) -> None:
    async with AsyncClient(box.address) as client:
        session = client.session("", seed=5, nfe=2)
        await session.say(f"{LINES['en']} {LINES['de']} OK. ")
        await session.close()
        voices = [event.voice async for _, event in session if isinstance(event, Header)]
    assert voices[0] == "ann" and set(voices[1:]) == {"berta"}


async def test_a_style_that_the_next_clause_s_voice_lacks_ends_with_its_clause(box: Running) -> None:
    async with AsyncClient(box.address) as client:
        session = client.session("", seed=5, nfe=2)
        await session.say(f"[happy] {LINES['de']} {LINES['en']} {LINES['de']} ")
        await session.close()
        events = [event async for _, event in session]
    heard = [event.voice for event in events if isinstance(event, Header)]
    assert heard == ["berta", "ann", "berta"] and isinstance(events[-1], End)


@pytest.fixture(scope="module")
def gateway(box: Running) -> Iterator[Gateway]:
    with gateway_of(box) as gateway:
        yield gateway


@pytest.mark.parametrize("voice", ["auto", "alloy", "", None])
def test_over_http_auto_openai_s_names_and_none_are_the_table(
    gateway: Gateway, client: Client, voice: str | None
) -> None:
    for code in ("en", "de"):
        sent = {"input": LINES[code], "response_format": "wav", "seed": 5, "nfe": 2}
        answer = gateway.ask("/v1/audio/speech", sent if voice is None else {**sent, "voice": voice})
        named = gateway.ask("/v1/audio/speech", {**sent, "voice": TABLE[code]["voice"], "language": code})
        assert answer.status == 200 and answer.body == named.body


def test_a_websocket_may_leave_the_voice_to_the_text(gateway: Gateway) -> None:
    heard = []
    for voice in ("auto", "berta"):
        path = f"/v1/text-to-speech/{voice}/stream-input?output_format=pcm_24000&seed=7&nfe=1&language=de"
        with connected(gateway.address, path) as socket:
            socket.send({"text": "Hallo. "}, {"text": ""})
            heard.append([one.get("audio") for one in socket])
    assert heard[0] == heard[1] != []


def test_a_reload_takes_the_table_up(shared_box: Shared) -> None:
    with shared_box.lent(text={"languages": {}}) as box, Client(box.address) as client:
        for voice, message in (
            ("", "is empty; name a registered voice"),
            ("auto", "no voice is named 'auto'"),
        ):
            with pytest.raises(CallFailed, match=message):
                client.speak(LINES["en"], voice)
        rewrite(box, text={"languages": {"en": {"voice": "ann"}, "de": {"voice": "ann"}}})
        box.until("configuration read")
        for voice in ("", "auto"):
            assert client.speak(LINES["de"], voice, nfe=1).header.voice == "ann"
        # One that cannot be used leaves the one before it.
        rewrite(box, text={"languages": {"xx": {"voice": "ann"}}})
        box.until("keeping the old configuration: text.languages.xx: 'xx' is not known; en, zh")
        assert client.speak(LINES["de"], "auto", nfe=1).header.voice == "ann"
        # A voice of this name is that voice.
        client.add_voice("auto", reference_wav(2.2), WORDS, timeout=PATIENCE_S)
        until(lambda: client.speak(LINES["de"], "auto", nfe=1).header.voice == "auto")


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({"de": {"style": "happy"}}, "text: languages.de: missing key voice"),
        ({"de-AT": {"voice": "ann"}}, "text.languages.de-AT: must be the first part of a tag, as de"),
        (TABLE, "text.languages: to tell de, en, fr apart py3langid is missing: pip install 'f5-appliance"),
    ],
    ids=["without-voice", "tag", "library"],
)
def test_a_table_that_cannot_be_used_ends_the_start(
    tmp_path: Path,
    languages: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    polyglot._identifier.cache_clear()
    assert daemon.main(write_config(tmp_path, text={"languages": languages}), []) == 78
    assert message in capsys.readouterr().err
