"""Aggregation with Gaussian edge weights."""
