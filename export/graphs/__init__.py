"""Torch modules of the graphs, and their trace to ONNX: upstream's arithmetic, split by dependence on time.

`modulation` and `condition` run once a request, `step` NFE times in one of the `forms` of its `attention`,
`vocoders` at the end; `parts` and `fourier` are what they are made of.
"""
