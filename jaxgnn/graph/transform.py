r"""Transforms of a graph and its edge weights, and features of nodes and edges from the graph.

They run on the host, once, outside `jax.jit`. Each takes `(graph, weights)` with the weights in
the graph's edge order, not the user's (`Graph.sort_edge_data`), `[E]` or `[E, ...]`, and returns
`(graph, weights)`; no weights stay none. `edge_permutation` of the result still names the user's
edges: -1 for an edge that a transform added, the first of them for one that it merged. Weights may
be traced, and are differentiable; the graph may not be traced. Features (`degree_features`,
`laplacian_pe`, `random_walk_pe`, `cartesian`, `distance`) are NumPy arrays.
"""

from jaxgnn.graph._transforms.encodings import degree_features, laplacian_pe, random_walk_pe
from jaxgnn.graph._transforms.geometry import cartesian, distance, radius_graph
from jaxgnn.graph._transforms.links import LinkPart, LinkSplit, link_split
from jaxgnn.graph._transforms.merging import coalesce, to_undirected
from jaxgnn.graph._transforms.normalization import gcn_norm, mean_weights
from jaxgnn.graph._transforms.selection import largest_component, permute_nodes, reorder, subgraph
from jaxgnn.graph._transforms.self_loops import (
    add_remaining_self_loops,
    add_self_loops,
    remove_self_loops,
)

__all__ = [
    "LinkPart",
    "LinkSplit",
    "add_remaining_self_loops",
    "add_self_loops",
    "cartesian",
    "coalesce",
    "degree_features",
    "distance",
    "gcn_norm",
    "laplacian_pe",
    "largest_component",
    "link_split",
    "mean_weights",
    "permute_nodes",
    "radius_graph",
    "random_walk_pe",
    "remove_self_loops",
    "reorder",
    "subgraph",
    "to_undirected",
]
