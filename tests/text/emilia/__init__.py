"""Emilia's tokens: lines of our own, what upstream makes of them, and what espeak said of their English."""
