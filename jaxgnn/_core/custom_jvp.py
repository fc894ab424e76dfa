"""`custom_jvp`: `jax.custom_jvp` whose rule also holds for derivatives of a differentiated loop.

Reverse mode evaluates the body of a `jax.lax.scan` in part, to hoist what no iteration changes. It
inlines functions of `jax.custom_jvp` there: a second derivative would then be that of the function
itself, and kernels have none. A primitive stays as it is, so that the function is made one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.interpreters import ad, mlir

from jaxgnn import config
from jaxgnn._core.primitive import make_primitive


class custom_jvp:
    """`jax.custom_jvp(function, nondiff_argnums)`, of static arguments that are the first ones.

    With `multilinear` the function is linear in each of its operands but the first, and
    `jax.linear_transpose` takes it as a function of one of them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        *,
        multilinear: bool = False,
    ) -> None:
        assert tuple(nondiff_argnums) == tuple(range(len(nondiff_argnums)))
        self._function, self._static = function, len(nondiff_argnums)
        self._multilinear = multilinear
        self._call = jax.custom_jvp(self._bind, nondiff_argnums=nondiff_argnums)
        functools.update_wrapper(self, function)

    def defjvp(self, rule: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """As that of `jax.custom_jvp`."""
        self._call.defjvp(rule, symbolic_zeros=symbolic_zeros)
        return rule

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def _bind(self, *arguments: Any) -> Any:
        """The function, where it is traced as one equation."""
        static, operands = arguments[: self._static], arguments[self._static :]
        leaves, tree = jax.tree.flatten(operands)
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._function(*arguments)

        def run(*leaves: Any) -> Any:
            return self._function(*static, *jax.tree.unflatten(tree, leaves))

        def differentiable(*leaves: Any) -> list[Any]:
            return jax.tree.leaves(self(*static, *jax.tree.unflatten(tree, leaves)))

        jaxpr, shapes = jax.make_jaxpr(run, return_shape=True)(*leaves)
        out = _primitive().bind(
            *leaves,
            jaxpr=jaxpr,
            differentiable=config.pinned(differentiable),
            types=tuple(jaxpr.out_avals),
            num_fixed=len(jax.tree.leaves(operands[0] if self._multilinear else operands)),
        )
        return jax.tree.unflatten(jax.tree.structure(shapes), out)


def _run(*args: Any, jaxpr: Any, **_: Any) -> list[Any]:
    from jax.extend.core import jaxpr_as_fun

    return jaxpr_as_fun(jaxpr)(*args)


def _jvp(primals: Any, tangents: Any, *, differentiable: Any, **_: Any) -> tuple[Any, Any]:
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

    def of_moving(*values: Any) -> list[Any]:
        every = list(primals)
        for i, value in zip(moving, values, strict=True):
            every[i] = value
        return differentiable(*every)

    values = [primals[i] for i in moving]
    out, d_out = jax.jvp(of_moving, values, [tangents[i] for i in moving])
    zeros = [ad.Zero(jax.typeof(o).to_tangent_aval()) for o in out]
    return out, [
        zero if d.dtype == jax.dtypes.float0 else d for d, zero in zip(d_out, zeros, strict=True)
    ]


def _transpose(
    cotangents: Any, *args: Any, differentiable: Any, num_fixed: int, **_: Any
) -> list[Any]:
    """Of a function that is linear in one operand: its derivative by that, at 0."""
    unknown = [i for i, argument in enumerate(args) if ad.is_undefined_primal(argument)]
    if len(unknown) != 1 or unknown[0] < num_fixed:
        raise NotImplementedError(
            "jax.linear_transpose: expected one of the operations that are linear in every operand "
            "(docs/architecture.md), as a function of one; others have jax.vjp"
        )
    (which,) = unknown

    def of_operand(value: Any) -> list[Any]:
        return differentiable(*args[:which], value, *args[which + 1 :])

    zero = ad.instantiate_zeros(ad.Zero(args[which].aval))
    pullback = jax.vjp(of_operand, zero)[1]
    (out,) = pullback(list(map(ad.instantiate_zeros, cotangents)))
    return [out if i == which else None for i in range(len(args))]


def _batch(
    args: Any, axes: Any, *, jaxpr: Any, differentiable: Any, types: Any, num_fixed: int
) -> Any:
    del types
    size = next(a.shape[axis] for a, axis in zip(args, axes, strict=True) if axis is not None)
    in_axes = tuple(axes)
    run = jax.vmap(functools.partial(_run, jaxpr=jaxpr), in_axes=in_axes, axis_size=size)
    batched = jax.make_jaxpr(run)(*args)
    out = _primitive().bind(
        *args,
        jaxpr=batched,
        differentiable=jax.vmap(differentiable, in_axes=in_axes, axis_size=size),
        types=tuple(batched.out_avals),
        num_fixed=num_fixed,
    )
    return out, [0] * len(out)


@functools.cache
def _primitive() -> Any:
    primitive = make_primitive("jaxgnn_custom_jvp", _run, _batch)
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = _transpose
    mlir.register_lowering(primitive, mlir.lower_fun(_run, multiple_results=True))
    return primitive
