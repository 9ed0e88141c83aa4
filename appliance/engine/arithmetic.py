"""How a graph computes, where its usual engine on a device is wrong."""

from __future__ import annotations

import enum

from appliance.contract.bundle import FLOAT32, FLOAT32_SUMS, Manifest


class Arithmetic(enum.Enum):
    """Answers of the gate, in the order in which they are tried: each costs more time than the one before."""

    FLOAT32_SUMS = "float32 sums"
    """Products of float16 numbers, summed in float32."""
    TF32 = "TF32"
    """Products of 10-bit mantissas, all else in float32."""
    FLOAT32 = "float32"

    @property
    def variant(self) -> str:
        """The bundle's variant that holds its graphs."""
        return FLOAT32_SUMS if self is Arithmetic.FLOAT32_SUMS else FLOAT32


def safer(manifest: Manifest, graph: str, now: Arithmetic | None) -> Arithmetic | None:
    """The next answer for a graph that is wrong in `now` (None: as exported); None without one."""
    answers: list[Arithmetic] = [*Arithmetic]
    for answer in answers[answers.index(now) + 1 if now else 0 :]:
        if manifest.precision == "fp32" and answer is Arithmetic.TF32:
            continue  # it would be wrong by design
        if graph in manifest.variants.get(answer.variant, {}):
            return answer
    return None
