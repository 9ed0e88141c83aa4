"""Budget of a text: the number of bytes for which a reference leaves frames."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.contract.bundle import Manifest
from appliance.request import Reference, Segmentation
from appliance.text.pieces.split import Budgets, chunk_text, cut_to_fit, size_of, split_low_latency

WINDOW_S = 22.0
"""Seconds of reference and speech in one pass of upstream. The models were trained on up to 30 s."""
SHORT_TEXT_BYTES = 10
"""Size in bytes below which a text is spoken more slowly."""
LONGEST_PIECE_S = 8.0
"""Longest segment of LOW_LATENCY, in seconds. Longer segments delay other requests more, because a step
cannot be interrupted.
"""


@dataclass(frozen=True)
class TextBudget:
    """Sizes, in bytes of the text, that one reference allows."""

    reference: Reference
    manifest: Manifest
    speed: float
    ratio: float
    """Bytes of the text that last as long as a byte of the transcript."""

    @property
    def languages(self) -> tuple[str, ...]:
        return self.manifest.text.languages

    @property
    def reference_s(self) -> float:
        return len(self.reference.features.samples) / self.manifest.mel.sample_rate_hz

    @property
    def reference_frames(self) -> int:
        return self.manifest.mel.reply_begins(len(self.reference.features.samples))

    @property
    def pace(self) -> float:
        """Bytes of text that the voice speaks in a second."""
        return size_of(self.reference.transcript) / self.reference_s * self.speed * self.ratio

    @property
    def longest(self) -> int:
        """Most bytes of text that fit into the bundle's `max_frames` after the reference."""
        manifest = self.manifest
        return int((manifest.max_frames / manifest.mel.frames_per_second - self.reference_s) * self.pace)

    @property
    def window(self) -> int:
        """Most bytes that upstream puts into one pass."""
        transcript = size_of(self.reference.transcript)
        return int(transcript / self.reference_s * (WINDOW_S - self.reference_s) * self.speed * self.ratio)

    @property
    def budgets(self) -> Budgets:
        """Sizes of pieces for this voice."""
        # `minimum`: a shorter piece would be slowed.
        return Budgets.at_pace(
            self.pace,
            minimum=SHORT_TEXT_BYTES,
            largest=min(self.window, self.longest, int(LONGEST_PIECE_S * self.pace)),
            reference=int(size_of(self.reference.transcript) * self.ratio * self.speed),
        )

    def split(self, text: str, how: Segmentation) -> list[str]:
        """Pieces of a text, none longer than the model allows."""
        if how is Segmentation.UPSTREAM:
            pieces = chunk_text(text, self.window)
        else:
            pieces = split_low_latency(text, self.budgets, self.languages)
        # A clause may exceed upstream's window, and a link any piece, but neither may exceed `max_frames`.
        if self.longest < SHORT_TEXT_BYTES:  # no speech fits, and the planner refuses
            return pieces
        return [part for piece in pieces for part in cut_to_fit(piece, self.longest, self.languages)]
