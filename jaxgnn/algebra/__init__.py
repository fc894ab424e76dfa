"""Message passing in four operators, for layers of one's own; see `docs/algebra.md`.

Scatter (`scatter`), ApplyEdge (`apply_edge`, arithmetic and the functions beside it), Gather
(`gather`) and ApplyVertex (`apply_vertex`), and of them ReduceScatter (`reduce_scatter`) and
Aggregate (`aggregate`). Values on edges are expressions: `gather` finds the operation of
`jaxgnn.ops` that computes them, and `explain` says which.
"""

from jaxgnn.algebra._edges import Edges
from jaxgnn.algebra._reference import EDGES, NODES, recompute_edges
from jaxgnn.algebra.gather import aggregate, evaluate, explain, gather
from jaxgnn.algebra.operators import (
    apply_edge,
    apply_vertex,
    concat,
    dot,
    dropout,
    edge_values,
    leaky_relu,
    linear,
    reduce_scatter,
    scatter,
)

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
    "leaky_relu",
    "linear",
    "recompute_edges",
    "reduce_scatter",
    "scatter",
]
