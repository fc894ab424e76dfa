"""Linear layers with PyTorch's initial values, and their order with an aggregation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._core.arguments import as_integer
from jaxgnn._core.checks import boolean, floating_dtype
from jaxgnn.graph import GraphSubstitute, NodeRows
from jaxgnn.nn._features import Features, Tree, cast, map_values
from jaxgnn.ops import CBSR
from jaxgnn.ops._projection.project import add_bias
from jaxgnn.ops._projection.project import project as project_rows

Initializer = Callable[..., Array]
"""`(key, shape, dtype) -> array`."""

kaiming_kernel: Initializer = jax.nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
r"""Uniform on $\pm 1 / \sqrt{F_\mathrm{in}}$: what `torch.nn.Linear` starts from."""

glorot_kernel: Initializer = jax.nn.initializers.glorot_uniform()
r"""Uniform on $\pm \sqrt{6 / (F_\mathrm{in} + F_\mathrm{out})}$."""


def kaiming_bias(in_features: int) -> Initializer:
    r"""Uniform on $\pm 1 / \sqrt{F_\mathrm{in}}$, the bias of `torch.nn.Linear`."""
    bound = 1 / math.sqrt(in_features)

    def init(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class Linear(nnx.Linear):
    """`nnx.Linear` whose gradients of 16-bit rows are summed in float32, $W$'s by a kernel."""

    def __call__(self, inputs: Float[Array, "*rows in_features"], graph: Any = None) -> Array:
        return _with_bias(self, project(self, inputs, graph))


def linear(
    in_features: int,
    out_features: int,
    *,
    use_bias: bool = True,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    kernel_init: Initializer = kaiming_kernel,
    bias_init: Initializer | None = None,
    rngs: nnx.Rngs,
) -> nnx.Linear:
    """`nnx.Linear` that starts as PyTorch's does; `bias_init` None is `kaiming_bias`.

    Raises:
        TypeError: a width is no integer, `use_bias` no boolean, a dtype not floating, or `rngs` are
            none.
        ValueError: a width is below 1.
    """
    check_options(dtype, param_dtype, rngs)
    boolean(use_bias, "use_bias")
    return Linear(
        width(in_features, "in_features"),
        width(out_features, "out_features"),
        use_bias=use_bias,
        dtype=dtype,
        param_dtype=param_dtype,
        kernel_init=kernel_init,
        bias_init=kaiming_bias(in_features) if bias_init is None else bias_init,
        rngs=rngs,
    )


def check_options(dtype: Any, param_dtype: Any, rngs: Any) -> None:
    """What all layers with parameters take."""
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"rngs: expected nnx.Rngs, got {type(rngs).__name__}")
    check_dtypes(dtype, param_dtype)


def check_stream(rngs: nnx.Rngs, name: str, why: str) -> None:
    """That `rngs` has the stream, which `why` takes, or a default one."""
    if name not in rngs and "default" not in rngs:
        got = ", ".join(rngs) or "none"
        raise ValueError(f"rngs: expected the stream {name!r} with {why}, got only {got}")


def check_dtypes(dtype: Any, param_dtype: Any) -> None:
    if dtype is not None:
        floating_dtype(dtype, "dtype")
    floating_dtype(param_dtype, "param_dtype")


def width(value: Any, name: str) -> int:
    """A number of features, checked."""
    return count(value, name, "features")


def width_pair(value: Any, name: str) -> tuple[int, int]:
    """The numbers of features of the senders and of the receivers, or one for both, checked."""
    pair = value if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name}: expected a number or a pair, got {value!r}")
    senders, receivers = (width(part, name) for part in pair)
    return senders, receivers


def count(value: Any, name: str, what: str) -> int:
    """A positive integer, checked."""
    integer = as_integer(value)
    if integer is None:
        raise TypeError(f"{name}: expected a number of {what}, got {value!r}")
    if integer < 1:
        raise ValueError(f"{name}: expected at least 1, got {integer}")
    return integer


def promote(layer: nnx.Linear, x: Array) -> Array:
    """`x` in the dtype in which `layer` would compute with it."""
    x, _ = dtypes.promote_dtype((x, layer.kernel[...]), dtype=layer.dtype)
    return x


def project(layer: nnx.Linear, x: Array, graph: Any = None) -> Array:
    """$x W$, without the bias; on a sharded `graph` of its nodes' rows, each device of its own."""
    x, kernel = dtypes.promote_dtype((x, layer.kernel[...]), dtype=layer.dtype)
    if not isinstance(graph, GraphSubstitute):
        return project_rows(x, kernel, layer.precision)
    return graph.map_parts(
        lambda _, x, kernel: project_rows(x, kernel, layer.precision),
        "linear",
        {"x": x, "kernel": kernel},
        {"x": "rows", "kernel": "replicated"},
        "rows",
        split="rows",
    )


def _with_bias(layer: nnx.Linear, out: Array) -> Array:
    return out if layer.bias is None else add_bias(out, layer.bias[...])


def linear_of_rows(
    layer: nnx.Linear, x: Float[Array, "nodes *batch in_features"], graph: Any
) -> Array:
    """The layer, of the rows of a graph's nodes. Of a sharded graph's each device has its own, so
    that the kernel of the weight gradient may run, which XLA could not partition; but not by a
    layer that a user has put in our own one's place."""
    return layer(x, graph) if type(layer) is Linear else layer(x)


def aggregate_and_transform(
    layer: nnx.Linear,
    aggregate: Callable[[Tree], Float[Array, "num_receivers *batch features"]],
    x: Tree,
    *,
    transform_first: bool,
) -> Float[Array, "num_receivers *batch out_features"]:
    r"""$\mathrm{aggregate}(x) \, W + b$ for an aggregation that is linear in $x$.

    It equals $\mathrm{aggregate}(x W) + b$. Aggregation is bound by the bytes of the rows that it
    gathers, so the order with the narrower rows is the faster one ("propagation postponed").
    Either order stores one array of nodes for the backward pass. Sparse rows (`CBSR`) are narrow,
    and a projection would fill them: they are aggregated first.

    Args:
        layer: $W$ and $b$.
        aggregate: the linear map; it is called with rows like `x`.
        x: features, dense or sparse, or a pair of them.
        transform_first: whether to project dense features before the aggregation.

    Source: Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022), section 4.
    """
    if not transform_first or _any_sparse(x):
        return layer(aggregate(promoted(layer, x)))
    return _with_bias(layer, aggregate(map_values(lambda rows: project(layer, rows), x)))


def linear_pair(
    first: nnx.Linear,
    second: nnx.Linear,
    x: Float[Array, "*batch in_first"],
    y: Float[Array, "*batch in_second"],
) -> Float[Array, "*batch out_features"]:
    r"""$x W_1 + b + y W_2$ as one GEMM, $[x ; y ; 1] \, [W_1 ; W_2 ; b]$.

    The output is written once where two GEMMs and their sum write it three times, and its
    cotangent is read once, $b$'s gradient included. It pays where `x` and `y` have to be written
    in any case, so that the concatenation is no copy more.
    """
    x, y = promote(first, x), promote(second, y)
    parts, kernels = [x, y], [first.kernel[...], second.kernel[...]]
    if first.bias is not None:
        # Rows of whole vectors of 16 bytes, for the sake of cuBLAS.
        more = -(x.shape[-1] + y.shape[-1] + 1) % 8 + 1
        parts.append(jnp.ones((*x.shape[:-1], more), x.dtype))
        kernels.append(jnp.pad(first.bias[...][None], ((0, more - 1), (0, 0))))
    kernel = jnp.concatenate([kernel.astype(x.dtype) for kernel in kernels])
    return project_rows(jnp.concatenate(parts, axis=-1), kernel, first.precision)


def promoted(layer: nnx.Linear, x: Tree) -> Tree:
    """`promote` of all features; nodes' rows of that dtype stay where they are."""

    def promoted_rows(rows: Features) -> Features:
        if isinstance(rows, NodeRows):
            kernel = layer.kernel[...]
            dtype = dtypes.canonicalize_dtype(rows.values, kernel, dtype=layer.dtype)
            return cast(rows, dtype)
        return map_values(lambda array: promote(layer, array), rows)

    return jax.tree.map(promoted_rows, x, is_leaf=lambda leaf: isinstance(leaf, CBSR | NodeRows))


def _any_sparse(x: Any) -> bool:
    return any(isinstance(rows, CBSR) for rows in (x if isinstance(x, tuple) else (x,)))
