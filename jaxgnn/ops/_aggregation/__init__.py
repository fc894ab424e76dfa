"""Aggregation: SpMM, SDDMM, edges and segments."""
