"""What the workshop and the device agree on. Imports numpy and PyYAML only."""
