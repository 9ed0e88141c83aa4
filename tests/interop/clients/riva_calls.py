"""The calls of Riva's talk.py, by the nvidia-riva-client of this environment, old or new.

    python riva_calls.py ADDRESS PROMPT.wav [AUTHORITY CERTIFICATE KEY]

Prints the result of each as JSON.
"""

import inspect
import json
import sys
import time
from pathlib import Path

import grpc
import riva.client
from riva.client.proto import riva_tts_pb2
from riva.client.proto.riva_audio_pb2 import AudioEncoding

address, prompt, *files = sys.argv[1:]
authority, certificate, key = files or (None, None, None)
auth = riva.client.Auth(authority, bool(files), address, [["function-id", "x"]], certificate, key)
service = riva.client.SpeechSynthesisService(auth)
is_new = "custom_configuration" in inspect.signature(service.synthesize_online).parameters
COMMON = {"language_code": "en-US", "sample_rate_hz": 44100, "encoding": AudioEncoding.LINEAR_PCM}
NAMED = {**COMMON, "voice_name": "F5.ann"}
PROMPT = {**COMMON, "zero_shot_audio_prompt_file": Path(prompt), "zero_shot_quality": 20}
PROMPT["audio_prompt_encoding"] = AudioEncoding.ENCODING_UNSPECIFIED


def voices():
    reply = service.stub.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest())
    listed = {}
    for model in reply.model_config:
        subvoices = [voice.split(":")[0] for voice in model.parameters["subvoices"].split(",")]
        names = [model.parameters["voice_name"] + "." + voice for voice in subvoices]
        listed.setdefault(model.parameters["language_code"], {"voices": []})["voices"] += names
    return listed


def unary(text, **options):
    return len(service.synthesize(text, **options).audio)


def stream(text, **options):
    begun, first, size, replies = time.monotonic(), None, 0, 0
    for reply in service.synthesize_online(text, **options):
        if first is None:
            first = time.monotonic() - begun
        size += len(reply.audio)
        replies += 1
    return {"first": first, "bytes": size, "replies": replies}


def refusal(**options):
    try:
        service.synthesize(**{"text": "Hello.", **NAMED, **options})
    except grpc.RpcError as error:
        return [error.code().name, error.details()]


told = {
    "voices": voices(),
    "unary": unary("Hello, chat.", **NAMED),
    "stream": stream("Hello, chat. This is a stream.", **NAMED),
    "unknown prompt": None,
    "wrong voice": refusal(voice_name="foo"),
    "empty": refusal(text=""),
    "rate": refusal(sample_rate_hz=2),
}
try:
    told["unknown prompt"] = stream("Hello, chat.", **PROMPT)
except grpc.RpcError as error:
    told["unknown prompt"] = [error.code().name, error.details()]
told["zero-shot unary"] = unary("Hello, chat.", zero_shot_transcript="Some call me nature.", **PROMPT)
told["zero-shot stream"] = stream("Hello, chat.", **PROMPT)
if is_new:
    told["two lines"] = stream(["Hello, chat.", "Goodbye, chat."], **NAMED)
    words = service.synthesize("Hello, chat.", enable_word_time_offsets=True, **NAMED).meta.words
    told["words"] = [word.word for word in words]
    told["dictionary"] = service.synthesize(
        "Ask Xx.", custom_dictionary={"Xx": "Anna"}, **NAMED
    ).meta.processed_text
print(json.dumps(told))
