r"""The pair of maps that aggregation is made of, and that differentiate into each other.

$(x, w) \mapsto A_w x$ is linear in the features and in the weights. Its transpose for $x$ is
$A_w^T$, and for $w$ the dot product of both ends' features at each edge, whose own transposes are
$A$ and $A^T$ again. Derivatives of every order, forward and reverse, run on two kernels.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from jaxtyping import Array, Float

from jaxgnn._core.linear_call import Multilinear
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph
from jaxgnn.graph._layouts.tiles import Tiles
from jaxgnn.ops._aggregation import tiles as by_tiles
from jaxgnn.ops._aggregation.kernels import dot_rows, reduce_rows
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.degree import End, divide_by_degree, widened
from jaxgnn.ops._core.rows import Rows, in_row_order, neighbors, tiles_of

Engine: TypeAlias = Literal["rows", "tiles"] | None
"""`"tiles"`: over tiles, if the graph has them; `None`: the faster engine by estimate."""

Precision: TypeAlias = Literal["tensorfloat32"] | None
"""Of float32 features on tensor cores; `None`: exact terms."""


def engine_of(impl: Impl | Literal["rows", "tiles"], *tiles: Tiles | None) -> tuple[Engine, Impl]:
    """What an operation's `impl` says of the engine, and of the implementation.

    `tiles` are those that the operation and its derivatives run over.
    """
    checks.choice(impl, "impl", (None, "kernel", "jax", "rows", "tiles"))
    if impl == "tiles" and None in tiles:
        raise ValueError("impl: 'tiles' needs a graph with tiles; see Graph.with_tiles")
    if impl == "rows" or impl == "tiles":
        return impl, None
    return None, chosen(impl)


def check_precision(precision: Precision) -> None:
    """What an operation's `precision` may be."""
    checks.choice(precision, "precision", (None, "tensorfloat32"))


class LinearMap(NamedTuple):
    """Which linear map: $A$ or its transpose, divided by the degrees of one end for a mean.

    Attributes:
        transpose: sums over the receivers of each sender.
        divide: the end by whose number of edges to divide. If the sums run at that end they
            become means; if not, the operand is divided first (the adjoint of a mean).
        engine: of the map and all sums among its derivatives.
        precision: of sums without weights over tiles, and of those among the derivatives.
    """

    transpose: bool
    divide: End | None = None
    engine: Engine = "rows"
    precision: Precision = None

    def adjoint(self) -> LinearMap:
        return self._replace(transpose=not self.transpose)


def _aggregate(
    linear_map: LinearMap,
    graph: Graph,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
) -> Float[Array, "_ heads width"]:
    rows = neighbors(graph, transpose=linear_map.transpose)
    at_rows = "senders" if linear_map.transpose else "receivers"
    dtype = x.dtype
    if linear_map.divide not in (None, at_rows):
        x = divide_by_degree(graph, linear_map.divide, widened(x))
    reduce = "mean" if linear_map.divide == at_rows else "sum"
    return _sums(linear_map, graph, rows, x, in_row_order(rows, weights), reduce).astype(dtype)


def _sums(
    linear_map: LinearMap,
    graph: Graph,
    rows: Rows,
    x: Float[Array, "_ heads width"],
    weights: Float[Array, "num_edges heads"] | None,
    reduce: Literal["sum", "mean"],
) -> Float[Array, "_ heads width"]:
    if linear_map.engine != "rows":
        tiles = tiles_of(graph, transpose=linear_map.transpose)
        if tiles is not None and by_tiles.serves(tiles, x):
            always = linear_map.engine == "tiles"
            return by_tiles.reduce_rows(
                rows, tiles, x, weights, reduce, precision=linear_map.precision, always=always
            )
    return reduce_rows(rows, x, weights, reduce)


def _aggregate_transpose_x(linear_map, graph, cotangent, weights):
    return aggregate(linear_map.adjoint(), graph, cotangent, weights)


def edge_dot_of(linear_map, graph, x, cotangent):
    """The transpose of `aggregate` for the weights."""
    # The end that the degrees belong to is the same for the map and its adjoint. All sums among
    # the derivatives of dot products have weights: the precision ends here.
    at_receivers, at_senders = (x, cotangent) if linear_map.transpose else (cotangent, x)
    if linear_map.divide is not None:
        at_receivers, at_senders = widened(at_receivers), widened(at_senders)
    if linear_map.divide == "receivers":
        at_receivers = divide_by_degree(graph, linear_map.divide, at_receivers)
    elif linear_map.divide == "senders":
        at_senders = divide_by_degree(graph, linear_map.divide, at_senders)
    return edge_dot(linear_map.engine, graph, at_receivers, at_senders)


aggregate = Multilinear(_aggregate, (_aggregate_transpose_x, edge_dot_of))
"""`aggregate(linear_map, graph, x, weights)`: the weighted sum or mean over neighbors."""


def _edge_dot(
    engine: Engine,
    graph: Graph,
    at_receivers: Float[Array, "num_receivers heads width"],
    at_senders: Float[Array, "num_senders heads width"],
) -> Float[Array, "num_edges heads"]:
    del engine  # of the derivatives
    return dot_rows(neighbors(graph, transpose=False), at_receivers, at_senders)


edge_dot = Multilinear(
    _edge_dot,
    (
        lambda engine, graph, cotangent, at_senders: aggregate(
            LinearMap(transpose=False, engine=engine), graph, at_senders, cotangent
        ),
        lambda engine, graph, at_receivers, cotangent: aggregate(
            LinearMap(transpose=True, engine=engine), graph, at_receivers, cotangent
        ),
    ),
)
"""`edge_dot(engine, graph, at_receivers, at_senders)`: `sddmm` in the accumulation dtype."""
