"""The voice, style and bundle of each part of a text on a whole daemon, compared sample by sample.

Styles and voices switch by tag, languages by the table `text.languages`; each part sounds as a plain request
for its voice, and a part of a secondary bundle sounds as in a daemon of this bundle alone.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.client import AsyncClient, CallFailed, Client, End, Header, Piece
from tests.gateway.conftest import gateway_of
from tests.gateway.sockets import connected
from tests.gateway.test_wyoming import event, wyoming_of
from tests.harness.daemons import BUNDLE, Running, Shared, reference_wav, running
from tests.harness.patience import PATIENCE_S, until
from tests.serve.conftest import MARKED
from tests.serve.test_daemon import rewrite

pytestmark = pytest.mark.slow

WORDS = "Oh, how glad I am that all of you came today."
GLAD_WAV = reference_wav(1.7)
TEXT = "666 thanks for the follow, Xx_Bo. And welcome to all."
PARTS = ("Hello there, all of you.", "Thanks for the follow, Xx_Bo.", "Now to the game, at last.")
EN = "I have been watching for 3 years now."
DE = "ich schaue jetzt seit 3 Jahren zu, wirklich wahr."
FR = "je te regarde depuis 3 ans maintenant."
AS_MADE: dict[str, Any] = {"seed": 5, "nfe": 2, "timeout": PATIENCE_S}
TAGS = {"voice_tags": True}
HAPPY = {"style": "happy"}


def table(other: Path) -> dict[str, dict[str, str]]:
    german = {"voice": "berta", "bundle": str(other)}
    return {"en": {"voice": "ann"}, "de": german, "fr": {"voice": "berta", **HAPPY}}


def add_voices(box: Running) -> None:
    """Add `berta` with a pronunciation and a style, and `glad`, a voice of the style's recording."""
    with Client(box.address) as client:
        client.add_voice("berta", reference_wav(2.2), WORDS, timeout=PATIENCE_S)
        client.update_voice("berta", pronunciations={"Xx_Bo": "Bo"}, timeout=PATIENCE_S)
        client.add_style("berta", "happy", GLAD_WAV, WORDS, timeout=PATIENCE_S)
        client.add_voice("glad", GLAD_WAV, WORDS, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def box(bundles_box: Shared, other: Path) -> Iterator[Shared]:
    with bundles_box.lent(add_voices, text={"languages": table(other)}):
        yield bundles_box


@pytest.fixture(scope="module")
def client(box: Shared) -> Iterator[Client]:
    with Client(box.address) as client:
        yield client


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, other: Path) -> Iterator[Client]:
    """A client of a daemon of the other bundle alone."""
    with running(tmp_path_factory.mktemp("alone"), speaks_from=other, audio=MARKED) as daemon:
        daemon.add_voice()
        add_voices(daemon)
        with Client(daemon.address) as client:
            yield client


Asked = tuple[str, str, dict[str, Any]]
ALIKE: dict[str, tuple[Asked, Asked]] = {
    "a style": ((EN, "berta", {"style": "HAPPY"}), (EN, "glad", {})),
    "a style's tag": ((f"[happy] {EN}", "berta", {}), (EN, "glad", {})),
    "a voice's tag": ((f"[voice:berta] {TEXT}", "ann", TAGS), (TEXT, "berta", {})),
    "tags of both": ((f"[VOICE: Berta] [happy] {TEXT}", "ann", TAGS), (TEXT, "berta", HAPPY)),
    "English": ((EN, "", {}), (EN, "ann", {"language": "en"})),
    "English by auto": ((EN, "AUTO", {}), (EN, "ann", {"language": "en"})),
    "French": ((FR, "auto", {}), (FR, "berta", {**HAPPY, "language": "fr"})),
    "a language that is named": ((FR, "", {"language": "en"}), (FR, "ann", {"language": "en"})),
    "a style that is named": ((FR, "", {"style": "neutral"}), (FR, "berta", {"language": "fr"})),
    "a tag within French": (
        (f"{FR} [voice:ann] Hello. [voice] Merci.", "", TAGS),
        (f"{FR} [voice:ann] Hello. [voice] Merci.", "berta", {**HAPPY, **TAGS, "language": "fr"}),
    ),
}
"""Two requests that sound alike."""


@pytest.mark.parametrize("segmentation", ["upstream", "low_latency"])
@pytest.mark.parametrize("name", ALIKE)
def test_two_ways_to_ask_sound_alike(client: Client, name: str, segmentation: Any) -> None:
    options = {"segmentation": segmentation, **AS_MADE}
    made, same = (client.speak(text, voice, **options, **more) for text, voice, more in ALIKE[name])
    assert made.audio == same.audio and made.header.text == same.header.text
    text, voice, _ = ALIKE[name][1]
    plain = client.speak(text, "ann", segmentation=segmentation, **AS_MADE)
    assert (made.audio == plain.audio) is (voice == "ann")


def test_a_voice_s_tag_that_is_not_allowed_is_text(client: Client) -> None:
    reply = client.speak("[voice:berta] Hello there.", "ann", **AS_MADE)
    assert "voice" in reply.header.text and not [c for c in reply.header.changes if c.kind == "voice"]
    assert reply.audio == client.speak(reply.header.text, "ann", text_handling="verbatim", **AS_MADE).audio


def test_the_voice_of_the_channel_speaks_a_short_line(client: Client) -> None:
    # The file's first row is German because YAML was written in alphabetical order.
    said = [("chat", EN), ("chat", "gg"), ("other", "gg"), ("", "gg")]
    voices = [client.speak(text, "", channel=channel, **AS_MADE).header.voice for channel, text in said]
    assert voices == ["ann", "ann", "berta", "berta"]


def pieces(client: Client, text: str, voice: str, **more: Any) -> tuple[Header, list[bytes]]:
    """PCM16 of each segment."""
    header, audio = Header(), dict[int, bytes]()
    for message in client.stream(text, voice, **more, **AS_MADE):
        if isinstance(message, Header):
            header = message
        elif isinstance(message, Piece):
            audio[message.segment] = audio.get(message.segment, b"") + message.data
    return header, [audio[number] for number in sorted(audio)]


PAUSE = '<break time="200ms"/>'


@pytest.mark.parametrize(
    ("text", "voice", "more", "speakers"),
    [
        (
            "{} [pause:200ms] [happy] {} [pause:200ms] [neutral] {}",
            "berta",
            {},
            ("berta", "berta happy", "berta"),
        ),
        ("{} [pause:200ms] [voice:berta] {} [pause:200ms] [voice] {}", "ann", TAGS, ("ann", "berta", "ann")),
        (
            f'<speak>{{}}{PAUSE}<voice name="berta">{{}}</voice>{PAUSE}{{}}</speak>',
            "ann",
            {**TAGS, "text_handling": "ssml"},
            ("ann", "berta", "ann"),
        ),
        (
            "[voice:ann] {} [pause:200ms] [voice] {} [pause:200ms] [neutral] {}",
            "berta",
            {**TAGS, **HAPPY},
            ("ann", "berta happy", "berta"),
        ),
    ],
    ids=["styles", "voices", "SSML", "the request's style comes back with its voice"],
)
def test_each_segment_sounds_as_from_its_speaker(
    client: Client, text: str, voice: str, more: dict[str, Any], speakers: tuple[str, ...]
) -> None:
    # Segments are not cross-faded over a pause, so that each segment's samples are separate.
    plain = " [pause:200ms] ".join(PARTS)
    expected = []
    for number, speaker in enumerate(speakers):
        name, _, style = speaker.partition(" ")
        expected.append(pieces(client, plain, name, style=style)[1][number])
    header, made = pieces(client, text.format(*PARTS), voice, **more)
    assert made == expected and header.segments == len(PARTS)
    # The cache stores the phrase under its own key, and it sounds as before.
    again, kept = pieces(client, text.format(*PARTS), voice, **more)
    assert again.cached and kept == made


async def clauses(box: Running, voice: str, *texts: str, **more: Any) -> list[tuple[Header, bytes]]:
    """Header and PCM16 of each clause of a session that ends without an error."""
    spoken: list[tuple[Header, bytes]] = []
    async with AsyncClient(box.address) as client:
        session = client.session(voice, seed=5, nfe=2, **more)
        for text in texts:
            await session.say(text)
        await session.close()
        async for _, message in session:
            if isinstance(message, Header):
                spoken.append((message, b""))
            elif isinstance(message, Piece):
                spoken[-1] = spoken[-1][0], spoken[-1][1] + message.data
    assert isinstance(message, End)
    return spoken


async def test_a_session_goes_on_in_the_voice_of_its_last_tag(box: Shared, client: Client) -> None:
    texts = (f"{PARTS[0]} [voi", "ce:ber", f"ta] {PARTS[1]} It is nice of you. ", f"[voice] {PARTS[2]}")
    spoken = await clauses(box, "ann", *texts, **TAGS)
    voices = ["ann", "berta", "berta", "ann"]
    for (header, audio), voice in zip(spoken, voices, strict=True):
        assert "voice" not in header.text
        assert audio == client.speak(header.text, voice, encoding="pcm16", **AS_MADE).audio, header.text


async def test_a_session_changes_voice_and_bundle_by_the_clause(box: Running, alone: Client) -> None:
    spoken = await clauses(box, "", f"{EN} Das ist alles, was ich dazu sagen kann. ")
    header, audio = spoken[-1]
    assert (spoken[0][0].voice, header.voice) == ("ann", "berta")
    assert audio == alone.speak(header.text, "berta", language="de", encoding="pcm16", **AS_MADE).audio


async def test_a_style_that_the_next_clause_s_voice_lacks_ends_with_its_clause(box: Running) -> None:
    spoken = await clauses(box, "", f"[happy] {DE} {EN} {DE} ")
    assert list(dict.fromkeys(header.voice for header, _ in spoken)) == ["berta", "ann"]
    assert spoken[-1][0].voice == "berta"


def test_each_language_sounds_as_from_its_bundle_alone(client: Client, alone: Client) -> None:
    for _ in range(2):  # synthesised, then from the phrase cache
        german = client.speak(DE, "auto", **AS_MADE)
        assert german.audio == alone.speak(DE, "berta", language="de", **AS_MADE).audio
    assert german.header.cached
    # The bundle of `bundle.path` speaks a request that names a voice.
    assert german.audio != client.speak(DE, "berta", language="de", **AS_MADE).audio


def test_every_door_leaves_the_voice_to_the_text(box: Shared, client: Client, alone: Client) -> None:
    expected = {
        "en": client.speak(EN, "ann", language="en", rate=24_000, encoding="wav", **AS_MADE),
        "de": alone.speak(DE, "berta", language="de", rate=24_000, encoding="wav", **AS_MADE),
    }
    with gateway_of(box) as gateway:
        for voice in ("auto", "alloy", "", None):
            for text, reply in ((EN, expected["en"]), (DE, expected["de"])):
                sent = {"input": text, "response_format": "pcm", "seed": 5, "nfe": 2}
                answer = gateway.ask("/v1/audio/speech", sent if voice is None else {**sent, "voice": voice})
                assert answer.status == 200 and len(answer.body) == round(reply.audio_s * 48_000)
        heard = []
        for voice in ("auto", "ann"):
            path = f"/v1/text-to-speech/{voice}/stream-input?output_format=pcm_24000&seed=7&nfe=1&language=en"
            with connected(gateway.address, path) as socket:
                socket.send({"text": "Hello. "}, {"text": ""})
                heard.append([one.get("audio") for one in socket])
        assert heard[0] == heard[1] != []
    with wyoming_of(box) as wyoming:
        [info] = wyoming.events(event("describe") + event("ping", text="x"))[:1]
        named = ({"name": "berta", "language": "de_DE"}, {"name": "auto"}, {"language": "de"}, {})
        lengths = []
        for spoken in (*named, {"name": "ann"}):
            events = wyoming.events(event("synthesize", text=DE, voice=spoken) + event("ping", text="x"))
            lengths.append(sum(len(one["payload"]) for one in events))
    [program] = info["data"]["tts"]
    languages = {voice["name"]: sorted(voice["languages"]) for voice in program["voices"]}
    assert languages["ann"] == ["en", "zh"] and languages["auto"] == ["de", "en", "fr"]
    assert languages["berta"] == ["de", "en", "fr", "zh"]
    *from_rows, of_ann = lengths
    assert from_rows == [round(expected["de"].audio_s * 48_000)] * 4 and of_ann != from_rows[0]


def test_a_crowd_in_both_languages_sounds_as_alone(box: Running, client: Client, alone: Client) -> None:
    expected = {DE: alone.speak(DE, "berta", language="de", **AS_MADE).audio}
    expected[EN] = client.speak(EN, "ann", language="en", **AS_MADE).audio
    wrong: list[object] = []

    def speak(text: str) -> None:
        try:
            with Client(box.address) as own:
                for seed in (5, None, 5):
                    reply = own.speak(text, "auto", **{**AS_MADE, "seed": seed, "queue_timeout": 60.0})
                    if seed and reply.audio != expected[text]:
                        wrong.append(reply.header)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=speak, args=(text,)) for text in (EN, DE) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert "engine call" not in box.log


def test_a_reload_changes_the_table_within_the_loaded_bundles(
    box: Shared, client: Client, other: Path, tmp_path: Path
) -> None:
    rewrite(box, text={"languages": {}})
    box.until("configuration read")
    for voice, message in (("", "is empty; name a registered voice"), ("auto", "no voice is named 'auto'")):
        with pytest.raises(CallFailed, match=message):
            client.speak(EN, voice)
    rewrite(box, text={"languages": {**table(other), "de": {"voice": "ann", "bundle": str(BUNDLE)}}})
    box.until("configuration read")
    assert client.speak(DE, "auto", nfe=1).header.voice == "ann"
    # An unusable table does not replace the previous one.
    third = {"voice": "ann", "bundle": str(tmp_path / "third")}
    for languages, message in (
        ({"xx": {"voice": "ann"}}, "xx: 'xx' is not known; ar, de, en"),
        ({"en": third}, "en.bundle: only a restart loads another bundle"),
    ):
        rewrite(box, text={"languages": languages})
        box.until(f"keeping the old configuration: text.languages.{message}")
        assert client.speak(DE, "", nfe=1).header.voice == "ann"
    # The tag names a voice, so that the voice is used.
    client.add_voice("auto", reference_wav(2.2), WORDS, timeout=PATIENCE_S)
    until(lambda: client.speak(DE, "auto", nfe=1).header.voice == "auto")


def test_a_transcript_is_read_by_either_bundle(bundles_box: Shared, russian: Path) -> None:
    rows = {"en": {"voice": "ann"}, "ru": {"voice": "olga", "bundle": str(russian)}}
    transcript = "Сегодня хороший день для долгой прогулки."
    with bundles_box.lent(text={"languages": rows}) as box, Client(box.address) as client:
        voice = client.add_voice("olga", reference_wav(), transcript, timeout=PATIENCE_S)
        assert not [line for line in voice.warnings if "letters" in line or "script" in line]
        reply = client.speak("Привет, как дела 3 раза.", "", **AS_MADE)
        assert reply.header.voice == "olga" and reply.header.text == "Привет, как дела три раза."
