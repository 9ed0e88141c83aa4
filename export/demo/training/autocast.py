"""Mixed-precision policy: bfloat16 if the processor has it, else float32."""

from __future__ import annotations

import torch


def autocast(device: str) -> torch.autocast:
    """Autocast context of the forward pass; emulated bfloat16 halves the speed of a CPU.

    The weight cache is off: threads share and clear it, so data-parallel sums would depend on timing.
    """
    native = device != "cpu" or any(
        torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16")
    )
    return torch.autocast(device, torch.bfloat16, enabled=native, cache_enabled=False)
