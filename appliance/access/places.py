"""Places that callers share: of connections, requests, uploads. A caller is a token, else an address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class CallerPlace:
    """A connection or request, of which there may be a limited number."""

    caller: str
    is_idle: Callable[[], bool] = lambda: False
    """Returns True while another caller may have the place."""
    close: Callable[[], object] = lambda: None


class CallerPlaces:
    """Limits the places of each caller. Any caller may take a place while more than an eighth of all places
    is free; in the last eighth, only a caller that has fewer places than are free.

    If a caller may take none, the oldest idle place of the caller with the most places is closed, and the
    caller gets it.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._in_use: dict[CallerPlace, None] = {}
        """Places in use, the oldest first."""

    def take(self, place: CallerPlace) -> bool:
        """Take a place. Returns False if the caller can have none."""
        counts = Counter(other.caller for other in self._in_use)
        free, own = self.most - len(self._in_use), counts[place.caller]
        if free <= -(-self.most // 8) and own >= free:
            idle = [one for one in self._in_use if counts[one.caller] >= own and one.is_idle()]
            if not idle:
                return False
            closed = max(idle, key=lambda one: counts[one.caller])
            self.leave(closed)
            closed.close()
        self._in_use[place] = None
        return True

    def leave(self, place: CallerPlace) -> None:
        self._in_use.pop(place, None)


class HttpConnection(CallerPlace):
    """Place of an HTTP connection. It is idle while no request of the connection has a place."""

    def __init__(
        self,
        address: str,
        is_arriving: Callable[[], bool],
        close: Callable[[], object],
        leave: Callable[[], object],
    ) -> None:
        """`is_arriving` returns True if the request's body is still to come. `leave` ends the timer."""
        super().__init__(address, lambda: not self._has_place, close)
        self.is_arriving, self.leave = is_arriving, leave
        self._has_place = False

    @contextmanager
    def holding(self, place: CallerPlace, places: CallerPlaces) -> Iterator[bool]:
        """Hold a place for a request of the connection. Yields False if the caller can have none."""
        if not places.take(place):
            yield False
            return
        self._has_place = True
        try:
            yield True
        finally:
            self._has_place = False
            places.leave(place)
