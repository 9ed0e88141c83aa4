"""Texts as the tokens of a bundle."""
