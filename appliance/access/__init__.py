"""Who may call: tokens, certificates."""
