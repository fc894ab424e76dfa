"""The rates of `jaxgnn/graph/_tile_rule.py`, fitted to this GPU: [MOST_EDGES [NAME...]].

Times `spmm` by rows and over tiles on graphs of at most that many edges (20 M by default), in each
width and dtype. Fits the picoseconds of each term of the estimate by non-negative least squares of
relative errors. Then says by how much the choice of the present table, and of the fitted one, is
slower than the faster engine. On a CPU tiles run by rows: there it shows that the script runs.
"""

import functools
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import nnls

from jaxgnn import Graph, spmm, tiles
from jaxgnn.data import benchmark_graph, benchmark_shapes

NAMES = ("reddit", "proteins", "products", "arxiv", "artist", "amazon0601", "com_amazon", "dd")
WIDTHS = (16, 32, 64, 128, 256)
DTYPES = ("float32", "bfloat16")
CALLS = 20  # of a program
REPEATS = 5
TERMS = ("a byte of a row", "a slice, float32", "a slice, 16 bits", "a byte of scratch", "a launch")


@functools.partial(jax.jit, static_argnames="impl")
def run(graph: Graph, x: jax.Array, impl: Any) -> jax.Array:
    """Many products in one program, so that the host does not count; means stay in range."""
    return jax.lax.fori_loop(
        0, CALLS, lambda _, x: spmm(graph, x, reduce="mean", impl=impl), x, unroll=False
    )


class Sample(NamedTuple):
    """One product: what it is of, seconds and counts of each term by engine, the table's choice."""

    what: str
    seconds: dict[str, float]
    counts: dict[str, list[float]]
    engine: str


def seconds_of(graph: Graph, x: jax.Array, impl: str) -> float:
    """The median of a product."""
    each = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        jax.block_until_ready(run(graph, x, impl))
        each.append((time.perf_counter() - start) / CALLS)
    return float(np.median(each[1:]))


def samples_of(name: str, most_edges: float) -> list[Sample]:
    """All widths and dtypes of one graph."""
    scale = min(1.0, most_edges / benchmark_shapes()[name].num_edges)
    csr = benchmark_graph(name, scale)
    graph = Graph.from_csr(csr.row_offsets, csr.senders).with_tiles()
    t = graph.tiles
    assert t is not None
    samples = []
    for dtype in DTYPES:
        for width in WIDTHS:
            x = jax.random.normal(jax.random.key(0), (graph.num_senders, width), dtype)
            row = -(-width * x.dtype.itemsize // 32) * 32
            slices = float(t.num_entries * -(-width * x.dtype.itemsize // 128))
            by_dtype = [slices, 0.0] if dtype == "float32" else [0.0, slices]
            scratch = 2.0 * t.parts.shape[0] * 64 * width * 4
            counts = {
                "rows": [float(graph.num_edges * row), 0.0, 0.0, 0.0, 1.0],
                "tiles": [float(t.rest_columns.shape[0] * row), *by_dtype, scratch, 2.0],
            }
            seconds = {impl: seconds_of(graph, x, impl) for impl in counts}
            engine = tiles.estimate(graph, width, dtype).engine
            what = f"{name}, F = {width}, {dtype}"
            print(f"{what}: {seconds['rows']:.3g} s, tiles {seconds['tiles']:.3g} s: {engine}")
            samples.append(Sample(what, seconds, counts, engine))
    return samples


def fit(samples: list[Sample]) -> np.ndarray:
    """Seconds of each term."""
    both = [(s.counts[e], s.seconds[e]) for s in samples for e in ("rows", "tiles")]
    counts, seconds = (np.array(part) for part in zip(*both, strict=True))
    scale = counts.max(axis=0).clip(1)  # terms from 1 to 10^11
    return nnls(counts / seconds[:, None] / scale, np.ones(seconds.size))[0] / scale


def say(what: str, samples: list[Sample], engines: list[str]) -> None:
    """How much slower the chosen engines are than the faster ones."""
    pairs = zip(samples, engines, strict=True)
    slower = [s.seconds[engine] / min(s.seconds.values()) - 1 for s, engine in pairs]
    worst = int(np.argmax(slower))
    wrong = sum(value > 0.05 for value in slower)
    print(
        f"{what}: {wrong} of {len(slower)} choices more than 5 % slower; the worst "
        f"{slower[worst]:.1%}, {samples[worst].what}"
    )


def main(arguments: list[str]) -> None:
    most_edges = float(arguments[0]) if arguments else 20e6
    samples = [s for name in arguments[1:] or NAMES for s in samples_of(name, most_edges)]
    rates = fit(samples)
    print(f"On {jax.devices()[0].device_kind}, picoseconds:")
    for term, rate in zip(TERMS, rates, strict=True):
        print(f"  {term}: {rate * 1e12:.4g}")
    say("The present table", samples, [s.engine for s in samples])
    fitted = [min(s.counts, key=lambda e, s=s: float(rates @ s.counts[e])) for s in samples]
    say("The fitted rates", samples, fitted)


if __name__ == "__main__":
    main(sys.argv[1:])
