"""Mini-batches: sampled neighborhoods of a graph, and many graphs."""
