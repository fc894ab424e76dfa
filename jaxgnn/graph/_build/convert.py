"""Edge lists of SciPy matrices, NetworkX graphs and jraph graphs, and the way back."""

from __future__ import annotations

import math
import numbers
import reprlib
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxgnn._core.arguments import check_floats_fit, unwrap
from jaxgnn._core.checks import host_array, real
from jaxgnn._core.device import device_array
from jaxgnn.graph._build.csr import HostCSR, build, row_ids
from jaxgnn.graph._build.edge_data import build_both_ways
from jaxgnn.graph._build.edge_list import check_concrete

if TYPE_CHECKING:
    import networkx
    import scipy.sparse

    from jaxgnn.graph._graph import Graph

_FLOAT32_MAX = float(np.finfo(np.float32).max)

Edges = dict[str, Any]  # the arguments of `Graph.from_edges`


def edges_of_scipy(
    adjacency: scipy.sparse.sparray | scipy.sparse.spmatrix,
) -> tuple[Edges, Float[np.ndarray, " entries"]]:
    """Edges and weights of a SciPy sparse matrix of any format; entry $(j, i)$: from $j$ to $i$.

    A square matrix gives a square graph. Explicit zeros are edges (where the format keeps them:
    DIA and DOK do not); repeated entries stay apart. Floating weights keep their dtype; booleans
    and integers become float32.
    """
    import scipy.sparse

    if not scipy.sparse.issparse(adjacency):
        raise TypeError(
            f"adjacency: expected a SciPy sparse matrix, got {type(adjacency).__name__}"
        )
    matrix: Any = adjacency  # SciPy's base classes do not declare what all formats have
    if matrix.ndim != 2:
        raise ValueError(f"adjacency: expected two dimensions, got the shape {matrix.shape}")
    entries = matrix.tocoo()
    if entries.dtype.kind not in "biuf":
        raise TypeError(f"adjacency: expected real entries, got {entries.dtype}")
    num_senders, num_receivers = entries.shape
    counts = {"num_nodes": num_senders}
    if num_senders != num_receivers:
        counts = {"num_senders": num_senders, "num_receivers": num_receivers}
    values = entries.data
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        values = values.astype(np.float32 if values.dtype.kind != "f" else np.float64)
    check_floats_fit(values, "adjacency", "entries")
    return {"senders": entries.row, "receivers": entries.col, **counts}, values


def to_scipy(
    graph: Graph, weights: Float[ArrayLike, " num_edges"] | None = None
) -> scipy.sparse.csr_array:
    """SciPy CSR array of shape `(num_senders, num_receivers)`; no weights: ones, float32.

    Repeated edges become repeated entries, which SciPy's arithmetic sums.
    """
    import scipy.sparse

    check_concrete(graph.senders, "to_scipy", "a graph is converted")
    values = _edge_values(graph, weights)
    if values is None:
        values = np.ones(graph.num_edges, np.float32)
    if values.dtype.kind not in "biuf" or values.dtype == np.float16:
        values = values.astype(np.float32)  # SciPy has no 16-bit floats
    return scipy.sparse.csr_array(
        (
            values[np.asarray(graph.transpose_permutation)],
            np.array(graph.transpose_receivers),
            np.array(graph.transpose_row_offsets),
        ),
        shape=(graph.num_senders, graph.num_receivers),
    )


def in_graph_order(graph: Graph, values: Float[np.ndarray, " edges"]) -> Float[Array, " num_edges"]:
    """Values of the edges that a graph was made of, in its edge order and on the device."""
    return device_array(values[np.asarray(graph.edge_permutation)])


def csr_of_networkx(
    graph: networkx.Graph, weight: str | None
) -> tuple[HostCSR, Float[np.ndarray, " edges"] | None]:
    """The arrays, and the edge attribute `weight` if named, of a NetworkX graph of any kind.

    Node number $i$ is the $i$-th of `graph.nodes`. Each edge of an undirected graph becomes two
    (a self-loop stays one). Edges without the attribute weigh 1. `edge_permutation` refers to
    the order of `graph.edges`.
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise TypeError(f"graph: expected a NetworkX graph, got {type(graph).__name__}")
    number = {node: i for i, node in enumerate(graph.nodes)}
    ends = np.array(
        [(number[source], number[target]) for source, target in graph.edges()], np.int32
    ).reshape(-1, 2)
    build_csr = build if graph.is_directed() else build_both_ways
    values = None if weight is None else _networkx_weights(graph, weight, len(ends))
    return build_csr(senders=ends[:, 0], receivers=ends[:, 1], num_nodes=len(number)), values


def _networkx_weights(graph: networkx.Graph, weight: str, size: int) -> Float[np.ndarray, " edges"]:
    """The edge attribute `weight` of so many edges."""
    if size and all(value is None for *_, value in graph.edges(data=weight)):
        raise ValueError(f"weight: expected an attribute of edges, got {weight!r}, which none has")
    values = np.empty(size, np.float32)
    for e, (source, target, value) in enumerate(graph.edges(data=weight, default=1.0)):
        if not isinstance(value, numbers.Real):
            raise TypeError(
                f"weight: expected numbers, got {value!r} as {weight!r} of the edge "
                f"{(source, target)!r}"
            )
        # Infinities and NaN are kept. As integers: they may be beyond every float.
        if value == value and abs(value) != math.inf and abs(value) > _FLOAT32_MAX:
            raise ValueError(
                f"weight: expected numbers within float32, got {reprlib.repr(value)} as "
                f"{weight!r} of the edge {(source, target)!r}"
            )
        values[e] = value
    return values


def to_networkx(
    graph: Graph, weights: Float[ArrayLike, " num_edges"] | None = None
) -> networkx.MultiDiGraph:
    """NetworkX `MultiDiGraph` of a square graph, with the edge attribute `weight` if given."""
    try:
        import networkx
    except ImportError as error:
        raise ImportError("to_networkx needs NetworkX: pip install 'jaxgnn[networkx]'") from error
    check_concrete(graph.senders, "to_networkx", "a graph is converted")
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got {graph}")
    values = _edge_values(graph, weights)
    ends = zip(
        np.asarray(graph.senders).tolist(),
        row_ids(np.asarray(graph.row_offsets)).tolist(),
        strict=True,
    )
    result = networkx.MultiDiGraph()
    result.add_nodes_from(range(graph.num_senders))
    if values is None:
        result.add_edges_from(ends)
    else:
        result.add_weighted_edges_from(
            (source, target, value)
            for (source, target), value in zip(ends, values.tolist(), strict=True)
        )
    return result


def edges_of_jraph(graph: Any) -> Edges:
    """Edges of jraph's `GraphsTuple`, or anything with its `senders`, `receivers`, `n_node`.

    Several graphs in one stay one disconnected graph, padding included; see `jaxgnn.batch` for
    the membership of its nodes.
    """
    for name in ("senders", "receivers", "n_node"):
        if getattr(graph, name, None) is None:
            raise TypeError(f"graph: expected senders, receivers and n_node, got no {name}")
    n_edge = getattr(graph, "n_edge", None)
    for name in ("senders", "receivers", "n_node", "n_edge"):
        check_concrete(getattr(graph, name, None), name)
    senders = host_array(graph.senders, "senders")
    num_nodes = _sum_of_counts(graph.n_node, "n_node")
    num_edges = senders.size if n_edge is None else _sum_of_counts(n_edge, "n_edge")
    if num_edges != senders.size:
        raise ValueError(
            f"n_edge: expected it to sum to the number of senders ({senders.size}), got {num_edges}"
        )
    return {"senders": senders, "receivers": graph.receivers, "num_nodes": num_nodes}


def _sum_of_counts(counts: Any, name: str) -> int:
    counts = host_array(counts, name)
    if counts.size and counts.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {counts.dtype}")
    if counts.min(initial=0) < 0:
        raise ValueError(f"{name}: expected none below 0, got {counts.min()}")
    return int(counts.sum())


def _edge_values(graph: Graph, weights: Any) -> np.ndarray | None:
    if weights is None:
        return None
    weights = unwrap(weights)
    check_concrete(weights, "weights", "a graph is converted")
    values = host_array(weights, "weights")
    real(values, "weights")
    if values.shape != (graph.num_edges,):
        raise ValueError(
            f"weights: expected one for each of the {graph.num_edges} edges, "
            f"got the shape {values.shape}"
        )
    return values
