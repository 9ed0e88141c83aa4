"""Averages of weights: along a training, and of several ends of it. What is judged and shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class Average:
    """Weights that follow a model's; young averages forget faster, so that the random start is soon gone."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self._state = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model, as it is after `step` (from 0)."""
        keep = min(self.decay, (1 + step) / (10 + step))
        now = model.state_dict()
        moving = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_([self._state[n] for n in moving], [now[n] for n in moving], 1 - keep)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged weights under the model's names."""
        return self._state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up what `state_dict` gave."""
        for name, value in state.items():
            self._state[name].copy_(value)


def mean(ends: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The middle of weights that were trained from one another (model soups, arXiv 2203.05482).

    Raises ValueError: they are not of one shape.
    """
    first = {name: value.shape for name, value in ends[0].items()}
    if any({name: value.shape for name, value in end.items()} != first for end in ends):
        raise ValueError("weights of different models have no mean")
    return {name: torch.stack([end[name].float() for end in ends]).mean(dim=0) for name in first}
