"""The layers of GraphSAGE's embedding, by two kernels on a GPU: the children's with the sum of its
rows over groups, and both of the sources'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._core import device, ffi
from jaxgnn._core.derivative import with_derivative_of
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import sequential
from jaxgnn._core.uninitialized import uninitialized
from jaxgnn.ops._aggregation.kernels import REDUCE

_GROUPED, _SOURCES = "jaxgnn_sage_layer", "jaxgnn_source_layers"
_ROW_BYTES, _COLUMNS = 256, 128  # cuda/sampling/embedding.h
_SMALL_ROW_BYTES = 128  # where a block has 99 KB of shared memory
WARPGROUPS = True  # whether a Hopper runs its own kernels
# Settings of `jax_default_matmul_precision` with which XLA multiplies float32 in TF32 on a GPU.
_TF32 = (None, "default", "fastest", "tensorfloat32", "TF32_TF32_F32")


class LayerInputs(NamedTuple):
    """What the kernel reads.

    Attributes:
        nodes: of each place, -1 for none, `group` places after the other.
        features: of all nodes.
        around: of each place the reduced features of what it drew.
        own_matrix, around_matrix: what features and `around` are multiplied by.
    """

    nodes: Int[Array, " places"]
    features: Float[Array, "num_nodes width"]
    around: Float[Array, "places width"]
    own_matrix: Float[Array, "width own"]
    around_matrix: Float[Array, "width neighbors"]


def has_kernel(inputs: LayerInputs, activation: Callable[[Array], Array]) -> bool:
    """Whether a GPU's kernel takes it; float32 only where XLA, too, would multiply in TF32."""
    features = inputs.features
    most = _SMALL_ROW_BYTES if device.has_small_blocks() else _ROW_BYTES
    return (
        activation is jax.nn.relu
        and _fits(features, inputs.own_matrix, inputs.around_matrix)
        and _row_bytes(features) <= most
        and inputs.around.shape[1] == features.shape[1]
        and inputs.around.dtype == features.dtype
        and inputs.nodes.shape[0] > 0
    )


def _row_bytes(rows: Float[Array, "rows width"]) -> int:
    return rows.shape[1] * rows.dtype.itemsize


def _fits(rows: Float[Array, "rows width"], *matrices: Float[Array, "width columns"]) -> bool:
    """What the kernels ask of a layer."""
    half = rows.dtype.itemsize == 2
    return (
        (half or (rows.dtype == "float32" and _multiplies_in_tf32()))
        and _row_bytes(rows) > 0
        and _row_bytes(rows) % 16 == 0
        and all(matrix.shape[1] <= _COLUMNS for matrix in matrices)
    )


def _multiplies_in_tf32() -> bool:
    return getattr(jax.config, "jax_default_matmul_precision") in _TF32  # noqa: B009


def grouped_layer(
    group: int, reduce: str, inputs: LayerInputs, otherwise: Callable[..., Array], *operands: Any
) -> Float[Array, "groups columns"]:
    r"""The sum or mean over each group of places of $n(\mathrm{relu}([x_v W_f ; a_v W_a]))$.

    Places of no node are left out. By `otherwise(inputs, *operands)` where no kernel does it, and
    differentiated as that.
    """
    groups = inputs.nodes.shape[0] // group
    columns = inputs.own_matrix.shape[1] + inputs.around_matrix.shape[1]

    def kernel(inputs: LayerInputs, *_: Any) -> Array:
        result = [((groups, columns), inputs.features.dtype)]
        attributes = {"group": group, "reduce": REDUCE[reduce], "warpgroups": WARPGROUPS}
        return ffi.call(_GROUPED, list(inputs), result, **attributes)[0]

    def choose(inputs: LayerInputs, *operands: Any) -> Array:
        return dispatch((_GROUPED,), kernel, otherwise, inputs, *operands, platforms=("cuda",))

    return with_derivative_of(otherwise, sequential(choose))(inputs, *operands)


class SourceInputs(NamedTuple):
    """The first layer's inputs, a place each source, and what the last one reads besides.

    Attributes:
        first: as the children's.
        around: of each source its children's reduced rows.
        own_matrix, around_matrix: what the first layer's rows and `around` are multiplied by.
    """

    first: LayerInputs
    around: Float[Array, "places hidden"]
    own_matrix: Float[Array, "hidden own"]
    around_matrix: Float[Array, "hidden neighbors"]


class Into(NamedTuple):
    """Where results are written: in the rows of an array from `start` on, which has as many."""

    rows: Float[Array, "rows columns"]
    start: Int[Array, ""]

    def written(self, results: Float[Array, "places columns"]) -> Float[Array, "rows columns"]:
        """The array with the results."""
        zero = jnp.zeros_like(self.start)
        return jax.lax.dynamic_update_slice(self.rows, results, (self.start, zero))


def source_layers(
    inputs: SourceInputs, into: Into | None, otherwise: Callable[..., Array], *operands: Any
) -> Float[Array, "rows columns"]:
    r"""$n(\mathrm{relu}([h_s W_f ; a_s W_a]))$ of the first layer's rows
    $h_s = n(\mathrm{relu}([x_s W_{f1} ; a^1_s W_{a1}]))$, in the dtype of the features.

    By `otherwise(inputs, *operands)` where no kernel does it, and differentiated as that. The first
    layer is one that has a kernel. Its rows are zeros for places of no node. With `into` the array
    with the results.
    """
    _, around, own, neighbors = inputs
    places, hidden = around.shape
    columns = own.shape[1] + neighbors.shape[1]

    def reference(inputs: SourceInputs, into: Into | None, *operands: Any) -> Array:
        found = otherwise(inputs, *operands)
        return found if into is None else into.written(found)

    def kernel(inputs: SourceInputs, into: Into | None, *_: Any) -> Array:
        nodes, features, first_around, *first_matrices = inputs.first
        of_first = [nodes, features, first_around, *(matrix.T for matrix in first_matrices)]
        of_last = [inputs.around, inputs.own_matrix.T, inputs.around_matrix.T]
        if into is None:
            into = Into(uninitialized((places, columns), inputs.around), jnp.int32(0))
        given = [*of_first, *of_last, into.start.reshape(1), into.rows]
        # The second result is the first layer's, which not every kernel writes.
        results = [(into.rows.shape, around.dtype), ((places, hidden), around.dtype)]
        aliases = {len(given) - 1: 0}
        return ffi.call(_SOURCES, given, results, aliases, warpgroups=WARPGROUPS)[0]

    def choose(inputs: SourceInputs, into: Into | None, *operands: Any) -> Array:
        everything = inputs, into, *operands
        return dispatch((_SOURCES,), kernel, reference, *everything, platforms=("cuda",))

    if not _fits(around, own, neighbors):
        return reference(inputs, into, *operands)
    return with_derivative_of(reference, sequential(choose))(inputs, into, *operands)
