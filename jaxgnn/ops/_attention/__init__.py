"""Attention over edges, fused and recomputed."""
