"""`GraphMinibatch`: the graphs of one step."""

from __future__ import annotations

import dataclasses
import functools

import jax
from jaxtyping import Array, Float, Int, Shaped

from jaxgnn.graph.batch import GraphBatch


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["batch", "features", "edge_features", "labels", "indices"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class GraphMinibatch:
    """The graphs of one step as one, and their data, all padded.

    Attributes:
        batch: the union, with the masks of what is not padding.
        features: of the nodes, 0 for padding; `None` where the graphs have none.
        edge_features: in the batch's edge order, likewise.
        labels: a class a graph, int32, 0 for padding; or float32 targets, NaN for padding; `None`
            where the graphs have none.
        indices: the graphs' numbers in the source, -1 for padding.
    """

    batch: GraphBatch
    features: Float[Array, "num_nodes num_features"] | None
    edge_features: Float[Array, "num_edges num_edge_features"] | None
    labels: Shaped[Array, "num_graphs *targets"] | None
    indices: Int[Array, " num_graphs"]
