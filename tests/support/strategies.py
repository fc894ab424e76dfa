"""Random graphs for hypothesis, and their dense oracle."""

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from jaxgnn import Graph

# The share of the examples that each profile draws.
SHARES = {"ci": 0.5, "quick": 0.5}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")


def examples(count: int) -> settings:
    """Half of `count` examples: in the profile `ci` new ones in every run, in `quick` the same."""
    return settings(max_examples=int(count * SHARES[PROFILE]))


class EdgeList(NamedTuple):
    senders: np.ndarray
    receivers: np.ndarray
    num_senders: int
    num_receivers: int
    square: bool

    def counts(self) -> dict[str, int]:
        """The arguments of `Graph.from_edges` that say how many nodes there are."""
        if self.square:
            return {"num_nodes": self.num_receivers}
        return {"num_senders": self.num_senders, "num_receivers": self.num_receivers}

    def graph(self, **options) -> Graph:
        return Graph.from_edges(self.senders, self.receivers, **self.counts(), **options)


@st.composite
def edge_lists(draw, *, square: bool | None = None, max_nodes: int = 12, max_edges: int = 40):
    """Edge lists: empty, no edges, isolated nodes, repeated edges, self-loops, rectangular.

    Shrinks towards few nodes and edges. `square` None draws either kind.
    """
    if square is None:
        square = draw(st.booleans())
    num_receivers = draw(st.integers(0, max_nodes))
    num_senders = num_receivers if square else draw(st.integers(0, max_nodes))
    size = draw(st.integers(0, max_edges)) if num_senders and num_receivers else 0
    # Few distinct ends now and then: repeated edges, loops and long rows.
    spread = draw(st.sampled_from([1, 2, max_nodes]))

    def ends(count: int) -> np.ndarray:
        highest = min(max(count, 1), spread) - 1
        values = draw(st.lists(st.integers(0, highest), min_size=size, max_size=size))
        return np.array(values, draw(st.sampled_from([np.int32, np.int64])))

    return EdgeList(ends(num_senders), ends(num_receivers), num_senders, num_receivers, square)


@st.composite
def graphs(draw, *, square: bool | None = None, max_nodes: int = 12, max_edges: int = 40):
    """`Graph`s of `edge_lists`."""
    return draw(edge_lists(square=square, max_nodes=max_nodes, max_edges=max_edges)).graph()


@st.composite
def rows_with_ties(draw, rows: int, width: int, dtype: str):
    """Rows of few or many distinct values, with NaN, infinities and zeros of both signs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.standard_normal((rows, width))
    if draw(st.booleans()):
        x = rng.integers(-2, 3, x.shape) * rng.choice([0.5, -0.5], x.shape)
    special = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], x.shape)
    x = np.where(rng.random(x.shape) < draw(st.sampled_from([0, 0.1, 0.9])), special, x)
    return jax.device_put(x.astype(jnp.dtype(dtype)))


def dense_adjacency(graph: Graph, weights=None) -> np.ndarray:
    """The float64 matrix [num_receivers, num_senders]: the sum of the weights of each pair.

    `weights` is over the graph's edges; ones if not given.
    """
    matrix = np.zeros((graph.num_receivers, graph.num_senders))
    rows = np.repeat(np.arange(graph.num_receivers), np.diff(np.asarray(graph.row_offsets)))
    values = np.ones(graph.num_edges) if weights is None else np.asarray(weights, np.float64)
    np.add.at(matrix, (rows, np.asarray(graph.senders)), values)
    return matrix


def skewed_graph(
    num_nodes: int, num_edges: int, *, hubs: int = 2, seed: int = 0, **options
) -> Graph:
    """A square graph with a few rows (and columns) long enough to be split."""
    rng = np.random.default_rng(seed)
    senders = rng.integers(num_nodes, size=num_edges)
    receivers = rng.integers(num_nodes, size=num_edges)
    receivers[: num_edges // 3] = rng.integers(hubs, size=num_edges // 3)
    senders[num_edges // 2 : num_edges * 2 // 3] = num_nodes - 1
    return Graph.from_edges(senders, receivers, num_nodes=num_nodes, **options)
