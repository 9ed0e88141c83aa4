"""The demo voice: synthetic corpus, training of a small model, export for shipping."""
