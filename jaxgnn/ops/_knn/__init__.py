"""Nearest neighbors."""
