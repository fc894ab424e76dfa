"""An attention over dense values and over the CBSR rows that MaxK leaves of them, side by side.

    python -m benchmarks.experiments.sparse_attention [--shape reddit] [--k 4 8 16] [--every-k]
        [--scores dot] [--windows [--threads 384 512]] [--kernels]

Forward is a call for the result alone; backward is the gradients of the values and of what the
scores are made of, given the forward pass's results. The values of the dense call are those of the
rows that MaxK leaves, so that both compute the same, and their results are compared. Each time is
the median of the rounds, in which dense and sparse alternate.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro

from benchmarks.experiments.step_kernels import traced
from benchmarks.harness import graphs
from benchmarks.harness.jax_programs import call_seconds
from benchmarks.harness.record import write_records
from jaxgnn import CBSR, dot_attention, gat_attention, maxk
from jaxgnn.ops._attention import sparse_pair_rule, sparse_rule, sparse_windows

Scores = Literal["additive", "dot"]
NO_WINDOWS = (0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Options:
    """Times attention over dense and over sparse values."""

    shape: str = "reddit"
    """Of `benchmark_graph`."""
    scale: float = 1.0
    """Of its nodes and edges."""
    heads: int = 4
    """Their number."""
    width: int = 64
    """Features of a head."""
    k: tuple[int, ...] = (4, 8, 16)
    """Kept values of a head."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Of the values."""
    rounds: int = 20
    """Timed rounds, after three of warm-up."""
    scores: Scores = "additive"
    """Those of `gat_attention`, or of `dot_attention`, whose queries and keys are as wide as the
    values."""
    every_k: bool = False
    """The sparse kernels for every k, where a GPU would take the dense ones."""
    windows: bool = False
    """The kernels over the graph's windows, for every k, in place of those by rows."""
    threads: tuple[int, ...] = ()
    """Threads of a block over windows, 384 or 512, one after the other; by default the
    operation's."""
    kernels: bool = False
    """Also the time of each kernel of a GPU, by JAX's profiler."""
    json: Path | None = None
    """A file for the results."""


def attention(scores: Scores, graph: Any, v: Any, at_senders: Any, at_receivers: Any) -> Any:
    """By both ends' scores, or by keys and queries."""
    if scores == "dot":
        return dot_attention(graph, at_receivers, at_senders, v, impl="kernel")
    return gat_attention(graph, v, at_senders, at_receivers, impl="kernel")


def programs(scores: Scores) -> tuple[Any, Any, Any]:
    """Of the attention over CBSR rows: the result, the result with what the gradients need, which a
    program copies to return it, and the gradients."""

    def result(graph, floats, cbsr):
        values, *ends = floats
        return attention(scores, graph, dataclasses.replace(cbsr, values=values), *ends)

    def forward(graph, floats, cbsr):
        return jax.vjp(lambda *floats: result(graph, floats, cbsr), *floats)

    return jax.jit(result), jax.jit(forward), jax.jit(lambda pull, cotangent: pull(cotangent))


def dense_programs(scores: Scores) -> tuple[Any, Any, Any]:
    """Those over dense values."""

    def result(graph, floats):
        return attention(scores, graph, *floats)

    def forward(graph, floats):
        return jax.vjp(lambda *floats: result(graph, floats), *floats)

    return jax.jit(result), jax.jit(forward), jax.jit(lambda pull, cotangent: pull(cotangent))


def seconds(call: Callable[[], Any]) -> float:
    """Of one call; a GPU has several in a row, so that it does not wait for Python."""
    device = jax.default_backend()
    count = 1 if device == "cpu" else 10
    return call_seconds(call, count, device) / count


def difference(ours: Any, dense: Any) -> float:
    """The largest difference of two arrays, over the largest number of the second."""
    ours, dense = (jnp.asarray(a, jnp.float32) for a in (ours, dense))
    return float(jnp.max(jnp.abs(ours - dense)) / jnp.max(jnp.abs(dense)))


def measured(graph: Any, options: Options, k: int, dtype: str) -> dict[str, Any]:
    """The times of one number of kept values, and how far the results are apart."""
    keys = jax.random.split(jax.random.key(1), 4)
    shape = (graph.num_senders, options.heads, options.width)
    v = jax.random.normal(keys[0], shape, jnp.float32).astype(dtype)
    cbsr = jax.jit(lambda v: maxk(v, k))(v)
    kept: jax.Array = jax.jit(CBSR.to_dense)(cbsr)
    del v
    of_dots = options.scores == "dot"
    at_node = shape[1:] if of_dots else shape[1:2]
    ends = [
        jax.random.normal(key, (nodes, *at_node), jnp.float32).astype(
            dtype if of_dots else jnp.float32
        )
        for key, nodes in zip(keys[1:3], (graph.num_senders, graph.num_receivers), strict=True)
    ]
    cotangent = jax.random.normal(keys[3], (graph.num_receivers, *shape[1:]), jnp.float32)
    cotangent = cotangent.astype(dtype)

    sparse_result, sparse_forward, sparse_backward = programs(options.scores)
    dense_result, dense_forward, dense_backward = dense_programs(options.scores)
    sparse_values, dense_values = (cbsr.values, *ends), (kept, *ends)
    sparse_out, sparse_pull = sparse_forward(graph, sparse_values, cbsr)
    dense_out, dense_pull = dense_forward(graph, dense_values)
    of_sparse = sparse_backward(sparse_pull, cotangent)
    of_dense = dense_backward(dense_pull, cotangent)
    at_kept = jnp.take_along_axis(of_dense[0], cbsr.indices.astype(jnp.int32), -1)
    errors = {
        "out": difference(sparse_out, dense_out),
        "values": difference(of_sparse[0], at_kept),
        "keys" if of_dots else "score_src": difference(of_sparse[1], of_dense[1]),
        "queries" if of_dots else "score_dst": difference(of_sparse[2], of_dense[2]),
    }
    calls = {
        ("forward", "dense"): lambda: dense_result(graph, dense_values),
        ("forward", "sparse"): lambda: sparse_result(graph, sparse_values, cbsr),
        ("backward", "dense"): lambda: dense_backward(dense_pull, cotangent),
        ("backward", "sparse"): lambda: sparse_backward(sparse_pull, cotangent),
    }
    times: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    for step in range(options.rounds + 3):
        for name, call in calls.items():
            elapsed = seconds(call)
            if step >= 3:
                times[name].append(1e3 * elapsed)
    ms = {name: round(statistics.median(each), 4) for name, each in times.items()}
    row: dict[str, Any] = {"scores": options.scores, "dtype": dtype, "k": k, "errors": errors}
    row["engine"] = engine = engine_name()
    for way in ("forward", "backward"):
        dense, sparse = ms[way, "dense"], ms[way, "sparse"]
        row[way] = {"dense_ms": dense, "sparse_ms": sparse, "share": round(sparse / dense, 3)}
        print(
            f"{dtype}, k = {k}, {way}: {dense:.3f} dense, {sparse:.3f} sparse ({engine}): "
            f"{sparse / dense:.2f}"
        )
    print("  largest differences:", {name: f"{error:.1e}" for name, error in errors.items()})
    if options.kernels:
        row["kernels_ms"] = {
            way: kernels_of(calls[way, "sparse"]) for way in ("forward", "backward")
        }
        for way, each in row["kernels_ms"].items():
            print(f"  {way}:", {name: ms for name, ms in each.items() if ms >= 0.01})
    return row


def kernels_of(call: Callable[[], Any], count: int = 5) -> dict[str, float]:
    """The milliseconds of each kernel of a call, the longest first."""

    def calls() -> None:
        for _ in range(count):
            jax.block_until_ready(call())

    found = sorted(traced(calls, count).items(), key=lambda item: -item[1])
    return {name: round(ms, 4) for name, ms in found}


def engine_name() -> str:
    """Which sparse kernels are timed."""
    if sparse_rule.FORWARD_WINDOWS_SHARES == NO_WINDOWS:
        return "by rows"
    return f"windows of {sparse_windows.BACKWARD_THREADS} threads"


def take_rows() -> None:
    """Sparse attention by rows, as without windows."""
    sparse_rule.FORWARD_WINDOWS_SHARES = sparse_rule.BACKWARD_WINDOWS_SHARES = NO_WINDOWS


def take_windows(threads: int | None) -> None:
    """Sparse attention over windows at every k."""
    sparse_rule.FORWARD_WINDOWS_SHARES = sparse_rule.BACKWARD_WINDOWS_SHARES = (1.0, 1.0)
    sparse_rule.FORWARD_EDGES_AN_ENTRY = sparse_rule.BACKWARD_EDGES_AN_ENTRY = 0.0
    if threads is not None:
        sparse_windows.FORWARD_THREADS = sparse_windows.BACKWARD_THREADS = threads


def main(options: Options) -> None:
    """Measures, prints, and with `--json` writes a file."""
    if options.every_k:
        for rule in (sparse_rule, sparse_pair_rule):
            rule.FORWARD_SHARE = rule.BACKWARD_SHARE = 1.0
        sparse_pair_rule.BACKWARD_SHARE_16_BITS = 1.0
    with graphs.stored(options.shape, options.scale) as stored:
        graph = stored.to_graph()
        print(stored.facts)
        engines: list[Callable[[], None]] = [take_rows]
        if options.windows:
            graph = graph.with_windows()
            each = options.threads or (None,)
            engines = [functools.partial(take_windows, threads) for threads in each]
        records = []
        for dtype, k, engine in itertools.product(options.dtypes, options.k, engines):
            engine()
            jax.clear_caches()  # of programs with other kernels
            records.append(measured(graph, options, k, dtype))
    if options.json is not None:
        write_records(options.json, records, graph=stored.facts)


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.experiments.sparse_attention"))
