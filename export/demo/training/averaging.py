"""Weight averages: the moving average of a run, and the mean of several checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class MovingAverage:
    """Exponential moving average. The decay starts low, so the random initialisation is soon forgotten."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self._state = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Update from the model after `step`, counted from 0."""
        keep = min(self.decay, (1 + step) / (10 + step))
        now = model.state_dict()
        moving = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_([self._state[n] for n in moving], [now[n] for n in moving], 1 - keep)

    def state_dict(self) -> dict[str, Tensor]:
        return self._state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            self._state[name].copy_(value)


def mean(ends: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of checkpoints of one run (model soups, arXiv 2203.05482). Raises ValueError if shapes differ."""
    first = {name: value.shape for name, value in ends[0].items()}
    if any({name: value.shape for name, value in end.items()} != first for end in ends):
        raise ValueError("weights of different models have no mean")
    return {name: torch.stack([end[name].float() for end in ends]).mean(dim=0) for name in first}
