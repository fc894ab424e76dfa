"""The user's cache: downloads, and built data sets that are mapped from a file."""
