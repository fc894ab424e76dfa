"""Normalization of rows by kernels."""
