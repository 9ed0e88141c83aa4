"""Tables of clocks and findings, for terminals."""
