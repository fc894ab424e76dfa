"""The multi-layer perceptron."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn._core import checks
from jaxgnn.graph import Graph
from jaxgnn.nn._dropout import dropout_module
from jaxgnn.nn._linear import Initializer, kaiming_kernel, linear, width
from jaxgnn.nn.batch_norm import BatchNorm
from jaxgnn.nn.graph_norm import GraphNorm
from jaxgnn.nn.layer_norm import LayerNorm
from jaxgnn.nn.maxk import check_activation, normalizes

Norm = Literal["batch", "layer", "graph"]
Activation = Callable[[Array], Array]


class MLP(nnx.Module):
    """Linear layers with an activation between them: nothing follows the last.

    Each of the others is followed by normalization, activation and dropout.

    Args:
        features: the widths, from the input's to the output's: at least two.
        activation: applied to the hidden values, such as `jax.nn.relu` or `MaxK(32)`.
        norm: `None`, `"batch"` or `"layer"`.
        dropout: share of the hidden values dropped in training.
        use_bias: whether the linear layers add a bias.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values; by default PyTorch's.
        rngs: `params` is used, and `dropout` if there is any.

    Raises:
        TypeError: a width is no integer, `dropout` no number, or `activation` cannot be called.
        ValueError: fewer than two widths, `MaxK`'s k above a hidden one, or an option out of
            range.

    Source: PyG's `MLP` (which normalizes by batch unless told otherwise; this one does not).
    """

    def __init__(
        self,
        features: Sequence[int],
        *,
        activation: Activation = jax.nn.relu,
        norm: Literal["batch", "layer"] | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = kaiming_kernel,
        bias_init: Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        if not isinstance(features, Iterable):
            got = type(features).__name__
            raise TypeError(f"features: expected a width for each layer's ends, got {got}")
        self.features = tuple(width(value, "features") for value in features)
        if len(self.features) < 2:
            raise ValueError(f"features: expected at least two widths, got {self.features}")
        check_activation(activation, self.features[1:-1])
        self.activation = activation
        self.linears = nnx.List(
            linear(
                before,
                after,
                use_bias=use_bias,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=kernel_init,
                bias_init=bias_init,
                rngs=rngs,
            )
            for before, after in itertools.pairwise(self.features)
        )
        checks.choice(norm, "norm", (None, "batch", "layer"))
        self.norms = norm_layers(
            norm, self.features[1:-1], dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        self.dropout = dropout_module(dropout, "dropout", rngs)

    def __call__(
        self, x: Float[Array, "*rows in_features"], *, mask: Bool[Array, " rows"] | None = None
    ) -> Float[Array, "*rows out_features"]:
        """Applies the MLP to the last axis.

        Args:
            x: the rows.
            mask: those that are no padding, for batch normalization; all if not given.

        Raises:
            ValueError: rows of another width.
        """
        if jnp.shape(x)[-1:] != self.features[:1]:
            got = jnp.shape(x)
            raise ValueError(f"x: expected the shape (..., {self.features[0]}), got {got}")
        return self.after_first(self.linears[0](x), mask=mask)

    def after_first(
        self, x: Float[Array, "*rows hidden_features"], *, mask: Bool[Array, " rows"] | None = None
    ) -> Float[Array, "*rows out_features"]:
        """What follows the first linear layer (with its bias)."""
        for i, layer in enumerate(self.linears[1:]):
            norm = None if self.norms is None else self.norms[i]
            if normalizes(self.activation, norm):
                x = self.activation(x, norm=norm)  # type: ignore[call-arg]
            else:
                x = self.activation(x if norm is None else normalize(norm, x, mask))
            x = layer(self.dropout(x))
        return x


def norm_layers(
    norm: Norm | None,
    widths: Sequence[int],
    *,
    dtype: DTypeLike | None,
    param_dtype: DTypeLike,
    rngs: nnx.Rngs,
) -> nnx.List | None:
    """A normalization for each width, with PyTorch's and PyG's constants; `None` without one.

    Source: Ioffe and Szegedy, "Batch normalization" (ICML 2015); Ba et al., "Layer
    normalization" (2016).
    """
    checks.choice(norm, "norm", (None, "batch", "layer", "graph"))
    if norm is None:
        return None
    options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
    if norm == "layer":
        # E[x^2] - E[x]^2 cancels where a feature's mean is large beside its deviation.
        options |= {"epsilon": 1e-5, "use_fast_variance": False}
    module = {"batch": BatchNorm, "layer": LayerNorm, "graph": GraphNorm}[norm]
    return nnx.List(module(width, **options) for width in widths)


def normalize(
    norm: nnx.Module,
    x: Array,
    mask: Bool[Array, " rows"] | None,
    membership: Graph | None = None,
) -> Array:
    """The normalization, over the rows without padding, which are the first of the mask, or over
    each graph's."""
    if isinstance(norm, GraphNorm):
        return norm(x, membership)
    if mask is None or not isinstance(norm, BatchNorm):
        return norm(x)  # type: ignore[operator]
    return norm(x, mask=mask[: x.shape[0]])
