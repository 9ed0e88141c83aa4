"""Limits of a request that configuration and contract share. Imports nothing: every command reads them."""

MAX_NFE = 64
MAX_GUIDANCE = 10.0
MAX_GAIN_DB = 20.0
"""Largest gain of a request, and of a channel."""
