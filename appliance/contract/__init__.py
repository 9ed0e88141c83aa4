"""Contract between the workshop and the device. Imports numpy and PyYAML only."""
