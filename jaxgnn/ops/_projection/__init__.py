"""Products of node rows and a matrix."""
