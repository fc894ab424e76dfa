"""Operations on graphs that are split over devices: what each argument lies on, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from jaxgnn._core.arguments import unwrap
from jaxgnn.graph import End, GraphSubstitute, Split

Operation = TypeVar("Operation", bound=Callable[..., Any])


def over_parts(
    ends: Mapping[str, End],
    result: End | tuple[End, ...] = "receivers",
    *,
    split: Split | None = None,
    like: Callable[..., Any] | None = None,
    reduces: bool = False,
    name: str | None = None,
) -> Callable[[Operation], Operation]:
    """A decorator: the operation also takes a `GraphSubstitute`, on whose parts it then runs.

    Args:
        ends: of the arguments that are arrays.
        result, split: as of `GraphSubstitute.map_parts`.
        like: an operation with the same arguments, if this one's signature does not name them.
        reduces: it takes `reduce`, a sum by default, over the edges of each receiver; and
            `transpose`.
        name: of the operation in errors, if it is not a public one.
    """

    def decorated(operation: Operation) -> Operation:
        signature = inspect.signature(operation if like is None else like)

        @functools.wraps(operation)
        def call(graph: Any, *arguments: Any, **named: Any) -> Any:
            if not isinstance(graph, GraphSubstitute):
                return operation(graph, *arguments, **named)
            given = dict(signature.bind(graph, *arguments, **named).arguments)
            del given[next(iter(given))]
            arrays = {
                key: value for key in ends if _is_array(value := unwrap(given.get(key)), ends[key])
            }
            static = {key: value for key, value in given.items() if key not in arrays}
            options: dict[str, Any] = {"split": split}
            if reduces and not given.get("transpose"):
                options["reduce"] = given.get("reduce", "sum")
            return graph.map_parts(
                functools.partial(operation, **static),
                name or operation.__name__,
                arrays,
                ends,
                result,
                **options,
            )

        return call  # type: ignore[return-value]

    return decorated


def _is_array(value: Any, end: End) -> bool:
    """Whether the value is one of arrays: a number for all devices may be Python's."""
    if end in ("replicated", "key"):
        return isinstance(value, jax.Array | np.ndarray)
    return value is not None
