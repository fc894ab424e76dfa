"""Parts of a module that the backward pass computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx


def recomputed(function: Callable[..., Any], module: nnx.Module, *arrays: Any) -> Any:
    """`function(module, *arrays)`, recomputed in the backward pass.

    The module goes through `jax.checkpoint` as a copy, and the variables that it set come back,
    such as running statistics. `nnx.remat` returns all variables, which Flax refuses where they
    are constants of an enclosing transformation of JAX.
    """
    graphdef, state = nnx.split(module)

    @jax.checkpoint
    def run(state: nnx.State, *arrays: Any) -> tuple[Any, nnx.State]:
        copy = nnx.merge(graphdef, state, copy=True)
        return function(copy, *arrays), _changed(state, nnx.state(copy))

    out, changed = run(state, *arrays)
    if jax.tree.leaves(changed):
        nnx.update(module, changed)
    return out


def _changed(before: nnx.State, after: nnx.State) -> nnx.State:
    """The variables of `after` that hold other arrays than before."""

    def leaf_ids(variable: Any) -> list[int]:
        return [id(leaf) for leaf in jax.tree.leaves(variable)]

    old = dict(nnx.to_flat_state(before))
    return nnx.from_flat_state(
        (path, variable)
        for path, variable in nnx.to_flat_state(after)
        if path not in old or leaf_ids(variable) != leaf_ids(old[path])
    )
