"""Weights: which files a checkpoint has, what is in them, and their licence."""
