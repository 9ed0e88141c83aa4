"""Emilia's tokens: lines of our own, upstream's results for them, and espeak's phones of their English."""
