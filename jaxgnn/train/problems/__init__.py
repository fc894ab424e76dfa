"""What a run learns: classes of nodes, of graphs, and links."""
