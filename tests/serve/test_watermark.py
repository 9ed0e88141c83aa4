"""A daemon whose samples have a watermark, by a network of random weights."""

import numpy as np
import pytest

from appliance.client import Client
from appliance.engine.watermark import Watermark
from tests.harness.daemons import ROOT, Shared
from tests.serve.test_daemon import rewrite

pytestmark = [pytest.mark.slow, pytest.mark.once]

FOLDER = ROOT / "tests" / "tiny" / "watermark"
AS_MADE = {"loudness_lufs": None}


def test_a_reply_is_marked_whole_streamed_cached_or_reloaded(shared_box: Shared, bundles_box: Shared) -> None:
    made = {}
    for folder, kind in ((None, shared_box), (str(FOLDER), bundles_box)):
        with kind.lent(audio=AS_MADE) as box, Client(box.address) as client:
            assert box.config["audio"].get("watermark") == folder
            how = {"seed": 3, "encoding": "pcm16"}
            streamed = client.stream("Hello there.", "ann", **how).reply(lambda _: None).audio
            again = [client.speak("Hello there.", "ann", **how).audio for _ in range(2)]
            assert again == [streamed] * 2
            made[folder] = np.frombuffer(streamed, "<i2") / np.float32(32_767)
            if folder is not None:
                rewrite(box, audio={"watermark": None})
                box.until("the changes in audio.watermark need a restart")
                assert client.speak("Hello there.", "ann", **how).audio == streamed
    expected = Watermark(FOLDER, 1).embed(made[None])
    assert np.abs(expected - made[None]).max() > 50 / 32_767
    assert made[str(FOLDER)] == pytest.approx(expected, abs=4 / 32_767)
