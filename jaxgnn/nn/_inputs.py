"""Argument checks of the modules: graphs, features, and pairs of features."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from jaxgnn._core.arguments import as_integer, unwrap
from jaxgnn._core.checks import torch_hint
from jaxgnn.graph import Graph, GraphSubstitute, NodeRows, graph_argument
from jaxgnn.nn._features import Features
from jaxgnn.nn.maxk import MaxK
from jaxgnn.nn.mlp import MLP
from jaxgnn.ops import CBSR

Pair = tuple[Features, Features | None]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def named_arguments(
    call: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """A module's `__call__` that names its own arguments where it is given PyG's."""
    known = inspect.signature(call).parameters
    own = next((name for name in ("weights", "edge_attr", "pseudo") if name in known), None)

    def hint(name: str) -> str:
        if name == "edge_index":
            return "the graph is the first argument, made by Graph.from_edge_index(edge_index)"
        if name in ("edge_weight", "edge_weights", "edge_attr", "weights") and own is not None:
            return (
                f"edge data is its argument {own!r}, in the graph's edge order "
                "(Graph.from_edges(..., edge_data=...))"
            )
        return f"it takes {', '.join(list(known)[1:])}"

    @functools.wraps(call)
    def checked(self: Any, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        for name in named:
            if name not in known:
                kind = type(self).__name__
                raise TypeError(f"{kind}: got an unknown argument {name!r}; {hint(name)}")
        return call(self, *arguments, **named)

    return checked


_OF_PYG = {
    "in_channels": "in_features",
    "hidden_channels": "hidden_features",
    "out_channels": "out_features",
    "bias": "use_bias",
    "act": "activation",
    "jk": "jumping",
    "deg": "degree_histogram",
    "K": "num_steps",
}
"""PyG's names of the arguments of layers and models, and ours."""


def named_options(
    init: Callable[Concatenate[Any, Parameters], None],
) -> Callable[Concatenate[Any, Parameters], None]:
    """A module's `__init__` that knows PyG's names, and says what is missing of its own class."""
    known = inspect.signature(init).parameters
    places = [name for name, each in known.items() if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    needs_rngs = "rngs" in known and known["rngs"].default is inspect.Parameter.empty

    @functools.wraps(init)
    def checked(self: Any, *arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        kind = type(self).__name__
        for name in named if named.get("conv") is None else ():  # one's own may have any names
            if name in _OF_PYG and name not in known:
                raise TypeError(
                    f"{kind}: got an unknown argument {name!r}: PyG's name of {_OF_PYG[name]!r}"
                )
        if len(arguments) > len(places):
            raise TypeError(
                f"{kind}: expected {', '.join(places)}, and all others by name, got "
                f"{len(arguments)} arguments without one"
            )
        if needs_rngs and "rngs" not in named:
            raise TypeError(f"{kind}: expected rngs, such as nnx.Rngs(0), got none")
        init(self, *arguments, **named)

    return checked


def real_edges(graph: Graph, rows: Array) -> Array:
    """Rows of the edges to project; those of padding are 0: what is not finite there would be
    multiplied by a cotangent of 0 in the gradient of the projection."""
    if not isinstance(graph, GraphSubstitute):
        return rows
    return jnp.where(graph.edge_mask[:, None], rows, jnp.zeros((), rows.dtype))


def graph_or_substitute(graph: Any) -> Graph:
    """`graph`, if it is one or stands for one: of modules that take no more of it than its counts
    and degrees, and operations that take such a graph."""
    return cast(Graph, graph) if isinstance(graph, GraphSubstitute) else graph_argument(graph)


def check_inner_module(module: nnx.Module, name: str) -> None:
    """Refuses, on a sharded graph, a convolution's inner module that would take statistics over
    padding, or that would gather all rows for `MaxK`."""
    parts = [part for _, part in nnx.iter_graph(module)]
    if any(isinstance(part, MaxK) for part in parts):
        raise ValueError(f"graph: {name} expected no MaxK in its inner module on a sharded graph")
    if not isinstance(module, MLP) and any(isinstance(part, nnx.BatchNorm) for part in parts):
        raise ValueError(
            f"graph: {name} expected an MLP, or a module without BatchNorm, on a sharded graph: "
            "the statistics would count padding"
        )


def square_graph(graph: Any, module: str, *, substitutes: bool = False) -> Graph:
    """`graph`, if its senders are its receivers; `substitutes`: or if it stands for one."""
    graph = graph_or_substitute(graph) if substitutes else graph_argument(graph)
    if not graph.is_square:
        raise ValueError(f"graph: {module} expected a square graph, got {graph}")
    return graph


def features(x: Any, name: str, rows: int, what: str, width: int | None = None) -> Features:
    """`x` as a floating array `[rows, ..., width]`, or the sparse rows of one `[rows, width]`."""
    x = x if isinstance(x, NodeRows) else unwrap(x)
    if not isinstance(x, jax.Array | np.ndarray | CBSR | NodeRows):
        raise TypeError(f"{name}: expected an array, got {type(x).__name__}{torch_hint(x, name)}")
    fits = len(x.shape) >= 2 and x.shape[0] == rows and width in (None, x.shape[-1])
    if isinstance(x, CBSR) and len(x.shape) > 2:
        raise ValueError(f"{name}: expected sparse rows without further axes, got {x.shape}")
    if not fits:
        last = "features" if width is None else width
        raise ValueError(
            f"{name}: expected the shape ({rows}, ..., {last}), a row for each {what}, "
            f"got {x.shape}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        # A linear layer would promote integers: numbers of categories would pass for features.
        raise TypeError(
            f"{name}: expected float32, bfloat16, float16 or float64, got {x.dtype} "
            "(categories: jaxgnn.nn.CategoryEmbedding)"
        )
    return x if isinstance(x, CBSR | NodeRows) else jnp.asarray(x)


def within_32_bits(values: Any) -> Any:
    """Integers of the host clipped to 32 bits: of more JAX would keep the lower half, which may be
    another row's number. All else as it is."""
    if isinstance(values, jax.Array):
        return values
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # values under tracing, or rows of unequal lengths
        return values
    is_large = array.dtype == object and all(as_integer(v) is not None for v in array.flat)
    if is_large or array.dtype in (np.int64, np.uint64):
        limits = np.iinfo(np.int32)
        return np.asarray(np.clip(array, limits.min, limits.max), np.int32)
    return array


def check_no_pair(x: Any, module: str, instead: str = "") -> None:
    """Raises where `x` is a tuple or a list, for a module that takes one array."""
    if isinstance(x, tuple | list):
        got = "a pair" if len(x) == 2 else f"a {type(x).__name__} of {len(x)}"
        raise ValueError(f"x: {module} expected one array, got {got}{instead}")


def sender_receiver_pair(
    graph: Graph, x: Any, widths: tuple[int | None, int | None], module: str
) -> Pair:
    """The features of the two ends: a pair's, or on a square graph one array for both."""
    if isinstance(x, tuple | list):
        if len(x) != 2:
            raise ValueError(f"x: expected a pair (senders, receivers), got {len(x)} entries")
        senders = features(x[0], "x[0]", graph.num_senders, "sender", widths[0])
        if x[1] is None:
            return senders, None
        receivers = features(x[1], "x[1]", graph.num_receivers, "receiver", widths[1])
        if senders.shape[1:-1] != receivers.shape[1:-1]:
            raise ValueError(
                "x[1]: expected the axes of x[0] between the nodes and the features, "
                f"{tuple(senders.shape[1:-1])}, got {tuple(receivers.shape[1:-1])}"
            )
        return senders, receivers
    if not graph.is_square or widths[0] != widths[1]:
        reason = "two feature widths" if graph.is_square else "a rectangular graph"
        raise ValueError(
            f"x: {module} with {reason} expected a pair (senders, receivers), got one array"
        )
    x = features(x, "x", graph.num_senders, "node", widths[0])
    return x, x
