"""Two bundles in one daemon: each language sounds, by sample, as in a daemon of its bundle alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.client import AsyncClient, Client, Header, Piece
from appliance.contract import bundle
from appliance.serve import daemon
from tests.gateway.test_wyoming import event, wyoming_of
from tests.harness.daemons import BUNDLE, Running, Shared, reference_wav, running, write_config
from tests.harness.patience import PATIENCE_S
from tests.serve.conftest import MARKED, other_bundle
from tests.serve.test_daemon import rewrite

pytestmark = pytest.mark.slow

WORDS = "Oh, how glad I am that all of you came today."
EN, DE = "I have been watching for 3 years now.", "ich schaue jetzt seit 3 Jahren zu, wirklich wahr."
AS_MADE: dict[str, Any] = {"seed": 5, "nfe": 2, "timeout": PATIENCE_S}


def table(other: Path) -> dict[str, Any]:
    return {"languages": {"en": {"voice": "ann"}, "de": {"voice": "berta", "bundle": str(other)}}}


def add_berta(box: Running) -> None:
    with Client(box.address) as client:
        client.add_voice("berta", reference_wav(2.2), WORDS, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def box(bundles_box: Shared, other: Path) -> Iterator[Shared]:
    with bundles_box.lent(add_berta, text=table(other)):
        yield bundles_box


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, other: Path) -> Iterator[Client]:
    """A daemon of the other bundle alone."""
    with running(tmp_path_factory.mktemp("alone"), speaks_from=other, audio=MARKED) as box:
        box.add_voice()
        add_berta(box)
        with Client(box.address) as client:
            yield client


def test_each_language_sounds_as_from_its_bundle_alone(box: Running, alone: Client) -> None:
    with Client(box.address) as client:
        for _ in range(2):  # made, then from the phrase cache
            german, english = (client.speak(text, "auto", **AS_MADE) for text in (DE, EN))
            assert german.audio == alone.speak(DE, "berta", language="de", **AS_MADE).audio
            assert english.audio == client.speak(EN, "ann", language="en", **AS_MADE).audio
        assert german.header.cached and english.header.cached
        # Who names a voice is spoken by `bundle.path`.
        assert german.audio != client.speak(DE, "berta", language="de", **AS_MADE).audio


def test_home_assistant_lists_both_languages_and_is_spoken_to_from_either_bundle(
    box: Running, alone: Client
) -> None:
    told = {}
    with wyoming_of(box) as wyoming:
        [info] = wyoming.events(event("describe") + event("ping", text="x"))[:1]
        for voice in (
            {"name": "berta", "language": "de_DE"},
            {"name": "auto"},
            {"language": "de"},
            {},
            {"name": "ann"},
        ):
            events = wyoming.events(event("synthesize", text=DE, voice=voice) + event("ping", text="x"))
            told[str(voice)] = b"".join(one["payload"] for one in events)
    [program] = info["data"]["tts"]
    languages = {voice["name"]: sorted(voice["languages"]) for voice in program["voices"]}
    assert languages == {"ann": ["en", "zh"], "berta": ["de", "en", "zh"], "auto": ["de", "en"]}
    german = alone.speak(DE, "berta", language="de", encoding="pcm16").audio
    *from_rows, named = map(len, told.values())
    assert from_rows == [len(german)] * 4 and named != len(german)


async def test_a_session_changes_the_bundle_by_the_clause(box: Running, alone: Client) -> None:
    async with AsyncClient(box.address) as client:
        session = client.session("", seed=5, nfe=2)
        await session.say(f"{EN} Das ist alles, was ich dazu sagen kann. ")
        await session.close()
        spoken: list[Header] = []
        heard = dict[int, bytes]()
        async for _, event in session:
            if isinstance(event, Header):
                spoken.append(event)
            elif isinstance(event, Piece):
                heard[len(spoken)] = heard.get(len(spoken), b"") + event.data
    assert (spoken[0].voice, spoken[-1].voice) == ("ann", "berta")
    same = alone.speak(spoken[-1].text, "berta", language="de", encoding="pcm16", **AS_MADE)
    assert heard[len(spoken)] == same.audio


def test_a_crowd_in_both_languages_is_spoken_without_a_fault_and_as_alone(
    box: Running, alone: Client
) -> None:
    expected = {
        DE: alone.speak(DE, "berta", language="de", **AS_MADE).audio,
        EN: Client(box.address).speak(EN, "ann", language="en", **AS_MADE).audio,
    }
    wrong: list[object] = []

    def speak(text: str) -> None:
        try:
            with Client(box.address) as client:
                for seed in (5, None, 5):
                    reply = client.speak(text, "auto", **{**AS_MADE, "seed": seed, "queue_timeout": 60.0})
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


def test_a_reload_changes_rows_of_loaded_bundles_and_refuses_others(
    box: Shared, tmp_path: Path, other: Path
) -> None:
    with Client(box.address) as client:
        before = client.speak(DE, "auto", **AS_MADE).audio
        text = table(other)
        text["languages"]["en"]["bundle"] = str(tmp_path / "third")
        rewrite(box, text=text)
        box.until(
            "keeping the old configuration: text.languages.en.bundle: only a restart loads another bundle"
        )
        assert client.speak(DE, "auto", **AS_MADE).audio == before
        text["languages"]["en"]["bundle"], text["languages"]["de"]["bundle"] = str(other), str(BUNDLE)
        rewrite(box, text=text)
        box.until("configuration read")
        assert client.speak(DE, "auto", **AS_MADE).audio != before


def test_a_transcript_is_read_by_either_bundle(bundles_box: Shared, russian: Path) -> None:
    rows = {"en": {"voice": "ann"}, "ru": {"voice": "olga", "bundle": str(russian)}}
    transcript = "Сегодня хороший день для долгой прогулки."
    with bundles_box.lent(text={"languages": rows}) as box, Client(box.address) as client:
        voice = client.add_voice("olga", reference_wav(), transcript, timeout=PATIENCE_S)
        assert not [line for line in voice.warnings if "letters" in line or "script" in line]
        reply = client.speak("Привет, как дела 3 раза.", "", **AS_MADE)
        assert reply.header.voice == "olga" and reply.header.text == "Привет, как дела три раза."


def huge(folder: Path) -> Path:
    """A bundle of a terabyte, most of it a hole."""
    manifest = yaml.safe_load((other_bundle(folder) / bundle.MANIFEST).read_text())
    with (folder / "condition.onnx.data").open("r+b") as file:
        file.truncate(1 << 40)
    manifest["files"]["condition.onnx.data"]["size_bytes"] = 1 << 40
    (folder / bundle.MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False))
    return folder


@pytest.mark.parametrize(
    ("made", "keys", "status", "message"),
    [
        (huge, {}, 69, r"would take 109951\d MB of memory for its files alone, and \d+ MB are free"),
        (
            lambda folder: other_bundle(folder, reference="zipvoice"),
            {},
            78,
            r"languages.de.bundle: \S+other: its mel, or its rule of references, is another",
        ),
        (
            other_bundle,
            {"engine": {"idle_unload_s": 9}},
            78,
            r"languages.de.bundle: is not possible with engine.idle_unload_s",
        ),
        (lambda folder: folder, {}, 65, "other: not a bundle, it has no manifest.yaml"),
    ],
    ids=["memory", "references", "resting", "missing"],
)
def test_a_second_bundle_that_cannot_be_beside_the_first_ends_the_start(
    tmp_path: Path,
    made: Any,
    keys: dict[str, Any],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path, text=table(made(tmp_path / "other")), **keys)
    assert daemon.main(config, []) == status
    assert re.search(message, capsys.readouterr().err)
