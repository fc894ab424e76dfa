"""Aggregation over a sample of each row's edges."""
