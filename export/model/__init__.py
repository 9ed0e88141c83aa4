"""The reference models in plain torch: what every exported graph is measured against.

Axes: G guidance rows (conditional, then unconditional), N frames (reference and generated), T tokens, M mels,
D model width, H heads. One sentence at a time, unpadded: no batch axis, no masks for padding.
"""
