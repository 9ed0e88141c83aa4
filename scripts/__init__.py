"""Scripts, and their shared code. It is a package so that no other `scripts` on the path can replace it."""
