"""A daemon whose samples are marked, by a network of random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.client import Client
from appliance.engine.watermark import Watermark
from appliance.errors import Exit
from appliance.serve import daemon
from tests.daemons import ROOT, reference_wav, running, write_config
from tests.serve.test_daemon import rewrite

pytestmark = [pytest.mark.slow, pytest.mark.once]

FOLDER = ROOT / "tests" / "tiny" / "watermark"
AS_MADE = {"loudness_lufs": None}


def test_a_reply_is_marked_whole_streamed_from_memory_and_after_a_reload(tmp_path: Path) -> None:
    made = {}
    for folder in (None, str(FOLDER)):
        place = tmp_path / str(folder is None)
        place.mkdir()
        audio, kept = {**AS_MADE, "watermark": folder}, {"phrases_bytes": 1 << 20}
        with running(place, audio=audio, cache=kept) as box, Client(box.address) as client:
            client.add_voice("ann", reference_wav(), "One two three.")
            how = {"seed": 3, "encoding": "pcm16"}
            streamed = client.stream("Hello there.", "ann", **how).reply(lambda _: None).audio
            again = [client.speak("Hello there.", "ann", **how).audio for _ in range(2)]
            assert again == [streamed] * 2
            made[folder] = np.frombuffer(streamed, "<i2") / np.float32(32_767)
            if folder is not None:
                rewrite(box, audio={"watermark": None})
                box.until("only a restart takes over the changes in audio.watermark")
                assert client.speak("Hello there.", "ann", **how).audio == streamed
    expected = Watermark(FOLDER, 1).embed(made[None])
    assert np.abs(expected - made[None]).max() > 50 / 32_767
    assert made[str(FOLDER)] == pytest.approx(expected, abs=4 / 32_767)


def test_a_folder_that_is_none_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, audio={"watermark": str(tmp_path / "nothing")})
    assert daemon.main(config, []) == Exit.CONFIG
    told = "audio.watermark: must be a folder of `python -m export watermark`, or null: "
    assert told in capsys.readouterr().err
