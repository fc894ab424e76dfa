"""Personalized PageRank over predictions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import aggregate, dense
from jaxgnn.nn._linear import count
from jaxgnn.nn.conv.gcn import normalized_aggregate


class APPNP(nnx.Module):
    r"""Steps of personalized PageRank from the rows of the nodes, such as an `MLP`'s outputs.

    $$z^{(0)} = x, \qquad z^{(k)} = (1 - \alpha) \, \hat A z^{(k-1)} + \alpha x$$

    $\hat A$ is `GCNConv`'s: symmetrically normalized, with one self-loop at each node. It has no
    parameters. A step is one `spmm`, forward and backward; without a gradient for the weights, no
    step's result is kept for the backward pass.

    Args:
        num_steps: $K$, from 1.
        alpha: the probability to return, from 0 to 1.
        add_self_loops: make the self-loops one a node; the default is `normalize`.
        normalize: divide by the degrees; else $\hat A$ has the weights as they are.

    Raises:
        TypeError, ValueError: an option out of range, or `add_self_loops` without `normalize`.

    Source: Gasteiger et al., "Predict then propagate" (ICLR 2019), equation 4; PyG's `APPNP`, but
    for its dropout of edges.
    """

    def __init__(
        self,
        num_steps: int,
        alpha: float,
        *,
        add_self_loops: bool | None = None,
        normalize: bool = True,
    ):
        if add_self_loops and not normalize:
            raise ValueError("add_self_loops: expected normalize=True with it, got False")
        self.num_steps = count(num_steps, "num_steps", "steps")
        self.alpha = checks.number(alpha, "alpha", 0, 1 + 1e-12)
        self.normalize = normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch features"],
        weights: Float[Array, " num_edges"] | None = None,
    ) -> Float[Array, "num_nodes *batch features"]:
        """Propagates the rows of a square graph's nodes.

        Args:
            graph: a square graph.
            x: a row for each node.
            weights: of the edges, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`); 1 if not given.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a rectangular graph, or a shape that does not fit.
        """
        graph = _inputs.square_graph(graph, "APPNP", substitutes=True)
        start = dense(_inputs.features(x, "x", graph.num_senders, "node"))
        start = checks.floating(start, "x")
        if weights is not None:
            weights = checks.edge_weights(weights, graph.num_edges, ())

        def step(_: int, z: Array) -> Array:
            if self.normalize:
                loop_weight = 1.0 if self.add_self_loops else None
                passed = normalized_aggregate(graph, z, weights, loop_weight)
            else:
                passed = aggregate(graph, z, weights)
            keep = jnp.asarray(1 - self.alpha, start.dtype)
            return keep * passed.astype(start.dtype) + jnp.asarray(self.alpha, start.dtype) * start

        return jax.lax.fori_loop(0, self.num_steps, step, start)
