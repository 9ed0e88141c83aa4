"""Limits of a request that configuration and contract share.

It imports nothing, because every command loads it.
"""

MAX_NFE = 64
MAX_GUIDANCE = 10.0
MAX_GAIN_DB = 20.0
"""Largest gain of a request, and of a channel, in dB."""
