"""Peaks of what a half-precision graph computes in float16, measured in the torch reference.

ONNX Runtime's CPU keeps sums in float32 between casts, so a product beyond float16's range shows in no error
that is measured there; on a GPU everything after it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from appliance.engine.condition import padded_mel
from export.model.dit import DiT
from export.model.vocos import ConvNeXtBlock
from export.oracles import Case, FloatArray, Peak, Trajectory

IN_FLOAT32 = frozenset({"time_embed", "attn_norm", "norm_out", "grn", "rotary_embed", "head"})
"""Modules, with what is in them, that every precision computes in float32."""


@torch.inference_mode()
def measure(model: DiT, decode: nn.Module, solved: Sequence[Trajectory], short: Case) -> list[Peak]:
    """Peaks of each module, the largest of a graph first, over both ends of lengths and of times."""
    found: dict[tuple[str, str], float] = {}

    def note(graph: str, where: str, tensor: Tensor) -> None:
        low, high = (float(end) for end in torch.aminmax(tensor))
        peak = max(-low, high)
        found[graph, where] = max(found.get((graph, where), 0.0), peak if math.isfinite(peak) else math.inf)

    def graph_of(name: str) -> str:
        return "condition" if name.startswith("text_embed") else "step"

    with watched(model, lambda name, tensor: note(graph_of(name), name, tensor)):
        for case, points in [(one.case, _ends(one)) for one in solved] + [(short, [(0.0, short.noise)])]:
            cond = torch.from_numpy(padded_mel(case.cond, case.frames))
            text = model.text_embed(torch.from_numpy(case.ids).long(), case.frames)
            for time, latents in points:
                at = (torch.tensor(value, dtype=torch.float32) for value in (time, case.guidance))
                model(torch.from_numpy(latents), cond, text, *at)
    with watched(decode, lambda name, tensor: note("vocoder", name, tensor)):
        for one in solved:
            decode(torch.from_numpy(one.mel))
    return sorted((Peak(*place, value) for place, value in found.items()), key=lambda p: (p.graph, -p.value))


def _ends(solved: Trajectory) -> list[tuple[float, FloatArray]]:
    """(time, latents) of the first and the last step."""
    times = [float(time) for time in solved.times[:-1]]
    return [(times[place], solved.latents[place]) for place in (0, -1)]


@contextmanager
def watched(model: nn.Module, note: Callable[[str, Tensor], None]) -> Iterator[None]:
    """`note` gets a module's name with each of its inputs and outputs, and with attention's scaled scores."""
    blocks = (name for name, module in model.named_modules() if isinstance(module, ConvNeXtBlock))
    scaled = {f"{name}.pwconv2" for name in blocks}  # by gamma, which is in the weight that is exported
    handles, inside = [], [""]

    def note_first(name: str, tensors: Any) -> None:
        tensor = tensors[0] if isinstance(tensors, tuple) else tensors  # others are times and angles
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
            note(name, tensor)

    def before(name: str) -> Callable[[nn.Module, Any], None]:
        def enter(module: nn.Module, given: Any) -> None:
            inside[0] = name
            note_first(name, given)

        return enter

    def after(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, given, made: note_first(name, made)

    for name, module in model.named_modules():
        if name and name not in scaled and IN_FLOAT32.isdisjoint(name.split(".")):
            handles.append(module.register_forward_pre_hook(before(name)))
            handles.append(module.register_forward_hook(after(name)))
    try:
        with _Scores(lambda scores: note(f"{inside[0].rpartition('.')[0]} scores", scores)):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Scores(TorchFunctionMode):
    """Computes what scaled_dot_product_attention multiplies before its softmax."""

    def __init__(self, note: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            q, k = args[:2]
            for head_q, head_k in zip(q.flatten(0, 1), k.flatten(0, 1), strict=True):  # one at a time: (N, N)
                self._note(head_q @ head_k.mT / math.sqrt(q.shape[-1]))
        return function(*args, **(kwargs or {}))
