"""The two layers of GraphSAGE's embedding, each one kernel on a GPU: the first with the sum of its
rows over groups, and the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int

from jaxgnn._core import ffi
from jaxgnn._core.derivative import with_derivative_of
from jaxgnn._core.dispatch import dispatch
from jaxgnn._core.folding import sequential
from jaxgnn.ops._aggregation.kernels import REDUCE

_GROUPED, _UNIT = "jaxgnn_sage_layer", "jaxgnn_unit_layer"
_ROW_BYTES, _COLUMNS = 256, 128  # cuda/sampling/embedding.h
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
    return (
        activation is jax.nn.relu
        and _fits(features, inputs.own_matrix, inputs.around_matrix)
        and _row_bytes(features) <= _ROW_BYTES
        and inputs.around.shape[1] == features.shape[1]
        and inputs.nodes.shape[0] > 0
    )


def _row_bytes(rows: Float[Array, "rows width"]) -> int:
    return rows.shape[1] * rows.dtype.itemsize


def _fits(rows: Float[Array, "rows width"], *matrices: Float[Array, "width columns"]) -> bool:
    """What both kernels ask of a layer."""
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
        return ffi.call(_GROUPED, list(inputs), result, group=group, reduce=REDUCE[reduce])[0]

    def choose(inputs: LayerInputs, *operands: Any) -> Array:
        return dispatch((_GROUPED,), kernel, otherwise, inputs, *operands, platforms=("cuda",))

    return with_derivative_of(otherwise, sequential(choose))(inputs, *operands)


class UnitLayerInputs(NamedTuple):
    """Two inputs of the same dtype, and what they are multiplied by."""

    x: Float[Array, "rows width"]
    around: Float[Array, "rows width"]
    own_matrix: Float[Array, "width own"]
    around_matrix: Float[Array, "width neighbors"]


def unit_layer(
    inputs: UnitLayerInputs, otherwise: Callable[[UnitLayerInputs], Array]
) -> Float[Array, "rows columns"]:
    r"""$n(\mathrm{relu}([x W_f ; a W_a]))$ in the dtype of $x$.

    By `otherwise(inputs)` where no kernel does it, and differentiated as that.
    """
    x, _, own, neighbors = inputs
    if not _fits(x, own, neighbors):
        return otherwise(inputs)

    def kernel(inputs: UnitLayerInputs) -> Array:
        result = [((x.shape[0], own.shape[1] + neighbors.shape[1]), x.dtype)]
        transposed = (inputs.own_matrix.T, inputs.around_matrix.T)
        return ffi.call(_UNIT, [inputs.x, inputs.around, *transposed], result)[0]

    def choose(inputs: UnitLayerInputs) -> Array:
        return dispatch((_UNIT,), kernel, otherwise, inputs, platforms=("cuda",))

    return with_derivative_of(otherwise, sequential(choose))(inputs)
