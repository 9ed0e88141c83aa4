"""Preparation of speech: turns a caller's wish into segments for the engine."""
