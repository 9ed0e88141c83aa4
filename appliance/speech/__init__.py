"""Preparation of speech: what a request asks for becomes segments that the engine can make."""
