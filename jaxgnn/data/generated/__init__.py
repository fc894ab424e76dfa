"""Data that no file holds: random graphs, nearest neighbors, the embedded digits."""
