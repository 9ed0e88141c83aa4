"""Readings beside the clocks: temperatures, power, over-current events, cooling, memory, file systems."""
