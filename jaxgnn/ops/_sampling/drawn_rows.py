"""Neighbors drawn with replacement, and the sum of their rows: kernels that a GPU alone has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jaxgnn._core import ffi
from jaxgnn._core.derivative import with_derivative_of
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import sequential
from jaxgnn.ops._aggregation.kernels import REDUCE
from jaxgnn.ops._core.padding import pad_by
from jaxgnn.ops._core.rows import neighbors, or_empty
from jaxgnn.ops._sampling.sample import Places, Sample

_NEIGHBORS, _ROWS = "jaxgnn_drawn_neighbors", "jaxgnn_drawn_rows"
_MOST_DRAWN = 128  # cuda/sampling/embedding.h
_VECTOR_BYTES = 16


def is_drawn(sample: Sample) -> bool:
    """Whether places draw uniformly and with replacement, as the kernels do."""
    return sample.strategy == "random" and sample.replace


def sums_rows(sample: Sample, x: Float[Array, "num_senders width"]) -> bool:
    """Whether `drawn_rows` has a kernel for them."""
    return is_drawn(sample) and sample.size <= _MOST_DRAWN and x.dtype.itemsize < 8 and x.size > 0


def drawn_neighbors(
    sample: Sample,
    places: Places,
    nodes: Int[Array, " places"],
    first: UInt32[Array, ""],
    otherwise: Callable[..., Array],
    *operands: Any,
) -> Int[Array, "places size"]:
    """The neighbors that each place draws, of nodes without any themselves.

    By `otherwise(places, nodes, *operands)` where no kernel does it. A kernel reads the nodes as
    they are, out of range for none, and draws by ids from `first` on: the same as in `places`.
    """

    def kernel(places: Places, nodes: Array, first: Array, *_: Any) -> Array:
        result = [((places.count, sample.size), np.int32)]
        return ffi.call(_NEIGHBORS, _structure(places, nodes, first), result)[0]

    reference = _without_first(otherwise)

    def choose(*operands: Any) -> Array:
        return dispatch((_NEIGHBORS,), kernel, reference, *operands, platforms=("cuda",))

    return sequential(choose)(places, nodes, first, *operands)


def _without_first(otherwise: Callable[..., Array]) -> Callable[..., Array]:
    """Of a kernel's operands: the ids that `first` gives the kernel are in the places."""

    def reference(places: Places, nodes: Array, first: Array, *operands: Any) -> Array:
        return otherwise(places, nodes, *operands)

    return reference


def _structure(places: Places, nodes: Array, first: Array) -> list[Any]:
    rows = neighbors(places.graph, transpose=False)
    return [rows.offsets, or_empty(rows.columns), nodes, first.reshape(1), places.key]


def drawn_rows(
    sample: Sample,
    places: Places,
    nodes: Int[Array, " places"],
    first: UInt32[Array, ""],
    x: Float[Array, "num_senders width"],
    reduce: str,
    otherwise: Callable[..., Array],
    *operands: Any,
) -> Float[Array, "places width"]:
    """The sum or mean of the rows at the neighbors that each place draws, of nodes without any
    their own row; by `otherwise(places, nodes, x, *operands)` where no kernel does it, and
    differentiated as that. Nodes and `first` as in `drawn_neighbors`."""
    width = x.shape[1]

    def kernel(places: Places, nodes: Array, first: Array, x: Array, *_: Any) -> Array:
        padded = pad_by(x, -width % (_VECTOR_BYTES // x.dtype.itemsize))
        (out,) = ffi.call(
            _ROWS,
            [*_structure(places, nodes, first), padded],
            [((places.count, padded.shape[1]), x.dtype)],
            sample_size=sample.size,
            reduce=REDUCE[reduce],
        )
        return out[:, :width]

    reference = _without_first(otherwise)

    def choose(*operands: Any) -> Array:
        return dispatch((_ROWS,), kernel, reference, *operands, platforms=("cuda",))

    both = with_derivative_of(reference, sequential(choose))
    return both(places, nodes, first, x, *operands)
