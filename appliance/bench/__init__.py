"""Measurements of the daemon by its clients; README.md says which command answers which question."""


class BenchError(Exception):
    """A measurement that is impossible. The message is one readable line."""
