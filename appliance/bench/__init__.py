"""Measuring a running daemon from outside, over gRPC."""
