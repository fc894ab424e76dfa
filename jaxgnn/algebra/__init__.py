"""Message passing in four operators, for custom layers; see `docs/algebra.md`.

Scatter (`scatter`), ApplyEdge (`apply_edge`, arithmetic and the functions beside it), Gather
(`gather`) and ApplyVertex (`apply_vertex`), and of them ReduceScatter (`segment_normalize`) and
Aggregate (`aggregate`). Values on edges are expressions: `gather` finds the operation of
`jaxgnn.ops` that computes them, and `explain` says which.

The names are those of Zhang et al. (MLSys 2022). `scatter` broadcasts rows of nodes to edges, and
`gather` reduces values on edges to nodes. PyG and JAX call the reduction a scatter, and the
broadcast a gather.
"""

from jaxgnn.algebra._edges import Edges
from jaxgnn.algebra._gather import aggregate, evaluate, explain, gather
from jaxgnn.algebra._operators import (
    apply_edge,
    apply_vertex,
    concat,
    dot,
    dropout,
    edge_values,
    gaussian,
    leaky_relu,
    linear,
    scatter,
    segment_normalize,
    weighted_sum,
)
from jaxgnn.algebra._reference import EDGES, NODES, recompute_edges

__all__ = [
    "EDGES",
    "NODES",
    "Edges",
    "aggregate",
    "apply_edge",
    "apply_vertex",
    "concat",
    "dot",
    "dropout",
    "edge_values",
    "evaluate",
    "explain",
    "gather",
    "gaussian",
    "leaky_relu",
    "linear",
    "recompute_edges",
    "scatter",
    "segment_normalize",
    "weighted_sum",
]
