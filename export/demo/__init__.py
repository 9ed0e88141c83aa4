"""The demo voice: a corpus from free engines, a small model trained on it, its shipping."""
