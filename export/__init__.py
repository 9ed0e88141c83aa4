"""Exporter: converts official and own weights to bundles. The only package that imports torch."""

import os

import appliance as appliance  # switches ONNX Runtime's telemetry off before anything here imports it

# huggingface_hub reads this at its import. Otherwise it would report torch's version and the user to the hub.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
