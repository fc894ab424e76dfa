"""Which implementation runs: decided at lowering, for the platform that XLA compiles for.

As `jax.lax.platform_dependent`, but the reference is traced only where it is lowered, and without a
`cond`: programs compile as fast as with the kernel alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.interpreters import mlir

from jaxgnn import config
from jaxgnn._core import platform
from jaxgnn._core.primitive import make_primitive


def dispatch(
    targets: tuple[str, ...],
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    *operands: Any,
    platforms: tuple[str, ...] = ("cpu", "cuda"),
) -> Any:
    """`kernel(*operands)` where the platform serves its targets, else `reference(*operands)`.

    With the setting `impl` `"jax"` the reference runs everywhere. Has no derivative: it belongs
    inside a derivative rule.

    Args:
        targets: the FFI targets that `kernel` calls.
        kernel, reference: of the same operands, with results of the same types.
        operands: pytrees of arrays.
        platforms: those that `kernel` is written for.

    Raises:
        RuntimeError: one of `platforms` does not serve the targets, or the platform is a third one,
            and the setting `impl` is `"kernel"`.
    """
    if config.impl == "jax":
        return reference(*operands)
    required = config.impl == "kernel"
    served = functools.partial(_serves, targets=targets, platforms=platforms, required=required)
    return _choose(served, kernel, reference, operands)


def on_one_device(alone: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """`alone(*operands)`, but `otherwise(*operands)` where XLA partitions the computation over
    several devices. Within `shard_map` a computation is that of one device. Has no derivative.

    Args:
        alone, otherwise: of the same operands, with results of the same types.
        operands: pytrees of arrays.
    """
    return _choose(_is_one_device, alone, otherwise, operands)


def _choose(chosen: Any, kernel: Any, reference: Any, operands: Any) -> Any:
    """`kernel(*operands)` if `chosen(platform, devices)` of the computation, else `reference`."""
    leaves, tree = jax.tree.flatten(operands)
    if not any(isinstance(leaf, Tracer) for leaf in leaves):
        return (kernel if chosen(*_place_of(leaves)) else reference)(*operands)
    from jax.extend.core import jaxpr_as_fun

    jaxpr, shapes = jax.make_jaxpr(kernel, return_shape=True)(*operands)

    def flat_reference(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(reference(*jax.tree.unflatten(tree, leaves)))

    out = _primitive().bind(
        *leaves,
        kernel=jaxpr_as_fun(jaxpr),
        reference=config.pinned(flat_reference),
        types=tuple(jaxpr.out_avals),
        chosen=chosen,
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), out)


def _is_one_device(name: str, devices: int) -> bool:
    del name
    return devices == 1


def _serves(name: str, devices: int, *, targets: Any, platforms: Any, required: bool) -> bool:
    del devices
    if name in platforms and platform.serves(name, *targets):
        return True
    excluded = name in ("cpu", "cuda") and name not in platforms
    if required and not excluded:
        raise RuntimeError(
            f"impl='kernel': jaxgnn has no kernels for {targets[0]} on the platform {name!r}: "
            f"{platform.why_not(name)}"
        )
    return False


def _place_of(leaves: list[Any]) -> tuple[str, int]:
    """Where concrete arrays lie, by the names that lowering uses, and on how many devices."""
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            devices = leaf.devices()
            return platform.of_device(next(iter(devices))), len(devices)
    return platform.of_device(), 1


def _run(*args: Any, chosen: Any, kernel: Any, reference: Any, types: Any) -> Any:
    del types
    return (kernel if chosen(*_place_of(list(args))) else reference)(*args)


def _lower(name: str | None) -> Any:
    def rule(ctx: Any, *args: Any, chosen: Any, kernel: Any, reference: Any, types: Any) -> Any:
        del types
        context = ctx.module_context
        # Within `shard_map` the context is of its mesh, and has no number of devices.
        devices = getattr(context.axis_context, "num_devices", 1)
        function = kernel if chosen(name or context.platforms[0], devices) else reference
        return mlir.lower_fun(function, multiple_results=True)(ctx, *args)

    return rule


def _batch(args: Any, axes: Any, *, kernel: Any, reference: Any, types: Any, **params: Any) -> Any:
    size = next(a.shape[axis] for a, axis in zip(args, axes, strict=True) if axis is not None)
    out = _primitive().bind(
        *args,
        kernel=jax.vmap(kernel, in_axes=tuple(axes), axis_size=size),
        reference=jax.vmap(reference, in_axes=tuple(axes), axis_size=size),
        types=tuple(t.update(shape=(size, *t.shape)) for t in types),
        **params,
    )
    return out, [0] * len(out)


@functools.cache
def _primitive() -> Any:
    primitive = make_primitive("jaxgnn_dispatch", _run, _batch)
    mlir.register_lowering(primitive, _lower(None))
    mlir.register_lowering(primitive, _lower("cpu"), platform="cpu")
    mlir.register_lowering(primitive, _lower("cuda"), platform="cuda")
    return primitive
