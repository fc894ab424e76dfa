"""Whole runs: one, its folds, its seeds, a chosen k."""
