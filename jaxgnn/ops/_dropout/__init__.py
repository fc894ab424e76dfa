"""Dropout of rows of values, by a mask of a bit a value."""
