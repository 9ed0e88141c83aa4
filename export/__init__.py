"""Workshop: convert official weights to bundles. The only package that imports torch."""

import os

import appliance as appliance  # turns ONNX Runtime's telemetry off before anything here imports the runtime

# huggingface_hub reads it when it is imported, and would tell the hub torch's version and who runs it.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
