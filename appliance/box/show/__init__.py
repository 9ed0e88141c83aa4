"""Clocks and findings as a person reads them."""
