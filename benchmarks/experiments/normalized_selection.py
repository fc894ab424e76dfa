"""MaxK's selection from layer-normalized rows, in one kernel and in two steps.

    python -m benchmarks.experiments.normalized_selection [--device gpu] [--rows 232965]
        [--width 256] [--k 32] [--dtype bfloat16] [--json FILE]

Milliseconds, forward and with the backward pass: of `maxk` that normalizes, of jaxgnn's and Flax's
`LayerNorm` (Flax's also by the variance that it takes unless told otherwise, E(x^2) - E(x)^2) with
the selection after it, and of the selection alone. On a CPU it is the processor time of all
threads, on a GPU the clock's; the medians of calls in turns in one process.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

from benchmarks.experiments.dropout import in_turns, ready
from benchmarks.experiments.layer_norm import report
from jaxgnn import maxk
from jaxgnn.nn import LayerNorm

_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured."""

    device: Literal["cpu", "gpu"] = "cpu"
    rows: int = 50_000
    width: int = 256
    k: int = 32
    dtype: str = "float32"
    repeats: int = 9
    json: Path | None = None
    """A file for the results."""


def selections(options: Options) -> dict[str, Callable[..., Any]]:
    """The kept values of rows, by a scale and a bias."""

    def fused(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        options_ = {"norm_epsilon": _EPSILON, "norm_scale": scale, "bias": bias}
        return maxk(x, options.k, **options_, impl="kernel").values

    def apart(
        kind: type[nnx.LayerNorm], fast: bool, x: jax.Array, scale: jax.Array, bias: jax.Array
    ) -> jax.Array:
        norm = kind(
            options.width,
            epsilon=_EPSILON,
            use_fast_variance=fast,
            dtype=jnp.dtype(options.dtype),
            rngs=nnx.Rngs(0),
        )
        norm.scale[...], norm.bias[...] = scale, bias
        return maxk(norm(x), options.k, impl="kernel").values

    def alone(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        del scale, bias
        return maxk(x, options.k, impl="kernel").values

    return {
        "one kernel": fused,
        "jaxgnn.nn.LayerNorm, then the selection": functools.partial(apart, LayerNorm, False),
        "nnx.LayerNorm, then the selection": functools.partial(apart, nnx.LayerNorm, False),
        "nnx.LayerNorm by E(x^2), then it": functools.partial(apart, nnx.LayerNorm, True),
        "the selection alone": alone,
    }


def cases(options: Options) -> dict[str, Callable[[], Any]]:
    """Each forward, and with the gradients of the rows, the scale and the bias."""
    rng = np.random.default_rng(0)
    x, ct = (
        jnp.asarray(rng.standard_normal((options.rows, width), np.float32), options.dtype)
        for width in (options.width, options.k)
    )
    scale, bias = (jnp.asarray(rng.uniform(0.5, 1.5, options.width), jnp.float32) for _ in "sb")

    def both(select: Callable[..., Any], *operands: Any) -> Any:
        *moving, ct = operands
        out, pullback = jax.vjp(select, *moving)
        return out, pullback(ct)

    calls = {}
    for name, select in selections(options).items():
        calls[f"{name}, forward"] = ready(select, x, scale, bias)
        calls[f"{name}, both"] = ready(functools.partial(both, select), x, scale, bias, ct)
    return calls


def main() -> None:
    """Measures and prints a table."""
    options = tyro.cli(Options, config=(tyro.conf.FlagCreatePairsOff,))
    jax.config.update("jax_default_device", jax.devices(options.device)[0])
    found = in_turns(cases(options), options.repeats)
    shape = [options.rows, options.width]
    report(found, options.json, shape=shape, k=options.k, dtype=options.dtype)


if __name__ == "__main__":
    main()
