"""Neighbors drawn with replacement, and the sum of their rows: kernels that a GPU alone has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

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


def is_drawn(sample: Sample, places: Places) -> bool:
    """Whether places draw by ids, uniformly and with replacement, as the kernels do."""
    by_ids = places.rows is not None and places.ids is not None
    return sample.strategy == "random" and sample.replace and by_ids


def sums_rows(sample: Sample, places: Places, x: Float[Array, "num_senders width"]) -> bool:
    """Whether `drawn_rows` has a kernel for them."""
    fits = sample.size <= _MOST_DRAWN and x.dtype.itemsize < 8 and x.size > 0
    return is_drawn(sample, places) and fits


def drawn_neighbors(
    sample: Sample, places: Places, otherwise: Callable[..., Array], *operands: Any
) -> Int[Array, "places size"]:
    """The neighbors that each place draws, of nodes without any themselves; by
    `otherwise(places, *operands)` where no kernel does it."""

    def kernel(places: Places, *_: Any) -> Array:
        result = [((places.count, sample.size), np.int32)]
        return ffi.call(_NEIGHBORS, _structure(places), result)[0]

    def choose(places: Places, *operands: Any) -> Array:
        return dispatch((_NEIGHBORS,), kernel, otherwise, places, *operands, platforms=("cuda",))

    return sequential(choose)(places, *operands)


def _structure(places: Places) -> list[Any]:
    rows = neighbors(places.graph, transpose=False)
    return [rows.offsets, or_empty(rows.columns), places.rows, places.ids, places.key]


def drawn_rows(
    sample: Sample,
    places: Places,
    x: Float[Array, "num_senders width"],
    reduce: str,
    otherwise: Callable[..., Array],
    *operands: Any,
) -> Float[Array, "places width"]:
    """The sum or mean of the rows at the neighbors that each place draws, of nodes without any
    their own row; by `otherwise(places, x, *operands)` where no kernel does it, and differentiated
    as that."""
    width = x.shape[1]

    def kernel(places: Places, x: Array, *_: Any) -> Array:
        padded = pad_by(x, -width % (_VECTOR_BYTES // x.dtype.itemsize))
        (out,) = ffi.call(
            _ROWS,
            [*_structure(places), padded],
            [((places.count, padded.shape[1]), x.dtype)],
            sample_size=sample.size,
            reduce=REDUCE[reduce],
        )
        return out[:, :width]

    def choose(places: Places, x: Array, *operands: Any) -> Array:
        return dispatch((_ROWS,), kernel, otherwise, places, x, *operands, platforms=("cuda",))

    return with_derivative_of(otherwise, sequential(choose))(places, x, *operands)
