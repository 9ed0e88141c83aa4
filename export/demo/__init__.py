"""The demo voice's weights, out of its bundle."""
