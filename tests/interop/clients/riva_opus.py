"""Riva's Opus framing, decoded by FFmpeg's own decoder, which reads no Ogg: `python riva_opus.py ADDRESS`."""

import json
import struct
import sys

import av
import numpy as np
import riva.client
from riva.client.proto.riva_audio_pb2 import AudioEncoding

service = riva.client.SpeechSynthesisService(riva.client.Auth(None, False, sys.argv[1]))
text = "Hello, chat. This is a stream."
options = {"voice_name": "F5.ann", "sample_rate_hz": 48000}
replies = service.synthesize_online(text, encoding=AudioEncoding.OGGOPUS, **options)
framed = b"".join(reply.audio for reply in replies)
decoder = av.CodecContext.create("opus", "r")
decoder.sample_rate, decoder.layout = 48000, "mono"
samples, packets = [], 0
while framed:
    (length,) = struct.unpack_from("<i", framed)
    packets += 1
    for frame in decoder.decode(av.Packet(framed[4 : 4 + length])):
        samples.append(frame.to_ndarray()[0].astype(np.float64) / (32768 if "16" in frame.format.name else 1))
    framed = framed[4 + length :]
decoded = np.concatenate(samples)
print(json.dumps({"packets": packets, "seconds": len(decoded) / 48000, "peak": float(abs(decoded).max())}))
