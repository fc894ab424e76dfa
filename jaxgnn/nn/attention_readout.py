"""From the nodes of a batch of graphs to one row a graph, by a learned attention."""

from __future__ import annotations

from collections.abc import Callable

from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn.graph import Graph, graph_argument
from jaxgnn.ops import segment_softmax, spmm


class AttentionReadout(nnx.Module):
    r"""Sums the nodes of each graph by weights that a gate gives them (global attention pooling).

    $$y_g = \sum_{i \in g} \alpha_i \odot h(x_i), \qquad
      \alpha_i = \frac{\exp(s(x_i))}{\sum_{j \in g} \exp(s(x_j))}$$

    A graph without nodes gets 0. Padding nodes belong to a graph of their own, so that they do not
    count. The softmax runs in float32 (float64 for float64).

    Args:
        gate: $s$, applied to the rows: a module or a function whose output has one column, or as
            many as that of `nn`, each of which is weighted apart.
        nn: $h$, likewise; the rows themselves if not given.

    Raises:
        TypeError: `gate` or `nn` cannot be called.

    Source: Li et al., "Gated graph sequence neural networks" (ICLR 2016), equation 7, with a
    softmax for the sigmoid; PyG's `AttentionalAggregation`.
    """

    def __init__(self, gate: Callable[[Array], Array], nn: Callable[[Array], Array] | None = None):
        for name, value in (("gate", gate), ("nn", nn)):
            if not callable(value) and (value is not None or name == "gate"):
                raise TypeError(
                    f"{name}: expected a module or a function, got {type(value).__name__}"
                )
        self.gate = gate
        self.nn = nn

    def __call__(
        self, membership: Graph, x: Float[Array, "num_nodes features"]
    ) -> Float[Array, "num_graphs out_features"]:
        """A row for each graph.

        Args:
            membership: the rectangular graph from the nodes to their graphs
                (`GraphBatch.membership`).
            x: a row for each node.

        Raises:
            TypeError: `membership` is no `Graph`, or `x` is not floating.
            ValueError: a shape that does not fit.
        """
        membership = graph_argument(membership, "membership")
        x = checks.floating(x, "x")
        if x.ndim != 2 or x.shape[0] != membership.num_senders:
            raise ValueError(
                f"x: expected the shape ({membership.num_senders}, features), got {x.shape}"
            )
        scores = self.gate(x)
        rows = x if self.nn is None else self.nn(x)
        if scores.shape not in ((x.shape[0], 1), rows.shape):
            raise ValueError(
                f"gate: expected an output of the shape {(x.shape[0], 1)} or {rows.shape}, got "
                f"{scores.shape}"
            )
        # One edge a node: its scores in the edge order.
        weights = segment_softmax(membership, scores[membership.senders]).astype(rows.dtype)
        if weights.shape[1] == 1:
            return spmm(membership, rows, weights[:, 0])
        return spmm(membership, rows[..., None], weights)[..., 0]
