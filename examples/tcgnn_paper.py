"""TC-GNN's data sets: dense matrices, blocks, translation and training steps beside the paper's.

    python examples/tcgnn_paper.py                            # all sets, on stand-ins
    python examples/tcgnn_paper.py cora artist --data FOLDER  # FOLDER/cora.npz, as TC-GNN has them
    python examples/tcgnn_paper.py --quick                    # a trial: two small sets

The settings are the paper's (Wang et al., "TC-GNN", USENIX ATC 2023): a GCN of 2 layers and 16
hidden features, an AGNN of 4 layers and 32, 200 epochs, on the sets of its Table 4. Without
`--data` a set is `jaxgnn.data.benchmark_graph`: the set's nodes and edges, but not its structure,
so that blocks are comparable by type at most. The stand-ins of molecules are not: their nodes are
numbered along each molecule, so that consecutive columns have its blocks as they are. Features and
labels are random in both cases.

On a GPU graphs get tiles, which the GCN takes where `jaxgnn.tiles.estimate` says so. A CPU runs by
rows; its steps say nothing of the paper's, and the translation's share is of CPU epochs. With
`--baseline` the same steps run in plain JAX, too, in the place of the paper's DGL. What a
profiler must count, cache hits and occupancy (the paper's Table 1: 37 and 15 %), is not here.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

from jaxgnn import Graph, build_info, config, cosine_attention, spmm, tiles
from jaxgnn.data import DataError, benchmark_graph, benchmark_shapes, read_tcgnn
from jaxgnn.nn import AGNN, GCN

Model = Literal["gcn", "agnn"]

SETS = {
    "I": ("citeseer", "cora", "pubmed", "ppi"),
    "II": ("proteins_full", "ovcar_8h", "yeast", "dd", "yeast_h"),
    "III": ("amazon0505", "artist", "com_amazon", "soc_blogcatalog", "amazon0601"),
}
QUICK = ("cora", "ovcar_8h")
# The paper's, or of its published logs.
FEWER_BLOCKS = {"I": (72, 86), "II": (24, 63), "III": (77, 87)}
FEWER_BLOCKS_MEAN = 67.47
TRANSLATION_SHARE = 4.43
TIMES_DGL = 1.70  # of all sets and models; those of type III by model:
TIMES_DGL_III = {"gcn": 1.59, "agnn": 1.51}
PRODUCT_MS_III = (3.1, 4.1)
TSPARSE_MS_III, TRITON_MS_III = (9, 19), (13, 32)
AGGREGATION_SHARE = (87, 94)
HIDDEN: dict[Model, int] = {"gcn": 16, "agnn": 32}
LAYERS: dict[Model, int] = {"gcn": 2, "agnn": 4}


@dataclasses.dataclass(frozen=True)
class Options:
    """Prints the paper's figures and this machine's."""

    sets: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which, by the names of `benchmark_shapes` (default: the fourteen of Table 4)."""
    data: Path | None = None
    """A folder of TC-GNN's files, SET.npz; without it, stand-ins."""
    models: tuple[Model, ...] = ("gcn", "agnn")
    """Whose steps are timed; none of them: `--models`."""
    epochs: int = 200
    """Epochs that the translation is compared with."""
    steps: int = 10
    """Steps that are timed, after two that are not."""
    baseline: bool = False
    """Time the same steps in plain JAX, too: gathers and segment sums in place of our kernels."""
    scale: float = 1.0
    """Of the stand-ins' nodes and edges."""
    quick: bool = False
    """A trial: two sets at 1 % of their size, three steps."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One set.

    Attributes:
        kind: the paper's type of the set.
        nodes, edges: of the graph.
        dense_bytes: of its matrix in float32.
        density: share of that matrix that has an edge.
        blocks_before, blocks: of 16 by 8, without and with the translation: the product's.
        square_before, square: of 16 by 16: those of the dot products on edges.
        edges_per_column: of windows of 16 rows.
        comparable: whether its blocks without the translation say something of the set's.
        translate_seconds: of the translation to blocks of 16 by 8.
        tiles_seconds: of `with_tiles`; `None` without the compiled module.
        product_seconds: median of one product with 16 features, the GCN's hidden ones.
        step_seconds: median of a training step, by model.
        baseline_seconds: the same in plain JAX; empty if it was not asked for.
        aggregation_seconds: of a step's aggregations alone, forward and backward, by model.
    """

    kind: str
    nodes: int
    edges: int
    dense_bytes: int
    density: float
    blocks_before: int
    blocks: int
    square_before: int
    square: int
    edges_per_column: float
    comparable: bool
    translate_seconds: float
    tiles_seconds: float | None
    product_seconds: float
    step_seconds: dict[Model, float]
    baseline_seconds: dict[Model, float]
    aggregation_seconds: dict[Model, float]

    @property
    def fewer_blocks(self) -> float:
        """In percent."""
        return 100 * (1 - self.blocks / self.blocks_before) if self.blocks_before else 0.0

    def translation_share(self, model: Model, epochs: int) -> float:
        """Of the translation and that many epochs, in percent."""
        training = epochs * self.step_seconds[model]
        return 100 * self.translate_seconds / (self.translate_seconds + training)


def graph_of(name: str, options: Options) -> Graph:
    """The set's file, or its stand-in."""
    if options.data is not None:
        return read_tcgnn(options.data / f"{name}.npz").graph
    csr = benchmark_graph(name, options.scale)
    return Graph.from_csr(csr.row_offsets, csr.senders)


def step_seconds(model: Model, graph: Graph, name: str, steps: int) -> float:
    """The median time of a full-batch training step, on random features and labels."""
    shape = benchmark_shapes()[name]
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (graph.num_nodes, shape.features))
    labels = jax.random.randint(keys[1], (graph.num_nodes,), 0, shape.classes)
    kind = GCN if model == "gcn" else AGNN
    widths = shape.features, HIDDEN[model], shape.classes
    net = kind(*widths, num_layers=LAYERS[model], rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param)

    @nnx.jit
    def step(net: nnx.Module, optimizer: nnx.Optimizer, graph: Graph, x, labels) -> jax.Array:
        def loss(net):
            logits = net(graph, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradient = nnx.value_and_grad(loss)(net)
        optimizer.update(net, gradient)
        return value

    return median_seconds(lambda: step(net, optimizer, graph, x, labels), steps)


def aggregation_seconds(model: Model, graph: Graph, name: str, steps: int) -> float:
    """The median time of the aggregations of a model's step, forward and backward.

    The GCN projects first, so that it sums rows of 16 features and of the classes; the AGNN's four
    attentions have 32.
    """
    if model == "gcn":
        widths = (16, min(16, benchmark_shapes()[name].classes))
        aggregate = spmm
    else:
        widths = (HIDDEN[model],)
        aggregate = attend

    @jax.jit
    def both(graph: Graph, inputs: list[jax.Array]) -> list[jax.Array]:
        pulls = [jax.vjp(lambda x: aggregate(graph, x), x) for x in inputs]
        return [pull(out)[0] for out, pull in pulls]

    inputs = [jnp.ones((graph.num_nodes, width)) for width in widths]
    return median_seconds(lambda: both(graph, inputs), steps)


def attend(graph: Graph, x: jax.Array) -> jax.Array:
    """The AGNN's layers one after the other, with the beta of 1 that they begin with."""
    for _ in range(LAYERS["agnn"]):
        x = cosine_attention(graph, x[:, None], 1.0, self_loops=True)[:, 0]
    return x


def product_seconds(graph: Graph, steps: int) -> float:
    """The median time of one product with the adjacency matrix, of 16 features."""
    x = jnp.ones((graph.num_nodes, HIDDEN["gcn"]))
    product = jax.jit(spmm)
    return median_seconds(lambda: product(graph, x), steps)


def median_seconds(call: Callable[[], Any], steps: int) -> float:
    """Of so many calls, after two that are not timed: the first compiles."""
    times = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return float(np.median(times[2:]))


def measure(name: str, options: Options) -> Result:
    """All of one set."""
    graph = graph_of(name, options)
    # The rows of TC-GNN's matrix are the ends that its files have first: our senders.
    transpose = options.data is not None
    on_gpu = jax.default_backend() == "gpu"
    if on_gpu:
        tiles.translate(graph, transpose=transpose)  # compiles
    start = time.perf_counter()
    translation = tiles.translate(graph, transpose=transpose)
    seconds = time.perf_counter() - start
    square = tiles.translate(graph, 16, 16, transpose=transpose)
    tiled, tiles_seconds = graph, None
    if build_info().cpu:
        start = time.perf_counter()
        tiled = graph.with_tiles()
        tiles_seconds = time.perf_counter() - start
    used, steps = (tiled if on_gpu else graph), options.steps
    baseline: dict[Model, float] = {}
    if options.baseline:
        with config.use(impl="jax"):
            baseline = {m: step_seconds(m, graph, name, steps) for m in options.models}
    return Result(
        kind=next((kind for kind, names in SETS.items() if name in names), "-"),
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        dense_bytes=4 * graph.num_nodes**2,
        density=translation.num_entries / max(graph.num_nodes**2, 1),
        blocks_before=translation.num_blocks_before,
        blocks=translation.num_blocks,
        square_before=square.num_blocks_before,
        square=square.num_blocks,
        edges_per_column=translation.edges_per_column,
        comparable=options.data is not None or not benchmark_shapes()[name].molecules,
        translate_seconds=seconds,
        tiles_seconds=tiles_seconds,
        product_seconds=product_seconds(used, steps) if options.models else 0.0,
        step_seconds={m: step_seconds(m, used, name, steps) for m in options.models},
        baseline_seconds=baseline,
        aggregation_seconds={m: aggregation_seconds(m, used, name, steps) for m in options.models},
    )


def show(console: Console, results: dict[str, Result], options: Options) -> None:
    """The tables, each with what the paper has."""
    show_blocks(console, results, options)
    if options.models:
        show_steps(console, results, options)


def show_blocks(console: Console, results: dict[str, Result], options: Options) -> None:
    """Dense matrices, blocks and what they take to find."""
    source = "TC-GNN's files" if options.data is not None else "stand-ins"
    table = Table(title=f"Dense matrices and blocks, {source}", title_justify="left")
    for column in ("set", "type", "nodes", "edges", "dense GB", "density %", "16×8 before"):
        table.add_column(column, justify="left" if column in ("set", "type") else "right")
    for column in ("after", "fewer %", "16×16 before", "after", "edges a column", "translate ms"):
        table.add_column(column, justify="right")
    table.add_column("with_tiles ms", justify="right")
    for name, r in results.items():
        made = "-" if r.tiles_seconds is None else f"{1e3 * r.tiles_seconds:.1f}"
        table.add_row(
            *(name + "*" * (not r.comparable), r.kind, f"{r.nodes:,}", f"{r.edges:,}"),
            *(f"{r.dense_bytes / 1e9:,.2f}", f"{100 * r.density:.2g}"),
            *(f"{r.blocks_before:,}", f"{r.blocks:,}", f"{r.fewer_blocks:.1f}"),
            *(f"{r.square_before:,}", f"{r.square:,}"),
            *(f"{r.edges_per_column:.2f}", f"{1e3 * r.translate_seconds:.1f}", made),
        )
    console.print(table)
    console.print(
        "The densities of the paper's Table 3 are wrong: of OVCAR-8H's 1,890,931² entries its "
        "3,946,402 edges are 0.00011 %."
    )
    compared = [r for r in results.values() if r.comparable]
    if len(compared) < len(results):
        console.print(
            "* The stand-in is numbered along each molecule: there are few blocks without the "
            "translation, and what it saves of them says nothing of the set. Left out below."
        )
    for kind, (low, high) in FEWER_BLOCKS.items():
        ours = [r.fewer_blocks for r in compared if r.kind == kind]
        if ours:
            console.print(
                f"Type {kind}: {min(ours):.0f} to {max(ours):.0f} % fewer blocks of 16×8 here, "
                f"{low} to {high} in the paper's logs."
            )
    if compared:
        mean = np.mean([r.fewer_blocks for r in compared])
        console.print(f"On average {mean:.2f} % fewer here, {FEWER_BLOCKS_MEAN} in the paper.")


def show_steps(console: Console, results: dict[str, Result], options: Options) -> None:
    """Training steps, their aggregations, and one product."""
    device = jax.devices()[0].device_kind
    table = Table(title=f"Training steps on {device}", title_justify="left")
    table.add_column("set")
    table.add_column("product ms", justify="right")
    for model in options.models:
        table.add_column(f"{model} ms", justify="right")
        if options.baseline:
            table.add_column("× plain JAX", justify="right")
        table.add_column(f"translation, % of {options.epochs} epochs", justify="right")
        table.add_column("aggregation, % of the step", justify="right")
    for name, r in results.items():
        cells = [f"{1e3 * r.product_seconds:.3g}"]
        for model in options.models:
            step = r.step_seconds[model]
            cells.append(f"{1e3 * step:.3g}")
            if options.baseline:
                cells.append(f"{r.baseline_seconds[model] / step:.2f}")
            cells.append(f"{r.translation_share(model, options.epochs):.2f}")
            cells.append(f"{100 * r.aggregation_seconds[model] / step:.0f}")
        table.add_row(name, *cells)
    console.print(table)
    where = "the GPU" if jax.default_backend() == "gpu" else "the host"
    low, high = AGGREGATION_SHARE
    console.print(
        f"The paper's translation takes {TRANSLATION_SHARE} % (RTX 3090); here it runs on {where}. "
        f"In its Table 1 the aggregation takes {low} to {high} %."
    )
    if any(r.kind == "III" for r in results.values()):
        (least, most), tsparse, triton = PRODUCT_MS_III, TSPARSE_MS_III, TRITON_MS_III
        console.print(
            f"Products of type III take {least} to {most} ms in the paper, {tsparse[0]} to "
            f"{tsparse[1]} by tSparse and {triton[0]} to {triton[1]} by Triton (RTX 3090); here "
            f"{HIDDEN['gcn']} features."
        )
    if not options.baseline:
        return
    for kind in ("III", None):
        for model in options.models:
            times = [
                r.baseline_seconds[model] / r.step_seconds[model]
                for r in results.values()
                if kind in (None, r.kind)
            ]
            if times:
                paper = TIMES_DGL if kind is None else TIMES_DGL_III[model]
                sets = "all sets" if kind is None else f"type {kind}"
                over = "over both models" if kind is None else "of this model"
                console.print(
                    f"{model}, {sets}: on average {np.mean(times):.2f} times plain JAX here; the "
                    f"paper's TC-GNN is {paper} times DGL {over}."
                )


def main(arguments: list[str] | None = None) -> dict[str, Result]:
    """Parses, measures, prints, and returns what was measured, by set."""
    options = tyro.cli(Options, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    if options.quick:
        sets = options.sets or QUICK
        options = dataclasses.replace(options, sets=sets, scale=0.01, steps=3)
    known = {name for name, shape in benchmark_shapes().items() if shape.features}
    for name in options.sets:
        if name not in known:
            sys.exit(f"sets: expected some of {', '.join(sorted(known))}, got {name!r}")
    for option, value in (("epochs", options.epochs), ("steps", options.steps)):
        if value < 1:
            sys.exit(f"--{option}: expected at least 1, got {value}")
    names = options.sets or tuple(name for names in SETS.values() for name in names)
    try:
        results = {name: measure(name, options) for name in names}
    except DataError as error:
        sys.exit(str(error))
    console = Console()
    show(Console(width=max(console.width, 160)), results, options)
    return results


if __name__ == "__main__":
    main()
