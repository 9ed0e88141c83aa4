"""Torch modules of the graphs, and their trace to ONNX."""
