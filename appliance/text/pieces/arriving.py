"""A text that arrives bit by bit → complete pieces."""

from __future__ import annotations

from appliance.text.pieces.split import Budgets, Rank, breaks, finished


class TextSplitter:
    """Collects text and returns each piece once it is complete.

    A clause is complete when the next character is known, since "3." may become "3.5"; a tag, a direction and
    a number with its unit when they have ended. The first piece is the first clause that is long enough or,
    before any ends, the words so far. Later ones end with a sentence, or with a clause from `budgets.first`
    on.
    """

    def __init__(self, budgets: Budgets, languages: tuple[str, ...] = ()) -> None:
        """`languages` are codes, whose abbreviations end no sentence."""
        self._budgets, self._languages = budgets, languages
        self._text = ""
        self._is_first = True

    def add(self, text: str) -> list[str]:
        """Pieces completed by this text."""
        self._text += text
        pieces = []
        while (end := self._end()) is not None:
            pieces.append(self._text[: end[0]].strip())
            self._text = self._text[end[1] :]
            self._is_first = False
        return [piece for piece in pieces if piece]

    def rest(self) -> str:
        """Rest at the end of the input."""
        rest = self._text.strip()
        self._text = ""
        self._is_first = True
        return rest

    def _end(self) -> tuple[int, int] | None:
        """(end, start of the next piece); None while it is incomplete."""
        budgets = self._budgets
        limit = budgets.first if self._is_first else budgets.largest
        best = None
        # White space completes a clause as any following character would.
        known = f"{self._text}." if self._text[-1:].isspace() else self._text
        most = finished(self._text)
        for cut in breaks(known, self._languages):
            if cut.end > most:
                break
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
