"""A long stream of Riva's client, which a person ends by Ctrl-C: `python riva_endless.py ADDRESS`."""

import sys

import riva.client

service = riva.client.SpeechSynthesisService(riva.client.Auth(None, False, sys.argv[1]))
text = "One, two, three, four, five, six, seven, eight, nine, ten, and so on until somebody says stop. " * 15
for _ in service.synthesize_online(text, "F5.ann", sample_rate_hz=44100):
    print("sounding", flush=True)
