"""Rules by which makers prepare references: what F5-TTS and ZipVoice do with a recording and its transcript.

F5 trims a recording as it is and converts its rate last; ZipVoice (`zipvoice/utils/infer.py` at 2f7326f)
converts it first, to 16 bits, and takes the level of all channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.contract.bundle import Conditioning
from appliance.request import MAX_REFERENCE_S
from appliance.text.pieces.ended import ended


@dataclass(frozen=True)
class ConditioningRule:
    name: Conditioning
    edge_dbfs: float
    """Edges are silent below it."""
    edge_ms: int
    """Most silence that is kept at either edge."""
    tail_ms: int
    """Silence that is appended, so that no reply repeats the reference's end."""
    advised_s: tuple[int, int]
    """Speech outside of it is warned of."""
    too_long: str
    """Effect of more."""
    complete: Callable[[str], str]
    """Transcript with its ending."""


def complete_transcript(transcript: str) -> str:
    """Add F5's ending: ". " or "。"."""
    if transcript.endswith((". ", "。")):
        return transcript
    return transcript + (" " if transcript.endswith(".") else ". ")


F5 = ConditioningRule("f5", -42.0, 0, 50, (3, MAX_REFERENCE_S), "", complete_transcript)
ZIPVOICE = ConditioningRule(
    "zipvoice", -50.0, 100, 200, (1, 10), "replies take longer and may sound worse", ended
)
RULES: dict[Conditioning, ConditioningRule] = {rule.name: rule for rule in (F5, ZIPVOICE)}
