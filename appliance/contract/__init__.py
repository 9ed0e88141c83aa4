"""Contract between the workshop and the device. Imports numpy and PyYAML only.

bundle    manifest, hashes, version rule
graphs    inputs, outputs and axes of each ONNX graph
mel tokens schedule    log-mel, text → ids and time grids, equal to upstream's
"""
