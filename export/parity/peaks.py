"""Peaks of the values that a half-precision graph computes in float16, measured in the torch reference.

ONNX Runtime's CPU keeps sums in float32 between casts, so no error measured there shows a product beyond
float16's range. On a GPU everything after such a product is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from appliance.engine.condition import padded_mel
from export import progress
from export.model.dit import DiT
from export.model.vocos import ConvNeXtBlock
from export.parity.oracles import Case, FloatArray, Peak, Trajectory

IN_FLOAT32 = frozenset({"time_embed", "attn_norm", "norm_out", "grn", "rotary_embed", "head"})
"""Modules, including their submodules, that every precision computes in float32."""


@torch.inference_mode()
def measure(model: DiT, decode: nn.Module, solved: Sequence[Trajectory], short: Case) -> list[Peak]:
    """Measure the peak of each module over short and long cases, and over the first and last steps. The
    largest peak of a graph comes first.
    """
    peaks = Peaks()
    with watched(model, peaks.noting("step", {"text_embed": "condition"})):
        for case, time, latents in points(solved, short):
            cond = torch.from_numpy(padded_mel(case.cond, case.frames))
            text = model.text_embed(torch.from_numpy(case.ids).long(), case.frames)
            at = (torch.tensor(value, dtype=torch.float32) for value in (time, case.guidance))
            model(torch.from_numpy(latents), cond, text, *at)
            progress.did(case.frames)
    return peaks.with_vocoder(decode, solved)


class Peaks:
    """Collects the largest magnitude at each module of a graph."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], float] = {}

    def noting(self, graph: str, others: Mapping[str, str] = MappingProxyType({})) -> Callable[..., None]:
        """Callback for `watched`. `others`: beginning of a module's name → graph of that module."""

        def note(where: str, tensor: Tensor) -> None:
            own = next((other for begin, other in others.items() if where.startswith(begin)), graph)
            low, high = (float(end) for end in torch.aminmax(tensor))
            peak = max(-low, high)
            before = self._values.get((own, where), 0.0)
            self._values[own, where] = max(before, peak if math.isfinite(peak) else math.inf)

        return note

    def with_vocoder(self, decode: nn.Module, solved: Sequence[Trajectory]) -> list[Peak]:
        """All peaks, including the vocoder's. The largest of a graph comes first."""
        with watched(decode, self.noting("vocoder")):
            for one in solved:
                decode(torch.from_numpy(one.mel))
        peaks = (Peak(*place, value) for place, value in self._values.items())
        return sorted(peaks, key=lambda peak: (peak.graph, -peak.value))


def points(solved: Sequence[Trajectory], short: Case) -> Iterator[tuple[Case, float, FloatArray]]:
    """Yields (case, time, latents): the first and the last step of each solved case, and noise for the short
    case.
    """
    for one in solved:
        for place in (0, -1):
            yield one.case, float(one.times[:-1][place]), one.latents[place]
    yield short, 0.0, short.noise


@contextmanager
def watched(
    model: nn.Module, note: Callable[[str, Tensor], None], in_float32: Collection[str] = IN_FLOAT32
) -> Iterator[None]:
    """Within the block, call `note` with a module's name and each of its inputs and outputs, and attention's
    scaled scores.
    """
    blocks = (name for name, module in model.named_modules() if isinstance(module, ConvNeXtBlock))
    scaled = {f"{name}.pwconv2" for name in blocks}  # by gamma, which is in the exported weight
    handles, inside = [], [""]

    def note_first(name: str, tensors: Any) -> None:
        tensor = tensors[0] if isinstance(tensors, tuple) else tensors  # others are times and angles
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
            note(name, tensor)

    def before(name: str) -> Callable[[nn.Module, Any], None]:
        def enter(module: nn.Module, inputs: Any) -> None:
            inside[0] = name
            note_first(name, inputs)

        return enter

    def after(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: note_first(name, output)

    for name, module in model.named_modules():
        if name and name not in scaled and set(name.split(".")).isdisjoint(in_float32):
            handles.append(module.register_forward_pre_hook(before(name)))
            handles.append(module.register_forward_hook(after(name)))
    try:
        with _Scores(lambda scores: note(f"{inside[0].rpartition('.')[0]} scores", scores)):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Scores(TorchFunctionMode):
    """Computes the product of scaled_dot_product_attention before its softmax."""

    def __init__(self, note: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            q, k = args[:2]
            for head_q, head_k in zip(q.flatten(0, 1), k.flatten(0, 1), strict=True):  # one at a time: (N, N)
                self._note(head_q @ head_k.mT / math.sqrt(q.shape[-1]))
        return function(*args, **(kwargs or {}))
