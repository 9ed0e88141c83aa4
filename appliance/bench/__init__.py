"""Measurements of the daemon by its clients; README.md says which command answers which question."""


class BenchError(Exception):
    """A measurement that cannot be made; the message is one line for a person."""
