"""Rules for preparing references: what F5-TTS and ZipVoice do with a recording and its transcript.

F5 trims a recording at its own rate, and converts the rate last. ZipVoice (`zipvoice/utils/infer.py` at
2f7326f) converts first, to 16 bits, and computes the level over all channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.contract.bundle import Conditioning
from appliance.text.pieces.ended import ended


@dataclass(frozen=True)
class ConditioningRule:
    """Preparation of a reference, as in a project's own program."""

    name: Conditioning
    edge_dbfs: float
    """Level in dBFS below which the edges of a recording count as silent."""
    edge_ms: int
    """Longest silence that stays at either edge, in milliseconds."""
    tail_ms: int
    """Silence that is appended, in milliseconds, so that no reply repeats the reference's end."""
    advised_s: tuple[int, int]
    """Speech outside these seconds gives a warning."""
    complete: Callable[[str], str]
    """Completes a transcript with its ending."""


def complete_transcript(transcript: str) -> str:
    """Transcript with F5's ending, ". " or "。"."""
    if transcript.endswith((". ", "。")):
        return transcript
    return transcript + (" " if transcript.endswith(".") else ". ")


F5 = ConditioningRule("f5", -42.0, 0, 50, (3, 8), complete_transcript)
ZIPVOICE = ConditioningRule("zipvoice", -50.0, 100, 200, (1, 10), ended)
RULES: dict[Conditioning, ConditioningRule] = {rule.name: rule for rule in (F5, ZIPVOICE)}
