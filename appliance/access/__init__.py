"""Access of callers: tokens by role, certificates, places."""
