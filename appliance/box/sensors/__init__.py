"""Temperatures, power, over-current events, cooling, memory and file systems."""
