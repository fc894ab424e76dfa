"""What a reader returns: sets of nodes and of graphs, edges, splits, citations."""
