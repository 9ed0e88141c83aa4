"""Limits of a request that configuration and contract share. Imports nothing: every command reads them."""

MAX_NFE = 64
MAX_GUIDANCE = 10.0
