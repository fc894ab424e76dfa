"""The rates of `jaxgnn/graph/_layouts/tile_rule.py`, fitted to this GPU: [MOST_EDGES [NAME...]].

Times `spmm`, without weights and with, by rows and over tiles on graphs of at most that many edges
(20 M by default), in each width and dtype. Fits the picoseconds of each term of the
estimate by non-negative least squares of relative errors. Then says by how much the choice of the
present table, and of the fitted one, is slower than the faster engine. On a CPU tiles run by rows:
there it shows that the script runs.
"""

import functools
import itertools
import sys
import time
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls

from jaxgnn import Graph, spmm, tiles
from jaxgnn.data import benchmark_graph, benchmark_shapes
from jaxgnn.graph._layouts import tile_rule
from jaxgnn.graph.tiles import Operation

NAMES = ("reddit", "proteins", "products", "arxiv", "artist", "amazon0601", "com_amazon", "dd")
WIDTHS = (16, 32, 64, 128, 256)
DTYPES = ("float32", "bfloat16")
CALLS = 20  # of a program
REPEATS = 5
_BY_ITEMSIZE = ("edge_slice", "entry_slice", "tile_edge_slice")


@functools.partial(jax.jit, static_argnames=("impl", "operation", "precision"))
def run(
    graph: Graph,
    x: jax.Array,
    weights: jax.Array | None,
    impl: Any,
    operation: str,
    precision: Any = None,
) -> jax.Array:
    """Many calls in one program, so that the host does not count; means stay in range."""
    weights = None if operation == "spmm" else weights

    def call(x: jax.Array) -> jax.Array:
        return spmm(graph, x, weights, reduce="mean", impl=impl, precision=precision)

    def step(_: Any, carry: Any) -> Any:
        # x is handed on with what was computed: no call is dropped or hoisted.
        return jax.lax.optimization_barrier((carry[0], call(carry[0])))

    return jax.lax.fori_loop(1, CALLS, step, step(0, (x,)), unroll=False)[1]


class Sample(NamedTuple):
    """One call: what it is of, seconds and counts of each term by engine, the table's choice."""

    what: str
    seconds: dict[str, float]
    terms: dict[str, dict[str, float]]
    engine: str


def seconds_of(
    graph: Graph,
    x: jax.Array,
    weights: jax.Array | None,
    impl: str,
    operation: str,
    precision: Any = None,
) -> float:
    """The median of a call."""
    each = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        jax.block_until_ready(run(graph, x, weights, impl, operation, precision))
        each.append((time.perf_counter() - start) / CALLS)
    return float(np.median(each[1:]))


def samples_of(name: str, most_edges: float) -> dict[Operation, list[Sample]]:
    """All widths and dtypes of one graph, for each operation."""
    scale = min(1.0, most_edges / benchmark_shapes()[name].num_edges)
    csr = benchmark_graph(name, scale)
    graph = Graph.from_csr(csr.row_offsets, csr.senders).with_tiles()
    assert graph.tiles is not None
    weights = jnp.full(graph.num_edges, 0.5)
    samples: dict[Operation, list[Sample]] = {operation: [] for operation in get_args(Operation)}
    for dtype, width, operation in itertools.product(DTYPES, WIDTHS, samples):
        x = jax.random.normal(jax.random.key(0), (graph.num_senders, width), dtype)
        itemsize = x.dtype.itemsize
        both = tile_rule.counts(graph.tiles, width, itemsize, operation)
        # What the host takes to enqueue a call is in each; it does not decide.
        terms = {
            engine: {
                f"{name}, {itemsize} bytes" if name in _BY_ITEMSIZE else name: float(n)
                for name, n in {**of, "call": 1}.items()
            }
            for engine, of in zip(("rows", "tiles"), both, strict=True)
        }
        seconds = {impl: seconds_of(graph, x, weights, impl, operation) for impl in terms}
        engine = tiles.estimate(graph, width, dtype, operation=operation).engine
        what = f"{name}, F = {width}, {dtype}, {operation}"
        print(f"{what}: {seconds['rows']:.3g} s, tiles {seconds['tiles']:.3g} s: {engine}")
        samples[operation].append(Sample(what, seconds, terms, engine))
    return samples


def fit(samples: list[Sample]) -> dict[str, float]:
    """Seconds of each term."""
    both = [(s.terms[e], s.seconds[e]) for s in samples for e in ("rows", "tiles")]
    names = sorted({name for terms, _ in both for name in terms})
    counts = np.array([[terms.get(name, 0.0) for name in names] for terms, _ in both])
    seconds = np.array([value for _, value in both])
    scale = counts.max(axis=0).clip(1)  # terms from 1 to 10^11
    rates = nnls(counts / seconds[:, None] / scale, np.ones(seconds.size))[0] / scale
    return dict(zip(names, rates, strict=True))


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
    every = [samples_of(name, most_edges) for name in arguments[1:] or NAMES]
    for operation in get_args(Operation):
        samples = [sample for one in every for sample in one[operation]]
        rates = fit(samples)
        print(f"{operation} on {jax.devices()[0].device_kind}, picoseconds:")
        for term, rate in rates.items():
            print(f"  {term}: {rate * 1e12:.4g}")
        say("The present table", samples, [s.engine for s in samples])

        def fitted(s: Sample, engine: str, rates: dict[str, float] = rates) -> float:
            return sum(rates[name] * count for name, count in s.terms[engine].items())

        chosen = [min(s.terms, key=lambda engine, s=s: fitted(s, engine)) for s in samples]
        say("The fitted rates", samples, chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
