"""Proof of a bundle: what torch and upstream make, and how far the graphs are from it."""
