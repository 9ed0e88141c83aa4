"""A text that is still being written → pieces that can be spoken already."""

from __future__ import annotations

from appliance.text.split import Budgets, Rank, breaks


class Written:
    """Collects text and gives away each clause once it is complete.

    A clause is complete when the character after its end is known, so that "3." may still become "3.5". The
    first piece is the first clause that is long enough, or, where none has ended yet, the words that are
    there; the later ones end with a sentence, or with a clause once they are as long as a first piece may be,
    and never grow beyond the largest.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._text = ""
        self._is_first = True

    def add(self, text: str) -> list[str]:
        """The pieces that are complete with this text."""
        self._text += text
        pieces = []
        while (end := self._end()) is not None:
            pieces.append(self._text[: end[0]].strip())
            self._text = self._text[end[1] :]
            self._is_first = False
        return [piece for piece in pieces if piece]

    def rest(self) -> str:
        """Return the rest, at the end of the input."""
        rest, self._text, self._is_first = self._text.strip(), "", True
        return rest

    def _end(self) -> tuple[int, int] | None:
        """Return the end of the next piece and the start of the one after it; None while it is incomplete."""
        budgets = self._budgets
        limit = budgets.first if self._is_first else budgets.largest
        best = None
        # White space tells as much as any character that comes after it.
        known = f"{self._text}." if self._text[-1:].isspace() else self._text
        for cut in breaks(known):
            size = len(self._text[: cut.end].encode())
            if size > limit:
                break
            if size < budgets.minimum:
                continue
            is_clause = cut.rank >= Rank.CLAUSE
            if cut.rank is Rank.SENTENCE or (is_clause and (self._is_first or size >= budgets.first)):
                return cut.end, cut.next
            if best is None or cut.rank >= best.rank:
                best = cut
        if best is None:
            return None
        are_words = self._is_first and best.rank >= Rank.SPACE
        is_full = len(self._text.encode()) > limit
        return (best.end, best.next) if are_words or is_full else None
