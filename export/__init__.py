"""Workshop: convert official weights to bundles. The only package that imports torch."""

import appliance as appliance  # turns ONNX Runtime's telemetry off before anything here imports the runtime
