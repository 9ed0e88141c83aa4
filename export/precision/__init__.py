"""Precisions of a traced graph: float32 arithmetic, float32 sums, INT8."""
