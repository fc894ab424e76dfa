"""Graphs made of graphs, and features of nodes and edges by their place in one."""
