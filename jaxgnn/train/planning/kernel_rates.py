"""Calls of kernels in a lowered program, and the operations by which they are measured.

A kernel's time is that of the operation that calls it, with the call's width, heads, dropout and
self-loops, on the graph that is trained on. Of a gradient's kernels it is what the gradient takes
more than the operation, in equal parts.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn.graph import Graph
from jaxgnn.ops import (
    CBSR,
    cosine_attention,
    dot_attention,
    gat_attention,
    gatv2_attention,
    gaussian_spmm,
    maxk,
    maxk_spmm,
    spmm,
)
from jaxgnn.ops._dropout.mask import packed_by_kernel

FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
# Of a lowered and of a compiled program.
_SIZES = {"f64": 8, "i64": 8, "ui64": 8, "f32": 4, "i32": 4, "ui32": 4, "f16": 2, "bf16": 2}
_SIZES |= {"s64": 8, "u64": 8, "s32": 4, "u32": 4}

_ATTRIBUTE = re.compile(r"(\w+) = ([-\w.+]+) : ")
_ATTRIBUTES = re.compile(r"mhlo\.backend_config = {([^}]*)}")
_MASK = "dropout_mask"
_DROPOUT_RANGE = 1 << 32  # of the random words below `drop_below`


class Tensor(NamedTuple):
    """The type of a value of a lowered program."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """1 byte for what is not in the table: booleans and bytes."""
        return math.prod(self.shape) * _SIZES.get(self.dtype, 1)


class Call(NamedTuple):
    """A call of a kernel over so many edges, or rows of `maxk` and of dropout's mask, and the row
    that it reads for each.

    `more` is the width that `maxk` selects from, an attention's heads, and the number of Gaussians.
    """

    name: str
    items: int
    width: int
    dtype: str
    more: int = 0
    kept: int = 0
    """Entries of a head's sparse row; dimensions of the Gaussians' coordinates."""
    variant: str = ""
    """`gatv2`, `dot` or `scaled` (by key) of attention that needs both rows of an edge; `shared`:
    the Gaussians have one row."""
    dropout: float = 0.0
    self_loops: bool = False


Seconds = Callable[..., float]
"""The seconds of a function, of its operands."""


def call(
    line: str, name: str, operands: list[Tensor], results: list[Tensor], num_edges: int
) -> Call | None:
    """The call of a line, if its first operands are a graph's row offsets and the ends of its
    edges, or it is over windows, or selects."""
    if name == "maxk":
        (rows, full), k = operands[0].shape, results[0].shape[1]
        return Call(name, rows, k, operands[0].dtype, full)
    if name == _MASK:
        keys, rows, words = results[0].shape
        return Call(name, keys * rows, words, results[0].dtype)
    windows = "windows" in name
    of_rows = len(operands) > 3 and operands[0].dtype == operands[1].dtype == "i32"
    if not windows and not of_rows:
        return None
    rows = [t for t in (*operands, *results) if len(t.shape) > 1 and t.dtype[:1] in "fb"]
    if not rows or name in ("sample_edges", "csr_row_ids"):
        return None
    # Not the partial results of the chunks of long rows, which have more columns.
    chunks = operands[2].shape[:1] if of_rows else ()
    narrow = [t for t in rows if 0 not in t.shape and t.shape[0] > 1 and t.shape[:1] != chunks]
    # Of MaxK's rows those that are kept: the narrower ones of its operands and results.
    choose = min if name.startswith("maxk") else max
    row = choose(narrow or rows, key=_width)
    edges = num_edges if windows else operands[1].shape[0]
    found = Call(name, edges, _width(row), row.dtype)
    match = _ATTRIBUTES.search(line)
    attributes = dict(_ATTRIBUTE.findall(match[1])) if match else {}
    if "self_loops" in attributes and int(attributes["self_loops"]):
        found = found._replace(items=edges + operands[0].shape[0] - 1, self_loops=True)
    if "drop_below" in attributes:
        found = found._replace(dropout=int(attributes["drop_below"]) / _DROPOUT_RANGE)
    return found._replace(**_details(name, operands, results, narrow, attributes))


def _details(
    name: str,
    operands: list[Tensor],
    results: list[Tensor],
    narrow: list[Tensor],
    attributes: dict[str, str],
) -> dict[str, Any]:
    """The width, heads and so on of the kernels that have some."""
    backward = name.endswith("_gradients")
    if name.startswith("gat_attention"):
        return {"more": min(map(_width, narrow), default=0)}
    if name.startswith("pair_attention"):
        queries, keys, _, _, key_scale = operands[4 + backward : 9 + backward]
        heads = (operands[-1] if backward else results[1]).shape[1] // 2
        variant = "scaled" if 0 not in key_scale.shape else "dot"
        variant = "gatv2" if attributes.get("score") == "1" else variant
        return {"more": heads, "width": max(_width(queries), _width(keys)), "variant": variant}
    if name.endswith("cosine_attention") or name.startswith("cosine_attention"):
        return {"more": int(attributes.get("heads", 1))}
    if name.startswith("sparse_"):
        # Both structures and the edges' permutation, or one and the windows.
        first = 8 if "window" in name else 9 if backward else 4
        values, _, scores = operands[first : first + 3]
        out = operands[first + 3] if backward else results[0]
        return {"more": scores.shape[1], "width": _width(out), "kept": values.shape[1]}
    if name.startswith("gaussian_spmm"):
        kernels, dims = operands[-2].shape
        rows = operands[5:7] if name.endswith("_coordinates") else [operands[5], results[0]]
        shared = attributes.get("shared_input") == "1"
        return {
            "more": kernels,
            "width": max(map(_width, rows)),
            "kept": dims,
            "variant": "shared" * shared,
        }
    return {}


def _width(rows: Tensor) -> int:
    return math.prod(rows.shape[1:])


def seconds_of_item(seconds_of: Seconds, graph: Graph, call: Call) -> float:
    """Of an edge, or a row, of a call, on another graph."""
    kind = KINDS.get(call.name, "spmm")
    count = graph.num_senders if kind in ("maxk", _MASK) else graph.num_edges
    if count == 0:
        return 0.0
    if call.self_loops:
        count += graph.num_receivers
    return _MEASURED[kind](seconds_of, graph, call) / count


def _random(graph: Graph, call: Call, *shape: int) -> Array:
    """Rows of the senders."""
    dtype = FLOATS.get(call.dtype, "float32")
    return jax.random.normal(jax.random.key(0), (graph.num_senders, *shape), dtype)


def _measure_maxk(seconds_of: Seconds, graph: Graph, call: Call) -> float:
    return seconds_of(lambda x: maxk(x, call.width), _random(graph, call, call.more))


def _measure_mask(seconds_of: Seconds, graph: Graph, call: Call) -> float:
    """Of a mask of whole words: the end of a last one is drawn, too."""
    words = jnp.zeros(2, jnp.uint32)
    drawn = functools.partial(packed_by_kernel, 1 << 31, graph.num_senders, 32 * call.width)
    return seconds_of(drawn, words)


def _measure_spmm(seconds_of: Seconds, graph: Graph, call: Call) -> float:
    return seconds_of(lambda graph, x: spmm(graph, x), graph, _random(graph, call, call.width))


def _measure_maxk_spmm(
    seconds_of: Seconds, graph: Graph, call: Call, *, backward: bool = False
) -> float:
    """Of rows that keep as many entries, of four times the width."""
    k = call.width
    kept = maxk(jnp.tile(_random(graph, call, k), (1, 4)), k)

    def forward(values: Array, indices: Array, graph: Graph) -> Array:
        return maxk_spmm(graph, CBSR(values, indices, 4 * k))

    if not backward:
        return seconds_of(forward, kept.values, kept.indices, graph)

    def pull(values: Array, indices: Array, graph: Graph, cotangent: Array) -> Any:
        return jax.vjp(lambda values: forward(values, indices, graph), values)[1](cotangent)

    cotangent = jnp.ones((graph.num_receivers, 4 * k), kept.values.dtype)
    return seconds_of(pull, kept.values, kept.indices, graph, cotangent)


Operation = tuple[Callable[..., Array], tuple[Any, ...]]
"""A function of a graph and differentiable operands, and these."""


def _extremum(graph: Graph, call: Call) -> Operation:
    def forward(graph: Graph, x: Array) -> Array:
        # As in a gradient, where ties are counted.
        return jax.vjp(lambda x: spmm(graph, x, reduce="max"), x)[0]

    return forward, (_random(graph, call, call.width),)


def _heads(graph: Graph, call: Call) -> tuple[Array, dict[str, Any]]:
    """Rows of the senders' heads, and the attention's options."""
    heads = max(math.gcd(call.more, call.width), 1)
    options: dict[str, Any] = {}
    if call.self_loops and graph.num_senders == graph.num_receivers:
        options["self_loops"] = True
    if call.dropout:
        options |= {"dropout_rate": call.dropout, "dropout_rng": jax.random.key(0)}
    return _random(graph, call, heads, call.width // heads), options


def _gat(graph: Graph, call: Call) -> Operation:
    x, options = _heads(graph, call)
    nodes = graph.num_senders, graph.num_receivers
    scores = [jnp.ones((count, x.shape[1]), x.dtype) for count in nodes]
    if call.name.startswith("sparse"):
        kept = maxk(x, min(call.kept, x.shape[2]))

        def sparse(graph: Graph, values: Array, indices: Array, p: Array, q: Array) -> Array:
            return gat_attention(graph, CBSR(values, indices, x.shape[2]), p, q, **options)

        return sparse, (kept.values, kept.indices, *scores)
    return functools.partial(gat_attention, **options), (x, *scores)


def _pair(graph: Graph, call: Call) -> Operation:
    x, options = _heads(graph, call)
    rows = jnp.ones((graph.num_receivers, *x.shape[1:]), x.dtype)
    if call.variant == "gatv2":
        vector = jnp.ones(x.shape[1:], x.dtype)
        return functools.partial(gatv2_attention, **options), (x, rows, vector)
    if call.variant == "scaled":  # cosines, whose keys are multiples of the values
        scale = jnp.ones(x.shape[:2], x.dtype)

        def cosine(graph: Graph, q: Array, x: Array, scale: Array) -> Array:
            return dot_attention(graph, q, x, x, key_scale=scale, **options)

        return cosine, (rows, x, scale)
    return functools.partial(dot_attention, **options), (rows, x, x + 1)


def _cosine(graph: Graph, call: Call) -> Operation:
    x, options = _heads(graph, call)
    return functools.partial(cosine_attention, **options), (x,)


def _gaussian(graph: Graph, call: Call) -> Operation:
    kernels, dims = call.more, call.kept
    x = _random(graph, call, kernels, call.width // kernels)
    x = x[:, 0] if call.variant == "shared" else x
    mu = jnp.ones((kernels, dims), jnp.float32)
    ends = tuple(jnp.ones((n, dims), x.dtype) for n in (graph.num_receivers, graph.num_senders))

    def forward(graph: Graph, x: Array, mu: Array, inv_sigma: Array, *ends: Array) -> Array:
        return gaussian_spmm(graph, x, mu, inv_sigma, ends, activation="tanh")  # type: ignore[arg-type]

    return forward, (x, mu, mu, *ends)


def _measure(
    operation: Callable[[Graph, Call], Operation], seconds_of: Seconds, graph: Graph, call: Call
) -> float:
    forward, operands = operation(graph, call)
    return seconds_of(forward, graph, *operands)


def _measure_gradient(
    operation: Callable[[Graph, Call], Operation], seconds_of: Seconds, graph: Graph, call: Call
) -> float:
    """Of one of the kernels of this name that the gradient calls: for `gat_attention` of either of
    two names."""
    forward, operands = operation(graph, call)
    floating = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.floating)]

    def gradients(cotangent: Array, graph: Graph, *operands: Array) -> Any:
        def of_floats(*values: Array) -> Array:
            every = list(operands)
            for i, value in zip(floating, values, strict=True):
                every[i] = value
            return forward(graph, *every)

        return jax.vjp(of_floats, *(operands[i] for i in floating))[1](cotangent)

    out = jax.eval_shape(forward, graph, *operands)
    both = jnp.ones(out.shape, out.dtype), graph, *operands
    spent = seconds_of(gradients, *both) - seconds_of(forward, graph, *operands)
    if call.name == "gaussian_spmm_coordinates":  # the other kernel is the operation's transpose
        spent -= _measure(_gaussian, seconds_of, graph, call._replace(variant="shared"))
    own = call.name.removesuffix("_senders").removesuffix("_receivers")
    text = jax.jit(gradients).lower(*both).as_text()
    calls = text.count(f"@jaxgnn_{own}_") if own == "gat_attention" else 0
    calls = calls or text.count(f"@jaxgnn_{own}(")
    return max(spent, 0.0) / max(calls, 1)


def _both(name: str, operation: Callable[[Graph, Call], Operation]) -> dict[str, Any]:
    return {
        name: functools.partial(_measure, operation),
        f"{name}_backward": functools.partial(_measure_gradient, operation),
    }


# By which operation a kernel is measured; others count as a product of as many edges and columns.
_MEASURED: dict[str, Callable[[Seconds, Graph, Call], float]] = {
    "maxk": _measure_maxk,
    _MASK: _measure_mask,
    "spmm": _measure_spmm,
    "maxk_spmm": _measure_maxk_spmm,
    "maxk_sspmm": functools.partial(_measure_maxk_spmm, backward=True),
    **_both("extremum", _extremum),
    **_both("gat", _gat),
    **_both("pair", _pair),
    **_both("cosine", _cosine),
    **_both("gaussian", _gaussian),
}
KINDS = {
    "maxk": "maxk",
    "spmm": "spmm",
    "sddmm": "spmm",
    "tiles_spmm": "spmm",
    "maxk_spmm": "maxk_spmm",
    "maxk_sspmm": "maxk_sspmm",
    "maxk_spmm_windows": "maxk_spmm",
    "maxk_sspmm_windows": "maxk_sspmm",
    "maxk_sspmm_windows_exact": "maxk_sspmm",
    "maxk_sspmm_scatter": "maxk_sspmm",
    "spmm_ties": "extremum",
    "spmm_extremum": "extremum_backward",
    "gat_attention": "gat",
    "gat_attention_senders": "gat_backward",
    "gat_attention_receivers": "gat_backward",
    "sparse_attention": "gat",
    "sparse_attention_gradients": "gat_backward",
    "sparse_window_attention": "gat",
    "sparse_window_gradients": "gat_backward",
    "pair_attention": "pair",
    "pair_attention_gradients": "pair_backward",
    "cosine_attention": "cosine",
    "tiles_cosine_attention": "cosine",
    "cosine_attention_gradients": "cosine_backward",
    "gaussian_spmm": "gaussian",
    "gaussian_spmm_coordinates": "gaussian_backward",
    _MASK: _MASK,
}
"""Kernels that are measured, and how; those of attention also by their `variant`."""
