"""Parity of a bundle: results of torch and of upstream, and the distance of its graphs from them.

Parity is measured before a bundle is published, because a graph with a wrong mask or position still speaks: a
few sentences do not show the fault. So each graph of each variant is compared, on the device's own engine,
with computations that do not use the graphs: the plain torch model in float64, and upstream's package if it
is installed.

Float32 and float16 graphs have bounds on the relative error. INT8's steps have none, because guidance
amplifies their errors and later steps correct them. INT8's samples are judged in units of the distance
between few and many steps (`Coarse`), and by log-mels, because the phase of a waveform is arbitrary.

The price is minutes of computation for each bundle, mostly in float64. Not measured here: the arithmetic of a
GPU (`engine/tensorrt/gate.py` does that on the device), and words (`contact.py` counts wrong ones in
English).
"""

LARGEST_HALF = 65_504.0
"""Largest float16."""
ALLOWED_PEAK = LARGEST_HALF / 4
"""Largest accepted peak: other texts and voices reach higher than the cases do."""
