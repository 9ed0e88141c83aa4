"""Texts in pieces, one per segment."""
