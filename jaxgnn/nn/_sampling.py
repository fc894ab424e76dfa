"""The sample of edges that a convolution aggregates, and its random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array

from jaxgnn._core import checks
from jaxgnn.nn._linear import check_stream
from jaxgnn.ops._sampling.sample import STRATEGIES, Strategy, limits

SampleSize = int | None | Sequence[int | None]


class EdgeSample(nnx.Module):
    """What a convolution's `sample_size`, `sample_rate` and `strategy` are kept in.

    In training `"stride"` and `"random"` draw other edges in every call, from the stream `sampling`
    of `rngs`, and so does `"dropedge"`, which keeps an edge with probability `sample_rate`. After
    `eval()` `"stride"` takes the same ones always, and `"dropedge"` all edges: a call's `key` is
    then not used.

    Raises:
        TypeError: `sample_size` is no integer, or `sample_rate` no number.
        ValueError: an option is out of range, `"random"` or `"dropedge"` has no `rngs`, `rngs` has
            no stream `sampling`, or `aggr`, the convolution's reduction, is neither a sum nor a
            mean.
    """

    def __init__(
        self,
        sample_size: int | None,
        strategy: Strategy,
        rngs: nnx.Rngs | None,
        aggr: str = "sum",
        sample_rate: float | None = None,
    ):
        _check(sample_size, sample_rate, strategy, aggr)
        self.sample_size = sample_size
        self.sample_rate = sample_rate
        self.strategy: Strategy = strategy
        self.aggr = aggr
        self.deterministic = False
        draws = self.samples and strategy in ("stride", "random", "dropedge")
        if draws and strategy != "stride" and rngs is None:
            raise ValueError(f"rngs: expected nnx.Rngs with strategy={strategy!r}, got None")
        if draws and rngs is not None:
            check_stream(rngs, "sampling", f"strategy={strategy!r}")
        self.rngs = rngs["sampling"].fork() if draws and rngs is not None else nnx.data(None)

    @property
    def samples(self) -> bool:
        """Whether it was made with a sample."""
        return self.sample_size is not None or self.sample_rate is not None

    def options(
        self,
        sample_size: int | None,
        sample_rate: float | None,
        strategy: Strategy | None,
        key: Array | None,
    ) -> dict[str, Any] | None:
        """The arguments of `sampled_spmm`, a call's before the module's; `None` for all edges."""
        if key is not None:
            key = checks.key(key, "key")
        if sample_size is None and sample_rate is None:
            sample_size, sample_rate = self.sample_size, self.sample_rate
            own = strategy is None or strategy == self.strategy
            if own and self.strategy == "dropedge" and self.deterministic and self.samples:
                return None
        if sample_size is None and sample_rate is None:
            unused = "strategy" if strategy is not None else "key" if key is not None else None
            if unused is not None:
                raise ValueError(f"{unused}: expected None without a sample_size")
            return None
        strategy = self.strategy if strategy is None else strategy
        _check(sample_size, sample_rate, strategy, self.aggr)
        draws = strategy in ("random", "dropedge") or (
            strategy == "stride" and not self.deterministic
        )
        if key is None and self.rngs is not None and draws:
            key = self.rngs()
        return {
            "sample_size": sample_size,
            "sample_rate": sample_rate,
            "strategy": strategy,
            "key": key,
        }


def _check(sample_size: Any, sample_rate: Any, strategy: Any, aggr: str) -> None:
    """That `sampled_spmm` will take them, under this reduction."""
    checks.choice(strategy, "strategy", STRATEGIES)
    for name, value in (("sample_size", sample_size), ("sample_rate", sample_rate)):
        if value is not None and aggr not in ("sum", "mean"):
            raise ValueError(f"{name}: expected None with aggr={aggr!r}, got {value}")
    # Without either all edges are aggregated; `"dropedge"` has no such default.
    if sample_size is not None or sample_rate is not None or strategy == "dropedge":
        limits(sample_size, sample_rate, strategy)


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
    sample_rate: float | None,
    strategy: Strategy | None,
    key: Array | None,
) -> list[dict[str, Any]]:
    """What each layer is called with beside its features: what was given, the key folded in.

    A layer that aggregates all edges gets neither `strategy` nor `key`.
    """
    if key is not None:
        key = checks.key(key, "key")
    calls = []
    sizes = of_layers(sample_size, len(convs))
    for layer, (conv, size) in enumerate(zip(convs, sizes, strict=True)):
        given: dict[str, Any] = {}
        own = getattr(getattr(conv, "sample", None), "samples", False)
        if size is not None or sample_rate is not None or own:
            given = {"sample_size": size, "sample_rate": sample_rate, "strategy": strategy}
            given["key"] = None if key is None else jax.random.fold_in(key, layer)
        calls.append({name: value for name, value in given.items() if value is not None})
    if not any(calls) and (strategy is not None or key is not None):
        unused = "key" if strategy is None else "strategy"
        raise ValueError(f"{unused}: expected None without a sample_size")
    return calls
