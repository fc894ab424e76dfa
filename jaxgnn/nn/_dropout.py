"""Dropout inside a module: applied to values, or passed to an operation that applies it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._core import checks
from jaxgnn.graph import GraphSubstitute, NodeRows
from jaxgnn.nn._features import Features, map_values
from jaxgnn.nn._linear import check_stream
from jaxgnn.ops._dropout.dropout import dropout


class Dropout(nnx.Dropout):
    r"""`nnx.Dropout`, whose mask is drawn by a kernel.

    It takes the same arguments, has the same state and drops with the same probability, but draws
    other values for a key: those that `maxk` drops, by the generator Philox. JAX's generator
    draws where XLA partitions the computation over several devices, for `broadcast_dims`, and
    for arrays whose type is sharded (explicit mesh axes).

    Under `vmap` over keys the examples have masks of their own; with one key they share one.

    Args:
        rate: the probability to drop a value, from 0 to 1.
        broadcast_dims: axes along which values share the mask.
        deterministic: drops nothing, as after `eval()`.
        rng_collection: the name of the stream of keys that is taken from `rngs`.
        rngs: the streams, or one of them; keys may be given in the call instead.

    Source: Srivastava et al., "Dropout" (JMLR 2014); Salmon et al. (SC 2011), section 3.3.
    """

    def __call__(
        self,
        inputs: Float[Array, "*rows width"],
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Float[Array, "*rows width"]:
        """The values that are kept, times $1 / (1 - p)$; 0 elsewhere.

        Args:
            inputs: the values.
            deterministic: as the module's, if not given.
            rngs: a key, or where it comes from; the module's stream, if not given.

        Raises:
            TypeError: the rate is no number, or what `rngs` gives is no key of JAX.
            ValueError: the rate is out of range, or there is not one key.
        """
        checks.number(self.rate, "rate", 0, 1, inclusive=True)
        if isinstance(inputs, NodeRows):
            inputs = jnp.asarray(inputs)
        off = self.deterministic if deterministic is None else deterministic
        source = self.rngs if rngs is None else rngs
        is_drawn = off is not None and not off and 0 < self.rate < 1 and source is not None
        if not is_drawn or self.broadcast_dims or not _is_plain(inputs):
            return super().__call__(inputs, deterministic=deterministic, rngs=rngs)
        if isinstance(source, nnx.Rngs):
            source = source[self.rng_collection]
        return dropout(inputs, self.rate, source() if callable(source) else source)


def _is_plain(x: Any) -> bool:
    """Whether it is an array of floating values, whose type has no explicit sharding."""
    if not isinstance(x, jax.Array | np.ndarray) or not jnp.issubdtype(x.dtype, jnp.floating):
        return False
    return all(axis is None for axis in jax.typeof(x).sharding.spec)


def dropout_module(rate: float, name: str, rngs: nnx.Rngs | None) -> Dropout:
    """Dropout that holds no random state where it drops nothing.

    Raises:
        TypeError: the rate is no number.
        ValueError: the rate is out of range, or there is one and no `rngs` with its stream.
    """
    rate = checks.number(rate, name, 0, 1)
    if rate > 0 and rngs is None:
        raise ValueError(f"rngs: expected nnx.Rngs with {name}={rate}, got None")
    if rate > 0 and isinstance(rngs, nnx.Rngs):
        check_stream(rngs, "dropout", f"{name}={rate}")
    return Dropout(rate, rngs=rngs if rate > 0 else None)


def drop(module: Dropout, x: Features, graph: Any = None) -> Features:
    """Dropout of the rows of a graph's nodes. Of a sharded graph's each device draws for its own,
    by the kernel, where XLA would partition JAX's generator."""
    rate, stream = module.rate, None if module.deterministic else module.rngs
    if not isinstance(graph, GraphSubstitute) or stream is None or not 0 < rate < 1:
        return map_values(module, x)
    key = stream()

    def of_parts(rows: Array) -> Array:
        return graph.map_parts(
            lambda _, x, dropout_rng: dropout(x, rate, dropout_rng),
            "dropout",
            {"x": rows, "dropout_rng": key},
            {"x": "rows", "dropout_rng": "key"},
            "rows",
            split="rows",
        )

    return map_values(of_parts, x)


def dropout_options(module: nnx.Dropout) -> dict[str, Any]:
    """The arguments of an operation that applies dropout: the rate, 0 after `eval()`, and a key."""
    stream = None if module.deterministic else module.rngs
    if stream is None:
        return {"dropout_rate": 0.0, "dropout_rng": None}
    return {"dropout_rate": module.rate, "dropout_rng": stream()}
