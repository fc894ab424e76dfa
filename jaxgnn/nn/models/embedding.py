"""The model behind `jaxgnn.sage_embedding`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxgnn.graph import Graph
from jaxgnn.nn._dropout import drop
from jaxgnn.nn._features import Features, dense, unit_rows
from jaxgnn.nn._linear import linear
from jaxgnn.nn._sampling import EdgeSample, Strategy
from jaxgnn.nn.conv import SAGEConv
from jaxgnn.nn.models.gnn import GNN


class _ConcatSAGEConv(nnx.Module):
    r"""$[x_i W_f ; \mathrm{mean}_{j \to i} x_j \, W_a]$; a node without edges is its own neighbor.

    Of a pair, the receivers are the first of the senders.
    """

    accepts_pair = True
    accepts_node_rows = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        sample_size: int | None = None,
        sample_rate: float | None = None,
        strategy: Strategy = "stride",
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        of_neighbors = out_features // 2
        if not of_neighbors:
            raise ValueError(
                f"hidden_features: expected at least 2, a part of them for a node's own row and "
                f"one for its neighbors', got {out_features}"
            )
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.linear = linear(in_features, out_features - of_neighbors, use_bias=False, **types)
        self.neighbors = SAGEConv(
            in_features,
            of_neighbors,
            root_weight=False,
            use_bias=False,
            sample_size=sample_size,
            sample_rate=sample_rate,
            strategy=strategy,
            **types,
        )

    @property
    def sample(self) -> EdgeSample:
        return self.neighbors.sample

    def __call__(
        self,
        graph: Graph,
        x: Features | tuple[Features, Features],
        weights: Array | None = None,
        **sample: Any,
    ) -> Array:
        senders, receivers = x if isinstance(x, tuple) else (x, x)
        around = self.neighbors(graph, (senders, None), weights, **sample)
        receivers = dense(receivers)
        # On a square graph that projects before it aggregates, XLA computes this product once.
        alone = self.neighbors.linear_neighbors(receivers).astype(around.dtype)
        isolated = (graph.in_degrees == 0).reshape(-1, *[1] * (around.ndim - 1))
        around = jnp.where(isolated, alone, around)
        return jnp.concatenate([self.linear(receivers).astype(around.dtype), around], axis=-1)


class SAGEEmbedding(GNN):
    r"""GraphSAGE as it was published: concatenated parts, and rows of length 1.

    $$x^{(l+1)}_i = n(\sigma([x_i W_f ; \mathrm{mean}_{e = (j \to i)} w_e x_j \, W_a]))$$

    with $n(v) = v / |v|$, where $v = 0$ also 0. Half of the hidden features are of the node itself,
    half of its neighbors; a node without edges is its own neighbor, and there are no biases. A
    linear layer classifies the rows of the last layer. Of two layers, those rows are what
    `jaxgnn.sage_embedding` estimates from sampled neighbors with the matrices of `matrices()`.

    `GraphSAGE` adds the two parts instead, with a bias, so that its weights are not of this form.

    Args:
        jumping: `"last"`, `"cat"` or `"max"`; `None` is `"last"`.
        options: those of `GNN`, and `sample_size`, `sample_rate` and `strategy` of `SAGEConv`.

    Raises:
        ValueError: `hidden_features` below 2.

    Source: Hamilton et al., "Inductive representation learning on large graphs" (NeurIPS 2017),
    algorithm 1.
    """

    _conv = _ConcatSAGEConv
    _default_jumping = "last"

    def _after_layer(
        self, out: Array, graph: Graph | None = None, norm: nnx.LayerNorm | None = None
    ) -> Features:
        out = self.activation(out if norm is None else norm(out))
        return drop(self.dropout, unit_rows(out), graph)

    def matrices(self) -> dict[str, Array]:
        """The `params` of `jaxgnn.sage_embedding`: `Wf1`, `Wa1`, `Wf2` and `Wa2`.

        Raises:
            ValueError: a model that computes something else: with an input layer, normalization or
                skip connections, or with another number of layers than two.
        """
        norm = None if self.norms is None else type(self.norms[0]).__name__
        for name, value, expected in (
            ("num_layers", self.num_layers, 2),
            ("input_layer", self.linear_in is not None, False),
            ("norm", norm, None),
            ("residual", self.residual, False),
        ):
            if value != expected:
                raise ValueError(f"{name}: expected {expected} of an embedding, got {value}")
        first, second = self.convs
        return {
            "Wf1": first.linear.kernel[...],
            "Wa1": first.neighbors.linear_neighbors.kernel[...],
            "Wf2": second.linear.kernel[...],
            "Wa2": second.neighbors.linear_neighbors.kernel[...],
        }
