import os

# From 1.31 on ONNX Runtime reports to its maker, unless this is set when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
