import appliance as appliance  # turns ONNX Runtime's telemetry off before a test imports the runtime
