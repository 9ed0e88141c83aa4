"""GPT-SoVITS' interface: requests from the sources of its clients, against gRPC's samples.

Its server is RVC-Boss/GPT-SoVITS, api_v2.py, 48b1a0169a28.
"""

import io
import json
import wave
from urllib.parse import quote

import numpy as np
import pytest
import soundfile

from appliance.audio.marking import MARK
from appliance.audio.tags import KEY, info_chunk
from appliance.client import Client
from appliance.gateway.sovits import name_in
from tests.gateway.conftest import Gateway, read, request

pytestmark = pytest.mark.once

TEXT = "One, two, three."
# xinnan-tech/xiaozhi-esp32-server, main/xiaozhi-server/core/providers/tts/gpt_sovits_v2.py, da568695eb14,
# posts these fields. Its seed is −1; the tests fix the seed in all requests.
XIAOZHI = json.loads("""{
    "text": "One, two, three.", "text_lang": "auto", "ref_audio_path": "config/assets/Ann.wav",
    "aux_ref_audio_paths": [], "prompt_text": "", "prompt_lang": "zh", "top_k": 5, "top_p": 1,
    "temperature": 1, "text_split_method": "cut0", "batch_size": 1, "batch_threshold": 0.75,
    "split_bucket": true, "return_fragment": false, "speed_factor": 1.0, "streaming_mode": false,
    "seed": 7, "parallel_infer": true, "repetition_penalty": 1.35
}""")
# Open-LLM-VTuber/Open-LLM-VTuber, src/open_llm_vtuber/tts/gpt_sovits_tts.py with its
# config_templates/conf.default.yaml, 19b58b1f6c01, sends a GET.
VTUBER = (
    "text=One%2C+two%2C+three.&text_lang=zh&ref_audio_path=C%3A%5Cvoices%5CAnn.mp3&prompt_lang=zh&prompt_text="
    "&text_split_method=cut5&batch_size=1&media_type=wav&streaming_mode=false&seed=7"
)
# AstrBotDevs/AstrBot, astrbot/core/provider/sources/gsv_selfhosted_source.py, 02fbbf4629af, sends a GET with
# its whole configuration, as text in lower case.
ASTRBOT = (
    "ref_audio_path=%2Fvoices%2Fann.wav&prompt_text=&prompt_lang=zh&aux_ref_audio_paths=&text_lang=zh&top_k=5"
    "&top_p=1.0&temperature=1.0&text_split_method=cut3&batch_size=1&batch_threshold=0.75&split_bucket=true"
    "&speed_factor=1&fragment_interval=0.3&streaming_mode=false&seed=7&parallel_infer=true"
    "&repetition_penalty=1.35&media_type=wav&text=One%2C+two%2C+three."
)


def said(gateway: Gateway, *, stream: bool = False, rate: int | None = None) -> bytes:
    with Client(gateway.daemon.address) as client:
        call = (TEXT, "ann")
        if stream:
            return client.stream(*call, encoding="pcm16", seed=7, rate=rate).reply().audio
        return client.speak(*call, encoding="wav", seed=7).audio


def test_a_posted_request_is_a_whole_file(gateway: Gateway) -> None:
    answer = gateway.ask("/tts", XIAOZHI)
    assert (answer.status, answer.headers["content-type"]) == (200, "audio/wav")
    assert answer.body == said(gateway) and "x-ignored-parameters" not in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.body)
    with wave.open(io.BytesIO(answer.body)) as file:
        assert answer.body[44 + file.getnframes() * 2 :] == info_chunk(MARK)
    assert answer.headers[KEY] == MARK


@pytest.mark.parametrize("query", [VTUBER, ASTRBOT, VTUBER.replace("=false", "=0")])
def test_a_query_is_the_same(gateway: Gateway, query: str) -> None:
    answer = gateway.ask(f"/tts?{query}")
    assert answer.body == said(gateway) and "x-ignored-parameters" not in answer.headers


def test_letters_in_an_address_need_no_percent_signs(gateway: Gateway) -> None:
    """Shell scripts send such letters unescaped; curl and GPT-SoVITS' server accept them."""
    path = "/tts?text=你好there&ref_audio_path=ann.wav&seed=7"
    with gateway.connected(request(path, method="GET")) as connection:
        raw = read(connection)
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    assert body == gateway.ask(quote(path, safe="/?=&.")).body


@pytest.mark.parametrize("streamed", ["true", "1", "3"])
def test_replies_are_streamed_while_they_are_synthesised(gateway: Gateway, streamed: str) -> None:
    asked = ASTRBOT.replace("=wav", "=raw").replace("mode=false", f"mode={streamed}")
    answer = gateway.ask(f"/tts?{asked}")
    assert (answer.headers["content-type"], answer.headers["content-length"]) == ("audio/raw", None)
    assert answer.body == said(gateway, stream=True, rate=32_000)


def test_ogg(gateway: Gateway) -> None:
    answer = gateway.ask("/tts", {**XIAOZHI, "media_type": "ogg"})
    samples, rate = soundfile.read(io.BytesIO(answer.body))
    assert (answer.headers["content-type"], rate) == ("audio/ogg", 24_000) and np.abs(samples).max() > 0.01


@pytest.mark.parametrize(("change", "status", "message"), [
    ({"text": None}, 400, "text: is missing"), ({"ref_audio_path": "/etc/passwd"}, 404, "passwd"),
    ({"ref_audio_path": "../../voices/bob/audio.wav"}, 404, "audio"),
    ({"media_type": "aac"}, 400, "nothing on this machine writes AAC"),
    ({"speed_factor": "fast"}, 400, "speed_factor: must be a number from 0.25 to 4"),
    ({"streaming_mode": "perhaps"}, 400, "streaming_mode: must be true or false"),
    ({"text": "x" * 4_097}, 400, "text: has 4097 characters"),
])  # fmt: skip
def test_errors_in_its_shape(gateway: Gateway, change: dict[str, object], status: int, message: str) -> None:
    answer = gateway.ask("/tts", {**XIAOZHI, **change})
    assert answer.status == status and message in answer.json["message"], answer.body
    assert set(answer.json) == {"message", "Exception"}


def test_requests_that_would_change_the_server_are_refused(gateway: Gateway) -> None:
    """AstrBot requests weights if its settings name some. It logs the refusal and goes on."""
    for path in ("/control?command=exit", "/set_gpt_weights?weights_path=x", "/set_refer_audio"):
        answer = gateway.ask(path)
        assert answer.status == 404 and "not offered" in answer.json["message"]
    assert gateway.ask("/livez").status == 200


@pytest.mark.parametrize(("path", "name"), [
    ("ann", "ann"), ("a/b/Ann.v2.wav", "ann.v2"), ("C:\\x\\ann.mp3", "ann"), ("/", ""), (".wav", ".wav"),
])  # fmt: skip
def test_a_path_names_a_voice(path: str, name: str) -> None:
    assert name_in(path) == name
