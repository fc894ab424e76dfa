"""Additive attention over compressed balanced sparse rows as one differentiable map.

`Operands.v` is a `jaxgnn.CBSR` of rows `[num_senders, heads]`. Its gradient is computed at the kept
positions alone.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._core.platform import Impl
from jaxgnn.ops._aggregation.kernels import node_dots
from jaxgnn.ops._attention import gat_rule
from jaxgnn.ops._attention import sparse_kernels as kernels
from jaxgnn.ops._attention.gat_kernels import Attention, Operands
from jaxgnn.ops._core.recomputed import recomputed
from jaxgnn.ops._core.sparse_rows import scatter


def composition(
    static: Attention, operands: Operands, impl: Impl = None
) -> Float[Array, "num_receivers heads width"]:
    """The composition on the dense rows; it materializes these and `[num_edges, heads]` arrays."""
    return gat_rule.composition(static, with_dense_rows(operands), impl)


def with_dense_rows(operands: Operands) -> Operands:
    """The operands with the dense form of `v`."""
    v = operands.v
    k = v.values.shape[2]
    dense = scatter(v.width, v.values.reshape(-1, k), v.indices.reshape(-1, k))
    return operands._replace(v=dense.reshape(v.shape))


def _gradients(
    static: Attention,
    operands: Operands,
    out: Float[Array, "num_receivers heads width"],
    log_sum: Float[Array, "num_receivers heads"],
    cotangent: Float[Array, "num_receivers heads width"],
) -> Operands:
    """Those of `gat_rule`, where $v_j$ and $dv_j$ have the kept positions alone."""
    delta = node_dots(cotangent, out)
    return Operands(None, *kernels.gradients(static, operands, log_sum, delta, cotangent), None)  # type: ignore[arg-type]


# As MaxK's, the kernels of a GPU do not add in float64.
_attend = recomputed(kernels.TARGETS, kernels.forward, _gradients, composition)
_attend_float64 = recomputed(kernels.TARGETS, kernels.forward, _gradients, composition, ("cpu",))


def attend(static: Attention, operands: Operands) -> tuple[Array, Any]:
    """The averages, and the log-sum-exp of each receiver's scores."""
    double = operands.v.dtype == jnp.float64
    return (_attend_float64 if double else _attend)(static, operands)
