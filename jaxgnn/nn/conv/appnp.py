"""Personalized PageRank over predictions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import aggregate, dense
from jaxgnn.nn._linear import count
from jaxgnn.nn._sampling import EdgeSample, Strategy
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
        sample_size: the most edges of a node that are aggregated, from 1 to 4,096, the sum
            rescaled (`jaxgnn.sampled_spmm`); `None` for all. Each step draws afresh where edges are
            drawn.
        sample_rate: the largest share of a node's edges, above 0 and at most 1; with `"dropedge"`
            the probability to keep an edge.
        strategy: which edges. In training `"stride"` and `"random"` draw others in every call.
        rngs: `sampling` is used, where edges are drawn.

    Raises:
        TypeError, ValueError: an option out of range, `add_self_loops` without `normalize`, or a
            strategy that draws without `rngs`.

    Source: Gasteiger et al., "Predict then propagate" (ICLR 2019), equation 4; PyG's `APPNP`, but
    for its dropout of edges.
    """

    @_inputs.named_options
    def __init__(
        self,
        num_steps: int,
        alpha: float,
        *,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy = "stride",
        rngs: nnx.Rngs | None = None,
    ):
        checks.boolean(normalize, "normalize")
        if add_self_loops is not None:
            checks.boolean(add_self_loops, "add_self_loops")
        if add_self_loops and not normalize:
            raise ValueError("add_self_loops: expected normalize=True with it, got False")
        self.num_steps = count(num_steps, "num_steps", "steps")
        self.alpha = checks.number(alpha, "alpha", 0, 1, inclusive=True)
        self.sample = EdgeSample(sample_size, strategy, rngs, sample_rate=sample_rate)
        self.normalize = normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes *batch features"],
        weights: Float[Array, " num_edges"] | None = None,
        *,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy | None = None,
        key: Array | None = None,
    ) -> Float[Array, "num_nodes *batch features"]:
        """Propagates the rows of a square graph's nodes.

        Args:
            graph: a square graph.
            x: a row for each node.
            weights: of the edges, in the graph's edge order, not the user's
                (`Graph.sort_edge_data`); 1 if not given.
            sample_size, sample_rate, strategy: in place of the module's.
            key: of the samples, in place of the one that `rngs` draws.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a rectangular graph, or a shape that does not fit.
        """
        graph = _inputs.square_graph(graph, "APPNP", substitutes=True)
        start = dense(_inputs.features(x, "x", graph.num_senders, "node"))
        start = checks.floating(start, "x")
        if weights is not None:
            weights = checks.edge_weights(weights, graph.num_edges, ())

        options = self.sample.options(sample_size, sample_rate, strategy, key)

        def step(number: int, z: Array) -> Array:
            sample = options
            if options is not None and options["key"] is not None:
                sample = {**options, "key": jax.random.fold_in(options["key"], number)}
            if self.normalize:
                loop_weight = 1.0 if self.add_self_loops else None
                passed = normalized_aggregate(graph, z, weights, loop_weight, sample)
            else:
                passed = aggregate(graph, z, weights, sample=sample)
            # In 16 bits the shares, 0.1 and 0.9, would not sum to 1.
            wide = accumulation_dtype(start.dtype)
            keep, alpha = jnp.asarray(1 - self.alpha, wide), jnp.asarray(self.alpha, wide)
            z = keep * passed.astype(wide) + alpha * start.astype(wide)
            return z.astype(start.dtype)

        return jax.lax.fori_loop(0, self.num_steps, step, start)
