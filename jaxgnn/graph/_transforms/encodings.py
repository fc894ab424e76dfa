"""Features of nodes by their place in the graph: degrees, Laplacian eigenvectors, random walks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import ArrayLike, Float

from jaxgnn._core.checks import choice, integer
from jaxgnn.graph._argument import graph_argument
from jaxgnn.graph._build.edge_list import check_concrete
from jaxgnn.graph._graph import Graph

if TYPE_CHECKING:
    import scipy.sparse

# Below this, LAPACK on the dense Laplacian is as fast as ARPACK, and always converges.
_DENSE_NODES = 500
_BLOCK = 1 << 22


def degree_features(
    graph: Graph, max_degree: int, *, direction: Literal["in", "out"] = "in"
) -> Float[np.ndarray, "num_nodes max_degree+1"]:
    """The degree of each node, one-hot, float32; PyG's `OneHotDegree`, which counts `"out"`.

    Repeated edges and self-loops count.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, or `max_degree` is no integer.
        ValueError: the graph is rectangular, `max_degree` is below 0 or a node's degree, or unknown
            `direction`.
    """
    _check(graph, "degree_features")
    choice(direction, "direction", ("in", "out"))
    most = integer(max_degree, "max_degree", 0, 2**31 - 2)
    offsets = graph.row_offsets if direction == "in" else graph.transpose_row_offsets
    degrees = np.diff(np.asarray(offsets))
    if degrees.max(initial=0) > most:
        raise ValueError(
            f"max_degree: expected at least the largest {direction}-degree, "
            f"{degrees.max()}, got {most}"
        )
    features = np.zeros((degrees.size, most + 1), np.float32)
    features[np.arange(degrees.size), degrees] = 1
    return features


def laplacian_pe(
    graph: Graph, k: int, weights: Float[ArrayLike, " num_edges"] | None = None
) -> Float[np.ndarray, "num_nodes k"]:
    r"""Eigenvectors of the symmetric normalized Laplacian, of the second to the (k+1)-th least.

    $$ L = I - D^{-1/2} A D^{-1/2} $$

    without self-loops; $1 / \sqrt{0}$ counts as 0. Each eigenvector has norm 1, and is given the
    sign by which its entry of the largest magnitude is positive (the first such entry, where
    several are equal within rounding). Eigenvectors of a repeated eigenvalue are determined only
    up to a rotation among them. PyG's `AddLaplacianEigenvectorPE`, which draws the signs.

    Args:
        graph: a symmetric graph.
        k: number of eigenvectors, less than the number of nodes.
        weights: of the edges, in the graph's edge order (`Graph.sort_edge_data`); equal in both
            directions up to rounding (one part in a million), not negative.

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, or `k` is no integer.
        ValueError: the graph is rectangular, it or the weights are not symmetric, a weight is
            negative or not finite, or `k` is out of range.

    Source: Dwivedi et al., "Benchmarking graph neural networks", JMLR 2023.
    """
    import scipy.sparse

    _check(graph, "laplacian_pe")
    n, count = graph.num_receivers, integer(k, "k", 1, 2**31 - 1)
    if count >= n:
        raise ValueError(f"k: expected less than the {n} nodes, got {count}")
    adjacency = _adjacency(graph, weights)
    adjacency.setdiag(0)
    largest = abs(adjacency).maximum(abs(adjacency.T))
    if (abs(adjacency - adjacency.T) > 1e-6 * largest).nnz:
        raise ValueError("graph: expected a symmetric one; see to_undirected")
    if adjacency.nnz and adjacency.min() < 0:
        raise ValueError("weights: expected none below 0")
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    scale = np.zeros(n)
    scale[degrees > 0] = degrees[degrees > 0] ** -0.5
    scaling = scipy.sparse.dia_array((scale[None], [0]), shape=(n, n))
    laplacian = scipy.sparse.eye_array(n) - scaling @ adjacency @ scaling
    laplacian = scipy.sparse.csr_array(laplacian)
    vectors = _least_eigenvectors(laplacian, np.sqrt(degrees), count + 1)
    vectors = vectors[:, 1 : count + 1]
    sizes = np.abs(vectors)
    largest = (sizes >= sizes.max(axis=0) * (1 - 1e-6)).argmax(axis=0)
    return (vectors * np.sign(vectors[largest, np.arange(count)])).astype(np.float32)


def _least_eigenvectors(
    laplacian: scipy.sparse.csr_array, null: Float[np.ndarray, " nodes"], count: int
) -> Float[np.ndarray, "nodes count"]:
    """Those of the `count` least eigenvalues; `null` is one of 0, unless it is 0.

    Each component is taken by itself: 0 has as many eigenvectors as there are components with
    edges, and Lanczos' method, which begins with one vector, may miss some of them.
    """
    import scipy.sparse.csgraph

    n = null.size
    if n <= _DENSE_NODES:
        return _eigenvectors(laplacian, count)[1]
    laplacian.eliminate_zeros()
    labels = scipy.sparse.csgraph.connected_components(laplacian, directed=False)[1]
    sizes = np.bincount(labels)
    nodes = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    connected = np.flatnonzero(sizes > 1)[:count]
    found = []  # eigenvalues, and the nodes and entries of their vectors
    for component in connected:
        own = nodes[component]
        if connected.size == count:
            found.append((0.0, own, null[own] / np.linalg.norm(null[own])))
            continue
        values, vectors = _eigenvectors(laplacian[own][:, own], count)
        found += [(value, own, vectors[:, i]) for i, value in enumerate(values)]
    # A node without neighbors has the eigenvalue 1, for the inverse of its degree counts as 0.
    found += [(1.0, nodes[c], np.ones(1)) for c in np.flatnonzero(sizes == 1)[:count]]
    found = sorted(found, key=lambda vector: vector[0])[:count]
    result = np.zeros((n, count))
    for i, (_, own, vector) in enumerate(found):
        result[own, i] = vector
    return result


def _eigenvectors(
    laplacian: scipy.sparse.csr_array, count: int
) -> tuple[Float[np.ndarray, " count"], Float[np.ndarray, "nodes count"]]:
    """The least eigenvalues, `count` or as many as there are, and their vectors."""
    import scipy.sparse.linalg

    n = laplacian.indptr.size - 1
    if n <= _DENSE_NODES or count >= n // 2:
        values, vectors = np.linalg.eigh(laplacian.toarray())
        return values[:count], vectors[:, :count]
    # The largest of 2 - L, for which ARPACK converges well; the start is fixed.
    start = np.random.default_rng(0).normal(size=n)
    shifted = scipy.sparse.csr_array(2 * scipy.sparse.eye_array(n) - laplacian)
    values, vectors = scipy.sparse.linalg.eigsh(shifted, count, which="LA", v0=start)
    order = np.argsort(-values)
    return 2 - values[order], vectors[:, order]


def random_walk_pe(
    graph: Graph, walk_length: int, weights: Float[ArrayLike, " num_edges"] | None = None
) -> Float[np.ndarray, "num_nodes walk_length"]:
    r"""The probability that a random walk from a node is back after 1, 2, ... steps, float32.

    $$ p_{it} = (P^t)_{ii}, \qquad P_{ij} = w_{ij} / \max(1, \sum_k w_{ik}) $$

    over the edges from $i$ to $j$; repeated ones are summed. PyG's `AddRandomWalkPE`, and as there
    a sum of weights below 1 is not scaled up; but PyG has the weights in the denominator alone.
    Work: nodes * edges * steps.

    Args:
        graph: a square graph.
        walk_length: number of steps, from 1.
        weights: of the edges, in the graph's edge order (`Graph.sort_edge_data`).

    Raises:
        TypeError: `graph` is no `Graph`, or is traced, or `walk_length` is no integer.
        ValueError: the graph is rectangular, `walk_length` is below 1, or the weights are not of
            its edges or not finite.

    Source: Dwivedi et al., "Graph neural networks with learnable structural and positional
    representations", ICLR 2022.
    """
    import scipy.sparse

    _check(graph, "random_walk_pe")
    n, steps = graph.num_receivers, integer(walk_length, "walk_length", 1, 2**31 - 1)
    adjacency = _adjacency(graph, weights)
    scale = 1 / np.maximum(np.asarray(adjacency.sum(axis=1)).ravel(), 1)
    walk = scipy.sparse.csr_array(
        scipy.sparse.dia_array((scale[None], [0]), shape=(n, n)) @ adjacency
    )
    features = np.empty((n, steps), np.float32)
    width = max(1, _BLOCK // max(n, 1))
    for begin in range(0, n, width):
        nodes = np.arange(begin, min(begin + width, n))
        powers = np.zeros((n, nodes.size))
        powers[nodes, nodes - begin] = 1
        for step in range(steps):
            powers = walk @ powers
            features[nodes, step] = powers[nodes, nodes - begin]
    return features


def _check(graph: Graph, what: str) -> None:
    graph = graph_argument(graph)
    check_concrete(graph.senders, what, "features of a graph are computed")
    if not graph.is_square:
        raise ValueError(f"graph: expected a square graph, got the rectangular {graph}")


def _adjacency(graph: Graph, weights: Any) -> scipy.sparse.csr_array:
    """The entry (i, j) is the sum of the weights from i to j, float64."""
    adjacency: Any = graph.to_scipy(weights).astype(np.float64)
    adjacency.sum_duplicates()
    if not np.isfinite(adjacency.data).all():
        raise ValueError("weights: expected finite numbers, got NaN or infinite ones")
    return adjacency
