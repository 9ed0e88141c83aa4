"""Reference models in plain torch, against which every exported graph is measured.

Axes: G guidance rows (conditional, unconditional), N frames (reference and generated), T tokens, M mels,
D model width, H heads. One unpadded sentence at a time: no batch axis and no padding masks.
"""
