"""Recovers the demo voice's weights from its bundle."""
