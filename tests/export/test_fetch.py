"""Downloads from a hub-shaped server that breaks connections, and the licence that comes with the files."""

import sys
import urllib.request
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.contract.bundle import Licence
from appliance.durable import sha256
from export import fetch as fetching
from export.fetch import FetchError, fetch
from export.sources.licence import licence, recognised, terms_of
from export.sources.weights import KNOWN
from tests.export.hub import COMMIT, Hub, serving
from tests.harness.daemons import finished

pytestmark = pytest.mark.torch

WEIGHTS = "SWivid/F5-TTS/F5TTS_v1_Base/model_1250000.safetensors"
BYTES = bytes(range(256)) * 3000  # 768 kB
FILES = {
    WEIGHTS: BYTES,
    "SWivid/F5-TTS/F5TTS_v1_Base/vocab.txt": b" \na\nb\n",
    "charactr/vocos-mel-24khz/config.yaml": b"head: {}\n",
    "charactr/vocos-mel-24khz/pytorch_model.bin": b"\x01" * 5000,
}
MODEL = "model_1250000.safetensors"
NOT_FOR_MONEY = KNOWN["F5TTS_v1_Base"].note


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with serving(Hub(dict(FILES))) as hub:
        yield hub


def get(hub: Hub, out: Path) -> fetching.Fetched:
    return fetch("F5TTS_v1_Base", out, endpoint=hub.address)


def test_files_and_terms_arrive(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, int]] = []
    monkeypatch.setattr("builtins.print", lambda line: said.append((line, len(hub.asked))))
    found = get(hub, tmp_path)
    assert found.checkpoint == tmp_path / "F5TTS_v1_Base" / MODEL
    assert found.checkpoint.read_bytes() == BYTES
    assert found.vocab.read_bytes() == b" \na\nb\n"
    assert (found.row.vocoder, found.config) == ("vocos", None)
    assert {p.name for p in found.vocoder.iterdir()} == {"config.yaml", "pytorch_model.bin", "licence.yaml"}
    assert said[:2] == [
        # The terms are printed before the first request.
        (f"SWivid/F5-TTS: CC-BY-NC-4.0 ({NOT_FOR_MONEY}), https://huggingface.co/SWivid/F5-TTS", 0),
        ("charactr/vocos-mel-24khz: MIT, https://huggingface.co/charactr/vocos-mel-24khz", 0),
    ]
    assert len(said) == 6  # a line for each file with its place
    record = yaml.safe_load((found.checkpoint.parent / "licence.yaml").read_text())
    assert record["licence"] == "CC-BY-NC-4.0"
    assert record["source"].endswith(COMMIT)
    assert record["files"] == {MODEL: sha256(found.checkpoint), "vocab.txt": sha256(found.vocab)}
    assert found.licence == Licence(
        weights="CC-BY-NC-4.0",
        source=f"https://huggingface.co/SWivid/F5-TTS/tree/{COMMIT}",
        vocoder="MIT",
        vocoder_source=f"https://huggingface.co/charactr/vocos-mel-24khz/tree/{COMMIT}",
        note=f"weights {MODEL}: {NOT_FOR_MONEY}; not a hash known here; "
        "vocoder pytorch_model.bin: not a hash known here",
    )


@pytest.mark.parametrize(("server", "gets"), [
    ({"breaks": [300_000, 200_001]}, ["bytes=0-", "bytes=300000-", "bytes=500001-"]),
    ({"breaks": [300_000], "ranges": False}, ["bytes=0-", "bytes=300000-"]),
    ({"statuses": [503, 429, 403]}, ["bytes=0-"] * 4),
])  # fmt: skip
def test_a_broken_download_goes_on(server: dict[str, Any], gets: list[str], hub: Hub, tmp_path: Path) -> None:
    """A server without ranges gets the download from the start; a busy server gets the same request again."""
    vars(hub).update(server)
    assert get(hub, tmp_path).checkpoint.read_bytes() == BYTES
    assert hub.gets(MODEL) == gets


def test_an_interrupted_run_is_continued_by_the_next(hub: Hub, tmp_path: Path) -> None:
    hub.breaks = [400_000] + [0] * fetching.MAX_FRUITLESS
    with pytest.raises(FetchError, match="ended after 400000 of 768000 bytes; run it again to continue"):
        get(hub, tmp_path)
    assert not (tmp_path / "F5TTS_v1_Base" / MODEL).exists()
    hub.asked.clear()
    hub.breaks = []
    found = get(hub, tmp_path)
    assert found.checkpoint.read_bytes() == BYTES
    assert hub.gets(MODEL) == ["bytes=400000-"]
    assert not list(tmp_path.rglob("*.part"))


def test_an_existing_file_is_fetched_again_only_if_damaged(hub: Hub, tmp_path: Path) -> None:
    path = get(hub, tmp_path).checkpoint
    hub.asked.clear()
    get(hub, tmp_path)
    assert {method for method, _, _ in hub.asked} == {"HEAD"}
    path.write_bytes(BYTES[:-1] + b"x")
    get(hub, tmp_path)
    assert path.read_bytes() == BYTES


@pytest.mark.parametrize(("server", "message"), [
    ({"statuses": [503] * 9}, r"model_1250000\.safetensors: the hub answers 503 .*; run it again"),
    ({"wrong_hash": True}, "hash is not the one that the hub states; run it again"),
])  # fmt: skip
def test_a_busy_or_wrong_server_is_given_up(
    server: dict[str, Any], message: str, hub: Hub, tmp_path: Path
) -> None:
    vars(hub).update(server)
    with pytest.raises(FetchError, match=message):
        get(hub, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_errors_are_one_line_that_says_why(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        FetchError, match="F5TTS_Small: no known weights have this architecture; known are F5"
    ):
        fetch("F5TTS_Small", tmp_path)
    with pytest.raises(FetchError, match=r"F6: unknown weights; known are F5TTS_v1_Base, .*IndicF5"):
        fetch("F6", tmp_path)
    with pytest.raises(FetchError, match=r"the hub cannot be reached at http://127\.0\.0\.1:9/S") as error:
        fetch("F5TTS_v1_Base", tmp_path, endpoint="http://127.0.0.1:9")
    assert "\n" not in str(error.value)
    del hub.files["charactr/vocos-mel-24khz/config.yaml"]
    with pytest.raises(FetchError, match=r"charactr/vocos-mel-24khz/config\.yaml: not found at http"):
        get(hub, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match=r"file/F5TTS_v1_Base/model.*: (Not a directory|File exists)"):
        get(hub, tmp_path / "file")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1, 1, 1000))
    with pytest.raises(FetchError, match=r"needs 1 MiB more, .*/full/F5TTS_v1_Base has 0 MiB free"):
        get(hub, tmp_path / "full")


def test_a_full_disk_keeps_the_part(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urlopen = urllib.request.urlopen

    def filling(*arguments: Any, **options: Any) -> Any:
        answer = urlopen(*arguments, **options)
        blocks = [answer.read(100_000)]

        def read(size: int) -> bytes:
            if blocks:
                return blocks.pop()
            raise OSError(28, "No space left on device")

        answer.read = read
        return answer

    monkeypatch.setattr("urllib.request.urlopen", filling)
    with pytest.raises(FetchError, match="No space left on device; free space and run it again to continue"):
        get(hub, tmp_path)
    assert [p.stat().st_size for p in tmp_path.rglob("*.part")] == [100_000]


def test_another_file_than_at_first_contact_is_refused(hub: Hub, tmp_path: Path) -> None:
    path = get(hub, tmp_path).checkpoint
    hub.files[WEIGHTS] = BYTES[:-1] + b"x"
    hub.asked.clear()
    with pytest.raises(FetchError, match=r"has changed .* the first download .*licence\.yaml\); remove "):
        get(hub, tmp_path)
    assert hub.gets(MODEL) == []
    assert path.read_bytes() == BYTES
    # A small file, whose hash is no sha256.
    hub.files = FILES | {"SWivid/F5-TTS/F5TTS_v1_Base/vocab.txt": b" \na\nc\n"}
    with pytest.raises(FetchError, match=r"vocab\.txt: has changed"):
        get(hub, tmp_path)
    assert (path.parent / "vocab.txt").read_bytes() == b" \na\nb\n"


def test_gated_weights_say_where_to_accept(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["ai4bharat/IndicF5/model.safetensors"] = BYTES
    hub.files["ai4bharat/IndicF5/checkpoints/vocab.txt"] = b" \na\n"
    hub.gated = "letmein"
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))

    def indic() -> fetching.Fetched:
        return fetch("ai4bharat/IndicF5", tmp_path, endpoint=hub.address)

    with pytest.raises(FetchError, match=r"is gated; accept its terms at .*/ai4bharat/IndicF5 .* HF_TOKEN"):
        indic()
    monkeypatch.setenv("HF_TOKEN", "letmein")
    found = indic()
    assert found.vocoder == found.checkpoint and found.checkpoint.read_bytes() == BYTES
    assert found.licence.weights == found.licence.vocoder == "MIT"
    assert "doubtful" in found.licence.note


def test_a_fetched_checkpoint_is_recognised(hub: Hub, tmp_path: Path) -> None:
    found = get(hub, tmp_path)
    assert recognised(found.checkpoint) is KNOWN["F5TTS_v1_Base"]
    found.checkpoint.with_name("tuned.pt").write_bytes(b"other")
    assert recognised(found.checkpoint.with_name("tuned.pt")) is None


def test_the_address_comes_from_the_environment(hub: Hub, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from export.fetch import fetch; "
    code += "print(fetch('F5TTS_v1_Base', Path(sys.argv[1])).checkpoint)"
    run = finished(sys.executable, "-c", code, tmp_path, HF_ENDPOINT=hub.address)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith("SWivid/F5-TTS: CC-BY-NC-4.0")
    assert Path(lines[-1]).read_bytes() == BYTES
    assert "100%" in run.stderr  # the progress bar


def test_terms_come_from_the_record_or_the_place_or_are_unknown(hub: Hub, tmp_path: Path) -> None:
    found = get(hub, tmp_path)
    assert terms_of(found.checkpoint).licence == "CC-BY-NC-4.0"
    tuned = found.checkpoint.with_name("tuned.safetensors")
    tuned.write_bytes(b"other")
    assert terms_of(tuned).licence == "unknown"
    found.checkpoint.write_bytes(b"other")  # the record is about other bytes, but the place matches
    assert terms_of(found.checkpoint).note == f"{NOT_FOR_MONEY}; recognised by its name, not by its hash"
    elsewhere = tmp_path / "mine" / "model.safetensors"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"other")
    assert licence(elsewhere, elsewhere.parent) == Licence(
        weights="unknown", source="model.safetensors", vocoder="unknown", vocoder_source="model.safetensors"
    )
    assert licence(elsewhere, found.vocoder, weights="CC-BY-4.0") == Licence(
        weights="CC-BY-4.0",
        source="model.safetensors",
        vocoder="MIT",
        vocoder_source=f"https://huggingface.co/charactr/vocos-mel-24khz/tree/{COMMIT}",
        note="weights model.safetensors: as stated by whoever exported the bundle; "
        "vocoder pytorch_model.bin: not a hash known here",
    )


@pytest.mark.parametrize("name", ["vocos-mel-24khz", "bigvgan_v2_24khz_100band_256x"])
def test_a_checkpoint_never_gets_a_vocoders_terms(name: str, tmp_path: Path) -> None:
    for folder in (f"F5TTS_ft_{name}", name, f"{name}/deep/in/it"):
        path = tmp_path / folder / "model_100000.pt"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"a fine-tune")
        assert terms_of(path).licence == licence(path, path.parent).weights == "unknown"


def test_the_exact_name_of_a_folder_identifies_a_vocoder(tmp_path: Path) -> None:
    name = "bigvgan_v2_24khz_100band_256x"
    others = (f"my_{name}", f"{name}/tuned", "F5TTS_Base_bigvgan")
    for folder, expected in ((name, "MIT"), *((other, "unknown") for other in others)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "bigvgan_generator.pt").write_bytes(b"other")
        assert licence(tmp_path / "model.pt", tmp_path / folder).vocoder == expected, folder


def test_stated_terms_of_a_vocoder_precede_recognised_ones(tmp_path: Path) -> None:
    vocoder = tmp_path / "vocos-mel-24khz"
    vocoder.mkdir()
    (vocoder / "pytorch_model.bin").write_bytes(b"other")
    checkpoint = tmp_path / "F5TTS_Base" / "model_1200000.pt"
    found = licence(checkpoint, vocoder)
    assert (found.weights, found.vocoder) == ("CC-BY-NC-4.0", "MIT")
    assert found.note == (
        f"weights model_1200000.pt: {NOT_FOR_MONEY}; recognised by its name, not by its hash; "
        "vocoder pytorch_model.bin: recognised by its name, not by its hash"
    )
    stated = licence(checkpoint, vocoder, vocoder_terms="Apache-2.0")
    assert (stated.weights, stated.vocoder) == ("CC-BY-NC-4.0", "Apache-2.0")
    assert stated.note.endswith("vocoder pytorch_model.bin: as stated by whoever exported the bundle")
