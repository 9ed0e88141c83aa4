"""Contract between the workshop and the device. Imports numpy and PyYAML only.

bundle      the folder that goes from one to the other: manifest, hashes, version rule
graphs      inputs, outputs and axes of each ONNX graph
mel tokens schedule    log-mel, text → ids and time grids, equal to upstream's
fields      strict reading of YAML and JSON into dataclasses
"""
