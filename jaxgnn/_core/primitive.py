"""Primitives of our own, with what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.interpreters import batching


def make_primitive(name: str, run: Callable[..., Any], batch: Callable[..., Any]) -> Any:
    """A primitive with a list of results, whose types are its parameter `types`.

    Args:
        name: its name in jaxprs.
        run: what it computes, op by op.
        batch: its rule for `vmap`.
    """
    from jax.extend.core import Primitive  # imports Pallas, which `import jaxgnn` need not wait for

    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(lambda *_, types, **__: list(types))
    batching.primitive_batchers[primitive] = batch
    return primitive
