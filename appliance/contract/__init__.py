"""Contract between the exporter and the device. It imports numpy and PyYAML only."""
