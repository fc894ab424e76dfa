"""Links: scores of pairs of nodes, and learned features for graphs without any."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgnn._core import checks
from jaxgnn._core.arguments import unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph._build.ordered_sum import take_in_order
from jaxgnn.nn import _inputs
from jaxgnn.nn._linear import Initializer, check_options, count, width
from jaxgnn.nn.mlp import MLP, Activation

NodeOutputs = (
    Float[Array, "num_nodes features"]
    | tuple[Float[Array, "num_senders features"], Float[Array, "num_receivers features"]]
)


class NodeEmbedding(nnx.Embed):
    r"""A learned embedding for each node: the features of graphs that have none.

    Called without nodes it gives the whole table, `[num_nodes, features]`, as `x` of a model.

    Args:
        num_nodes, features: the shape of the table.
        dtype: of the result; by default `param_dtype`.
        param_dtype: of the table.
        embedding_init: initial values; by default normal of the variance $1 / \text{features}$, so
            that rows have about the length 1.
        rngs: `params` is used.

    Raises:
        TypeError, ValueError: a number, width, dtype or `rngs` that is none.

    Source: Flax's `nnx.Embed`, of which it is one.
    """

    def __init__(
        self,
        num_nodes: int,
        features: int,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        embedding_init: Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        features = width(features, "features")
        check_options(dtype, param_dtype, rngs)
        super().__init__(
            count(num_nodes, "num_nodes", "nodes"),
            features,
            dtype=param_dtype if dtype is None else dtype,
            param_dtype=param_dtype,
            embedding_init=embedding_init or jax.nn.initializers.normal(features**-0.5),
            rngs=rngs,
        )

    def __call__(
        self, nodes: Int[Array, "*batch"] | None = None
    ) -> Float[Array, "*batch features"]:
        """The rows of some nodes, or of all; NaN out of range, negative numbers from the end.

        The gradient adds in a fixed order, in float32 for 16 bits.

        Raises:
            TypeError: `nodes` are no integers.
        """
        table = self.embedding[...]
        if nodes is None:
            return table.astype(self.dtype)
        nodes = _node_numbers(nodes, "nodes")
        nodes = jnp.where(nodes < 0, nodes + self.num_embeddings, nodes)
        rows = _rows_at(table, nodes.reshape(-1)).astype(self.dtype)
        return rows.reshape(*nodes.shape, self.features)


class DotDecoder(nnx.Module):
    r"""The score of a link from $j$ to $i$: the inner product of its ends' outputs.

    $$s_{ji} = x_j \cdot x_i$$

    It has no parameters, and does not know directions. Under 16 bits the sum is in float32.

    Source: Kipf and Welling, "Variational graph auto-encoders" (2016).
    """

    def __call__(
        self, x: NodeOutputs, senders: Int[Array, " links"], receivers: Int[Array, " links"]
    ) -> Float[Array, " links"]:
        """The scores (logits) of links.

        Args:
            x: the outputs of a model, or a pair (senders', receivers').
            senders, receivers: the ends of each link; out of range gives NaN.

        Raises:
            TypeError: `x` is not floating, or an end no integer.
            ValueError: shapes that do not fit.
        """
        one, other = _ends(x, senders, receivers)
        dtype = jnp.promote_types(one.dtype, other.dtype)
        wide = accumulation_dtype(dtype)
        return jnp.sum(one.astype(wide) * other.astype(wide), axis=-1).astype(dtype)


class MLPDecoder(nnx.Module):
    r"""The score of a link from $j$ to $i$: an MLP of its ends' elementwise product.

    $$s_{ji} = \mathrm{MLP}(x_j \odot x_i)$$

    It does not know directions.

    Args:
        features: width of the nodes' outputs.
        hidden_features: of the hidden layers of the MLP.
        num_layers: its linear layers, at least 1.
        activation, dropout: of its hidden layers.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        rngs: `params` is used, and `dropout` if there is any.

    Raises:
        TypeError, ValueError: an option out of range.

    Source: the `LinkPredictor` of OGB's examples (Hu et al., NeurIPS 2020).
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        *,
        num_layers: int = 2,
        activation: Activation = jax.nn.relu,
        dropout: float = 0.0,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        hidden = [hidden_features] * (count(num_layers, "num_layers", "layers") - 1)
        self.mlp = MLP(
            [features, *hidden, 1],
            activation=activation,
            dropout=dropout,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )

    def __call__(
        self, x: NodeOutputs, senders: Int[Array, " links"], receivers: Int[Array, " links"]
    ) -> Float[Array, " links"]:
        """The scores (logits) of links; arguments and errors as of `DotDecoder`."""
        one, other = _ends(x, senders, receivers)
        return self.mlp(one * other)[:, 0]


def _ends(x: NodeOutputs, senders: Array, receivers: Array) -> tuple[Array, Array]:
    """The outputs of both ends of each link."""
    ends = x if isinstance(x, tuple | list) else (x, x)
    shapes = [jnp.shape(unwrap(rows)) for rows in ends]
    if len(ends) != 2 or any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise ValueError(f"x: expected rows (nodes, features), or a pair of them, got {shapes}")
    senders, receivers = _node_numbers(senders, "senders"), _node_numbers(receivers, "receivers")
    if senders.ndim != 1 or senders.shape != receivers.shape:
        raise ValueError(
            "senders, receivers: expected two vectors of one length, got "
            f"{senders.shape} and {receivers.shape}"
        )
    rows = [checks.floating(rows, "x") for rows in ends]  # of integers none says out of range
    return _rows_at(rows[0], senders), _rows_at(rows[1], receivers)


def _node_numbers(nodes: Any, name: str) -> Int[Array, "*batch"]:
    """Numbers of nodes, of 32 bits or more."""
    nodes = unwrap(nodes)
    if not isinstance(nodes, jax.Array):
        nodes = np.asarray(_inputs.within_32_bits(nodes))
        if nodes.size == 0:  # a list without elements is of floats
            nodes = nodes.astype(np.int32)
    if nodes.size and not jnp.issubdtype(nodes.dtype, jnp.integer):
        raise TypeError(f"{name}: expected integers, got {nodes.dtype}")
    return jnp.asarray(nodes, jnp.int32 if nodes.dtype.itemsize < 4 else None)


def _rows_at(
    rows: Float[Array, "nodes features"], nodes: Int[Array, " links"]
) -> Float[Array, "links features"]:
    """NaN out of range. The gradient adds in a fixed order."""
    count = rows.shape[0]
    inside = (nodes >= 0) & (nodes < count)
    taken = take_in_order(rows, jnp.where(inside, nodes, count))
    return jnp.where(inside[:, None], taken, jnp.asarray(jnp.nan, taken.dtype))
