"""Scripts, and what they share. A package so that no other `scripts` on a path can take its place."""
