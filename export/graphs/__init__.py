"""Torch modules of the graphs, and their trace to ONNX: upstream's arithmetic, split by dependence on time.

`modulation` and `condition` run once for a request; `step` runs NFE times, in one of the `forms` of its
`attention`; `vocoders` run at the end. All are built of `parts` and `fourier`.
"""
