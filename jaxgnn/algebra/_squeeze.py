"""A last feature axis of size 1 taken from within an expression, where rules see what is left."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxgnn.algebra._edges import (
    Applied,
    Dropout,
    EdgeInput,
    Edges,
    NodeGather,
    SegmentNormalize,
    apply,
)
from jaxgnn.algebra._operators import dot_with_vector
from jaxgnn.algebra._recognize import squeeze
from jaxgnn.ops._projection.project import add_bias


def drop_last_axis(e: Edges, *, shift_free: bool = False) -> Edges:
    """`e` without its last feature axis, of size 1; rules see what is computed without it, too.

    With `shift_free` a constant that is added does not matter, as before a softmax.
    """
    features = e.features[:-1]
    if isinstance(e, NodeGather):
        return dataclasses.replace(e, features=features, x=e.x[..., 0])
    if isinstance(e, EdgeInput):
        return dataclasses.replace(e, features=features, values=e.values[..., 0])
    if isinstance(e, SegmentNormalize):
        operand = drop_last_axis(e.operand, shift_free=e.method == "softmax")
        return dataclasses.replace(e, features=features, operand=operand)
    if isinstance(e, Dropout):
        return dataclasses.replace(e, features=features, operand=drop_last_axis(e.operand))
    assert isinstance(e, Applied)
    if e.name in ("leaky_relu", "scale", "with scalar", "exp"):
        return dataclasses.replace(e, features=features, operands=(drop_last_axis(e.operands[0]),))
    if e.name == "linear":
        kernel, bias = e.parameters
        (inner,) = e.operands
        out = dot_with_vector(inner, jnp.broadcast_to(kernel[:, 0], inner.features))
        out = dataclasses.replace(out, template=e.template)
        if bias is None or shift_free:
            return out
        return apply(
            "with scalar", lambda x: add_bias(x[..., None], bias)[..., 0], [out], template="{}"
        )
    if e.name in ("+", "-", "*", "/") and len({operand.dtype for operand in e.operands}) == 1:
        axes, free = len(e.features), shift_free and e.name in ("+", "-")
        operands = (
            drop_last_axis(o, shift_free=free) if len(o.features) == axes else o for o in e.operands
        )
        return dataclasses.replace(e, features=features, operands=tuple(operands))
    return squeeze(e)
