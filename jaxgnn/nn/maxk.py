"""The MaxK nonlinearity as a module."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes
from jaxtyping import Array, Float, Int

from jaxgnn._core import checks
from jaxgnn._core.arguments import unwrap
from jaxgnn.graph import GraphSubstitute
from jaxgnn.nn._dropout import dropout_module, dropout_options
from jaxgnn.nn._linear import count
from jaxgnn.nn.layer_norm import OVER_FEATURES
from jaxgnn.ops import CBSR, maxk


class ActiveEntries(nnx.Variable):
    """The number of entries that an annealed `MaxK` currently keeps of a row."""


class MaxK(nnx.Module):
    r"""Activation that keeps the `k` largest entries of each row and sets the others to 0.

    $$h_{ic} = x_{ic} \text{ if } x_{ic} \text{ is among the } k \text{ largest of } x_i,
    \text{ else } 0$$

    Called, it gives the dense rows: an activation for any network. As the activation of a
    `jaxgnn.nn` model it hands the entries alone (`sparse`) to the next convolution, which
    aggregates them by `maxk_spmm`.

    With `dropout` entries are dropped in training before the selection, by the same kernel. This
    saves a pass over the dense rows and a stored mask. `eval()` turns it off. (A model's own
    dropout follows the selection.) A bias or a layer normalization given in the call is applied
    before, likewise. The bias of a linear layer belongs to that layer: XLA has it added by
    cuBLASLt, in the GEMM's epilogue.

    With `anneal` the first `active[...]` of the `k` entries count, and the rest are 0: set it
    between the steps (`annealed_k`) without compiling again. Rows of `k` entries are stored and
    moved whatever it is.

    Args:
        k: entries to keep.
        dropout: share of the entries dropped before the selection in training.
        rngs: `dropout` is used, if there is any.
        anneal: have `active`, a variable that begins at `k`.
        packed: round float32 values to 15 or 13 bits of mantissa, which saves traffic: see
            `jaxgnn.maxk`.

    Raises:
        TypeError: `k` is no integer, or `anneal` or `packed` no boolean.
        ValueError: `k` is below 1 (in a call, above the width), or `dropout` is out of range or
            without `rngs`.

    Source: Peng et al., "MaxK-GNN" (ASPLOS 2024), section 3.1. `anneal` is not in the paper.
    """

    def __init__(
        self,
        k: int,
        *,
        dropout: float = 0.0,
        rngs: nnx.Rngs | None = None,
        anneal: bool = False,
        packed: bool = False,
    ):
        checks.booleans(anneal=anneal, packed=packed)
        self.k = count(k, "k", "entries to keep")
        self.dropout = dropout_module(dropout, "dropout", rngs)
        self.active = ActiveEntries(jnp.asarray(k, jnp.int32)) if anneal else None
        self.packed = packed

    def __call__(
        self,
        x: Float[Array, "*rows width"],
        bias: Float[Array, " width"] | None = None,
        *,
        norm: nnx.LayerNorm | None = None,
    ) -> Float[Array, "*rows width"]:
        """The rows (plus `bias`, or normalized) with their `k` largest entries, zeros elsewhere."""
        return self.sparse(x, bias, norm=norm).to_dense()

    def sparse(
        self,
        x: Float[Array, "*rows width"],
        bias: Float[Array, " width"] | None = None,
        *,
        norm: nnx.LayerNorm | None = None,
        graph: Any = None,
    ) -> CBSR:
        """The `k` largest entries of each row (plus `bias`, or normalized).

        Args:
            x: the rows.
            bias: added to each.
            norm: normalizes each, over its features; `maxk` does it, and no normalized row is
                stored. It has the bias then.
            graph: the graph whose nodes they are of, if it is sharded: each device then selects
                from its own rows.

        Raises:
            TypeError: `norm` is no `nnx.LayerNorm`.
            ValueError: `bias` and `norm` are given, or `norm` is over other axes.
        """
        active = None if self.active is None else self.active[...]
        options = dropout_options(self.dropout)
        select = functools.partial(maxk, k=self.k, packed=self.packed)
        scale, bias = None, unwrap(bias)
        if norm is not None:
            if bias is not None:
                raise ValueError("bias: expected None with norm, which has its own, got an array")
            x, scale, bias = _normalization(norm, x)
            select = functools.partial(select, norm_epsilon=norm.epsilon)
        if not isinstance(graph, GraphSubstitute):
            return select(x, norm_scale=scale, bias=bias, active=active, **options)
        rate, key = options["dropout_rate"], options["dropout_rng"]
        arrays = {
            "x": x,
            "norm_scale": scale,
            "bias": bias,
            "active": active,
            "dropout_rng": key,
        }
        out = graph.map_parts(
            lambda _, **arrays: select(**arrays, dropout_rate=rate),
            "maxk",
            {name: array for name, array in arrays.items() if array is not None},
            {
                "x": "rows",
                "norm_scale": "replicated",
                "bias": "replicated",
                "active": "replicated",
                "dropout_rng": "key",
            },
            "rows",
            split="rows",
        )
        return dataclasses.replace(out, sharding=graph.node_sharding)


def _normalization(
    norm: nnx.LayerNorm, x: Float[Array, "*rows width"]
) -> tuple[Array, Array | None, Array | None]:
    """Rows in the dtype of a module's result, its scale and its bias."""
    if not isinstance(norm, nnx.LayerNorm):
        raise TypeError(f"norm: expected an nnx.LayerNorm, got {type(norm).__name__}")
    for name, expected in OVER_FEATURES.items():
        if getattr(norm, name) != expected:
            got = getattr(norm, name)
            raise ValueError(f"norm: expected {name}={expected}, over features, got {got}")
    scale, bias = (None if p is None else p[...] for p in (norm.scale, norm.bias))
    dtype = dtypes.canonicalize_dtype(x, scale, bias, dtype=norm.dtype)
    return jnp.asarray(x, dtype), scale, bias


def normalizes(activation: Any, norm: Any) -> bool:
    """Whether an activation applies the normalization before it by itself."""
    return isinstance(activation, MaxK) and isinstance(norm, nnx.LayerNorm)


def annealed_k(step: int | Int[Array, ""], wide: int, narrow: int, steps: int) -> Int[Array, ""]:
    r"""A schedule for `MaxK(wide, anneal=True).active`: linear from `wide` to `narrow`.

    $$k(t) = \mathrm{round}(\mathrm{wide} + (\mathrm{narrow} - \mathrm{wide}) \min(t / T, 1))$$

    Args:
        step: $t$, an integer, which may be traced; from $T$ on as $T$, below 0 as 0.
        wide, narrow: the first and the last number of entries.
        steps: $T$, the step from which on it is `narrow`.

    Raises:
        TypeError: a count or the step is no integer.
        ValueError: a count is below 1, `steps` from 2^31 on, or `narrow` above `wide`.
    """
    wide = count(wide, "wide", "entries to keep")
    narrow = count(narrow, "narrow", "entries to keep")
    steps = count(steps, "steps", "steps")
    if steps >= 1 << 31:
        raise ValueError(f"steps: expected fewer than 2^31, got {steps}")
    if narrow > wide:
        raise ValueError(f"narrow: expected at most wide, {wide}, got {narrow}")
    # The step from which on i entries fewer are kept, by halves of `steps` rounded up: the product
    # of two counts need not fit in 32 bits.
    fewer = np.arange(1, wide - narrow + 1)
    first = -((steps // 2 - fewer * steps) // max(wide - narrow, 1))
    now = unwrap(step)
    if not isinstance(now, jax.Array):
        now = checks.integer(now, "step", -sys.maxsize, sys.maxsize)
        now = jnp.int32(min(max(now, 0), steps))
    elif now.ndim or not jnp.issubdtype(now.dtype, jnp.integer):
        raise TypeError(f"step: expected an integer, got {now.dtype}{list(now.shape)}")
    # Before it is cast: a step of 64 bits, or unsigned, may be beyond int32. One of 8 bits may have
    # no number of `steps`.
    most = min(steps, int(jnp.iinfo(now.dtype).max))
    done = jnp.clip(now, 0, most).astype(jnp.int32)
    return wide - jnp.searchsorted(jnp.asarray(first, jnp.int32), done, side="right")


def check_activation(activation: Any, widths: Iterable[int]) -> None:
    """Refuses what cannot be called, and a `MaxK` that keeps more entries than the rows that it
    will meet have.

    Raises:
        TypeError: it cannot be called.
        ValueError: naming `k` and the width.
    """
    if not callable(activation):
        raise TypeError(f"activation: expected a function such as jax.nn.relu, got {activation!r}")
    if isinstance(activation, MaxK):
        for width in widths:
            if activation.k > width:
                raise ValueError(
                    f"activation: expected MaxK's k to be at most the width {width} of the "
                    f"hidden rows, got {activation.k}"
                )
