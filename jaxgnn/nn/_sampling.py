"""The sample of edges that a convolution aggregates, and its random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
from flax import nnx
from jaxtyping import Array

from jaxgnn._core import checks
from jaxgnn.ops import LARGEST_SAMPLE

Strategy = Literal["bucket", "fastrand", "stride", "random"]
SampleSize = int | None | Sequence[int | None]
STRATEGIES = ("bucket", "fastrand", "stride", "random")


class EdgeSample(nnx.Module):
    """What a convolution's `sample_size` and `strategy` are kept in.

    In training `"stride"` and `"random"` draw other edges in every call, from the stream `sampling`
    of `rngs`. After `eval()` `"stride"` takes the same ones always.

    Raises:
        TypeError: `sample_size` is no integer.
        ValueError: an option is out of range, `"random"` has no `rngs`, or `aggr`, the
            convolution's reduction, is neither a sum nor a mean.
    """

    def __init__(
        self,
        sample_size: int | None,
        strategy: Strategy,
        rngs: nnx.Rngs | None,
        aggr: str = "sum",
    ):
        checks.choice(strategy, "strategy", STRATEGIES)
        self.sample_size = _checked(sample_size, aggr)
        self.strategy: Strategy = strategy
        self.aggr = aggr
        self.deterministic = False
        draws = sample_size is not None and strategy in ("stride", "random")
        if draws and strategy == "random" and rngs is None:
            raise ValueError("rngs: expected nnx.Rngs with strategy='random', got None")
        self.rngs = rngs["sampling"].fork() if draws and rngs is not None else nnx.data(None)

    def options(
        self, sample_size: int | None, strategy: Strategy | None, key: Array | None
    ) -> dict[str, Any] | None:
        """The arguments of `sampled_spmm`, a call's before the module's; `None` for all edges."""
        if sample_size is None:
            sample_size = self.sample_size
        if sample_size is None:
            unused = "strategy" if strategy is not None else "key" if key is not None else None
            if unused is not None:
                raise ValueError(f"{unused}: expected None without a sample_size")
            return None
        strategy = self.strategy if strategy is None else strategy
        checks.choice(strategy, "strategy", STRATEGIES)
        draws = strategy == "random" or (strategy == "stride" and not self.deterministic)
        if key is None and self.rngs is not None and draws:
            key = self.rngs()
        return {"sample_size": _checked(sample_size, self.aggr), "strategy": strategy, "key": key}


def _checked(sample_size: int | None, aggr: str) -> int | None:
    if sample_size is None:
        return None
    if aggr not in ("sum", "mean"):
        raise ValueError(f"sample_size: expected None with aggr={aggr!r}, got {sample_size}")
    return checks.integer(sample_size, "sample_size", 1, LARGEST_SAMPLE)


def of_layers(sample_size: SampleSize, num_layers: int) -> list[int | None]:
    """A model's `sample_size`, one for all layers or one a layer, for each layer."""
    if not isinstance(sample_size, Sequence):
        return [sample_size] * num_layers
    if len(sample_size) != num_layers:
        raise ValueError(
            f"sample_size: expected one for each of {num_layers} layers, got {len(sample_size)}"
        )
    return list(sample_size)


def calls_of_layers(
    convs: Sequence[nnx.Module],
    sample_size: SampleSize,
    strategy: Strategy | None,
    key: Array | None,
) -> list[dict[str, Any]]:
    """What each layer is called with beside its features: what was given, the key folded in.

    A layer that aggregates all edges gets neither `strategy` nor `key`.
    """
    calls = []
    sizes = of_layers(sample_size, len(convs))
    for layer, (conv, size) in enumerate(zip(convs, sizes, strict=True)):
        given: dict[str, Any] = {}
        own = getattr(getattr(conv, "sample", None), "sample_size", None)
        if size is not None or own is not None:
            given = {"sample_size": size, "strategy": strategy}
            given["key"] = None if key is None else jax.random.fold_in(key, layer)
        calls.append({name: value for name, value in given.items() if value is not None})
    if not any(calls) and (strategy is not None or key is not None):
        unused = "key" if strategy is None else "strategy"
        raise ValueError(f"{unused}: expected None without a sample_size")
    return calls
