"""Mixed-precision policy: bfloat16 if the processor has it, else float32."""

from __future__ import annotations

import torch


def autocast(device: str) -> torch.autocast:
    """Autocast context of the forward pass; emulated bfloat16 halves the speed of a CPU."""
    has = torch.cpu.get_capabilities()
    native = device != "cpu" or any(has.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.autocast(device, torch.bfloat16, enabled=native)
