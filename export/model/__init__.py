"""Reference models in plain torch, against which every exported graph is measured.

Axes: G guidance rows (conditional, unconditional), N frames (reference and generated), T tokens, M mels, D
model width, H heads. A model computes one unpadded sentence: no batch axis and no padding masks.
"""
