"""What is to be sampled: the static part, checked, and how many edges that can be."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Int, UInt32

from jaxgnn._core.arguments import unwrap
from jaxgnn.graph import Graph
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.philox import key_words

Strategy = Literal["bucket", "fastrand", "stride", "random", "dropedge"]

STRATEGIES = ("bucket", "fastrand", "stride", "random", "dropedge")
LARGEST_SAMPLE = 4096
"""The most edges of a row that `sample_size` may ask for."""
ALL = 2**32
"""The rate 1, in steps of $2^{-32}$."""
NO_LIMIT = 2**31 - 1
MOST_PLACES = 2**31 - 1


class Sample(NamedTuple):
    """Which edges each row takes; static.

    Attributes:
        strategy: its name; three more than users of `sampled_spmm` may ask for. Those by weight
            are `"weighted"`, and `"alias"` where the table has alias tables.
        size: the most edges of a row.
        rate: the largest share of a row, in steps of $2^{-32}$; of `"dropedge"` the probability.
        replace: whether edges are drawn with replacement.
    """

    strategy: Strategy | Literal["labor", "weighted", "alias"]
    size: int
    rate: int
    replace: bool

    @property
    def repeats(self) -> bool:
        """Whether a row may take an edge twice."""
        return self.replace or self.strategy == "fastrand"


class Places(NamedTuple):
    """Where edges are sampled: the operands without derivatives.

    Attributes:
        graph: the graph.
        rows: the receivers whose edges are sampled, out of range for none; `None`: all of them.
        key: the words of the key, or `None`.
        ids: what each place draws by; places of the same id draw the same words. `None`: the
            place's own number. `"dropedge"`, which keeps edges of the graph, has no use for them.
        weights: the table of `DrawWeights`, of draws by weight alone.
    """

    graph: Graph
    rows: Int[Array, " places"] | None
    key: UInt32[Array, " 2"] | None
    ids: UInt32[Array, " places"] | None = None
    weights: Array | None = None

    @property
    def count(self) -> int:
        return self.graph.num_receivers if self.rows is None else self.rows.shape[0]


def arguments(
    graph: Any,
    sample_size: Any,
    sample_rate: Any,
    strategy: Any,
    key: Any,
    replace: Any,
    rows: Any,
    axis_name: str | None = None,
) -> tuple[Sample, Places]:
    """The arguments that sampling operations share, checked."""
    checks.graph_argument(graph)
    checks.choice(strategy, "strategy", STRATEGIES)
    checks.boolean(replace, "replace")
    if replace and strategy != "random":
        raise ValueError(f"replace: expected False with strategy={strategy!r}, got True")
    size, rate = limits(sample_size, sample_rate, strategy, replace, rows)
    if size == NO_LIMIT and (strategy == "random" or rows is not None):
        size = _size_of_rate(graph, rate, sample_rate, strategy)
    if key is None and strategy in ("random", "dropedge"):
        raise ValueError(f"key: expected a JAX key with strategy={strategy!r}, got None")
    if key is not None and strategy in ("bucket", "fastrand"):
        raise ValueError(f"key: expected None with strategy={strategy!r}, which draws nothing")
    words = None if key is None else key_words(checks.key(key, "key"))
    sample = Sample(strategy, size, rate, replace)
    places = Places(graph, receivers(rows, graph.num_receivers), words)
    if axis_name is not None:
        if rows is None:
            raise ValueError(f"axis_name: expected None without rows, got {axis_name!r}")
        ids = first_place(places.count, axis_name) + jnp.arange(places.count, dtype=jnp.uint32)
        places = places._replace(ids=ids)
    if capacity(sample, places) > MOST_PLACES:
        name = "sample_rate" if sample_size is None else "sample_size"
        raise ValueError(
            f"{name}: expected fewer than 2^31 sampled edges in all, got {places.count} rows of "
            f"{size}"
        )
    return sample, places


def first_place(count: int, axis_name: str) -> UInt32[Array, ""]:
    """The number of a device's first place where each along the axis has so many."""
    return device_number(axis_name).astype(jnp.uint32) * jnp.uint32(count)


def device_number(axis_name: Any) -> Int[Array, ""]:
    """The number of the device along an axis of `jax.shard_map`."""
    try:
        return jax.lax.axis_index(axis_name)
    except (NameError, TypeError):
        raise ValueError(
            f"axis_name: expected an axis of a jax.shard_map around the call, got {axis_name!r}"
        ) from None


def largest_share(graph: Graph, rate: int, strategy: str) -> int:
    """The most edges of a row that a rate takes: of the largest in-degree."""
    if isinstance(graph.row_offsets, Tracer):
        other = "" if strategy == "dropedge" else ", or sample_size as well"
        raise ValueError(
            f"sample_rate: expected a graph that is not traced, for its largest in-degree{other}"
        )
    with jax.ensure_compile_time_eval():
        degree = int(jnp.max(graph.in_degrees, initial=0))
    return degree if strategy == "dropedge" else -(-degree * rate // ALL)


def _size_of_rate(graph: Graph, rate: int, sample_rate: Any, strategy: str) -> int:
    """`Sample.size` where only a rate is given and the sample's arrays have a size a row."""
    size = max(largest_share(graph, rate, strategy), 1)
    if size > LARGEST_SAMPLE:
        reason = "strategy='random'" if strategy == "random" else "rows"
        raise ValueError(
            f"sample_rate: expected at most {LARGEST_SAMPLE} edges of a row with {reason}, or "
            f"sample_size as well; {sample_rate} takes {size} of the longest"
        )
    return size


def limits(
    sample_size: Any, sample_rate: Any, strategy: str, replace: bool = False, rows: Any = None
) -> tuple[int, int]:
    """`Sample.size` and `Sample.rate`, checked: what the strategy needs, and nothing unused."""
    size, rate = NO_LIMIT, ALL
    if sample_size is not None:
        size = checks.integer(sample_size, "sample_size", 1, LARGEST_SAMPLE)
    if sample_rate is not None:
        share = checks.number(sample_rate, "sample_rate", 0, np.inf)
        if not 0 < share <= 1:
            raise ValueError(
                f"sample_rate: expected a number above 0 and at most 1, got {sample_rate}"
            )
        # Rounded down: ceil(r d) is 1 for r = 0.1 and d = 10, although 0.1 is a little more.
        rate = max(int(share * ALL), 1)
    if strategy == "dropedge":
        if sample_rate is None or sample_size is not None or rows is not None:
            raise ValueError(
                "sample_rate: strategy='dropedge' expected it, the probability to keep an edge, "
                "without sample_size and rows"
            )
    elif sample_size is None and sample_rate is None:
        raise ValueError("sample_size: expected it or sample_rate, got neither")
    elif replace and sample_rate is not None:
        raise ValueError("sample_rate: expected None with replace=True")
    return size, rate


def receivers(rows: Any, num_receivers: int, name: str = "rows") -> Int[Array, " places"] | None:
    """The receivers as int32, -1 for padding: if known they are checked, else what is out of range
    is padding."""
    if rows is None:
        return None
    rows = unwrap(rows)
    if not isinstance(rows, Tracer):
        try:
            rows = np.asarray(rows)
        except ValueError:  # lists of several lengths
            raise TypeError(f"{name}: expected integers, got {rows!r}") from None
        if rows.ndim == 1 and rows.size == 0 and rows.dtype == np.float64:
            rows = rows.astype(np.int32)  # an empty list
    if not jnp.issubdtype(rows.dtype, jnp.integer):
        raise TypeError(f"{name}: expected integers, got {rows.dtype}")
    if rows.ndim != 1:
        raise ValueError(f"{name}: expected the shape ({name},), got {rows.shape}")
    known = rows if not isinstance(rows, Tracer) else np.zeros(0, np.int32)
    for wrong in known[(known < -1) | (known >= num_receivers)][:1]:
        raise ValueError(
            f"{name}: expected nodes below {num_receivers}, or -1 for padding, got {wrong}"
        )
    if isinstance(rows, Tracer):
        return numbers_below(rows, num_receivers, np.int32)
    return jnp.asarray(rows, jnp.int32)


def numbers_below(
    values: Int[Array | np.ndarray, "*shape"], count: int, dtype: DTypeLike
) -> Int[Array, "*shape"]:
    """Numbers from 0 to `count - 1` in the dtype, -1 for all others, before they are converted."""
    values = values if values.dtype.itemsize >= 4 else values.astype(np.int32)
    inside = values >= 0
    if count <= jnp.iinfo(values.dtype).max:
        inside = inside & (values < count)
    return jnp.where(inside, jnp.asarray(values).astype(dtype), -1)


def capacity(sample: Sample, places: Places) -> int:
    """The most edges that can be taken in all: a static bound."""
    edges, count = places.graph.num_edges, places.count
    if edges == 0:
        return 0
    if sample.strategy == "dropedge":
        return edges
    if sample.replace or places.rows is not None:
        return count * sample.size
    # A row of d edges takes at most ceil(r d) < r d + 1.
    share = min(edges, math.floor(edges * sample.rate / ALL) + count)
    return min(share, count * sample.size)
