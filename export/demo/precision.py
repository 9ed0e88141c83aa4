"""In which numbers to train: bfloat16 where the processor has it, else float32."""

from __future__ import annotations

import torch


def autocast(device: str) -> torch.autocast:
    """For the forward pass. A CPU that only emulates bfloat16 is half as fast with it.

    Without torch's cache of weights: all threads share it and either empties it, so that the sums of a run
    whose parts are worked on abreast would depend on which was first.
    """
    native = device != "cpu" or any(
        torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16")
    )
    return torch.autocast(device, torch.bfloat16, enabled=native, cache_enabled=False)
