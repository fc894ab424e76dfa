"""The suite `sampling`: what aggregates, draws or trains on a part of each row's edges.

Parts: `kernels`, aggregation over a sample of each row's edges and its gradient, beside the product
of the whole graph and `spmm` of the sampled graph; `neighbors`, the neighborhoods of seeds, hop by
hop; `embedding`, GraphSAGE's embedding of two sampled hops; `steps`, a mini-batch training step;
`host`, features of nodes in host memory, beside a copy of as many bytes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import graphs, minibatch, plan, process
from benchmarks.harness.host_reads import HostRead
from benchmarks.harness.minibatch import Step
from benchmarks.harness.neighbors import Draw
from benchmarks.harness.options import Options
from benchmarks.harness.plan import Measurement
from benchmarks.harness.record import Record
from benchmarks.harness.rows import Row, compare
from benchmarks.suites import spmm

PARTS = ("kernels", "neighbors", "embedding", "steps", "host")
SIZES = (16, 32, 64, 128, 256)
STRATEGIES = tuple(plan.SAMPLED + name for name in ("stride", "bucket", "fastrand", "random"))
GRADIENT_SIZES = (16, 64)
# Of mini-batches.
CASE = "products"
NUM_NEIGHBORS = (15, 10, 5)
SEEDS = (1024, 65_536)
WIDTHS = (100, 256, 256, 47)
LOADERS = (plan.PYG_LOADER, plan.DGL_SAMPLER)
PLAIN_STEPS = (plan.BATCH_SEGMENTS, plan.BATCH_ROWS)
READY_STEPS = (plan.PYG_READY, plan.PYG_TRIMMED)
# Of features in host memory, float32.
HOST_WIDTHS = (100, 256)
# Of embeddings.
CHILDREN = (10, 25, 100)
EMBEDDED = ("pokec", "europe_osm")


def run(options: Options, record: Record, workspace: Path) -> None:
    """Runs the parts one after the other, a worker process for each framework."""
    record.compare = functools.partial(set_baselines, device=options.device)
    parts = options.parts or PARTS
    if "kernels" in parts:
        spmm.run_plan(measurements(options), options, record, workspace)
    for part, settings in (("neighbors", draws), ("embedding", embeddings), ("steps", steps)):
        if part in parts:
            _run(settings(options), options, record, workspace)
    if "host" in parts and (entries := host_reads(options)):
        task = {"module": "benchmarks.harness.host_reads"}
        process.run_each(task, entries, options, record, workspace)


def _run(settings: Sequence[Any], options: Options, record: Record, workspace: Path) -> None:
    """Runs settings of a kind, those of a framework in one process; steps in one each."""
    kept = [s for s in settings if s.impl == minibatch.BATCHES or plan.wanted(s.impl, options.only)]
    if not any(plan.wanted(s.impl, options.only) for s in settings):
        return
    names = list(dict.fromkeys(s.case for s in kept))
    folders = graphs.store_all(names, options.cache or workspace, options.scale)
    for folder in folders.values():
        record.note_graph(graphs.read_facts(folder))
    task = {
        "module": _MODULES[type(kept[0]).__name__],
        "graphs": {name: str(path) for name, path in folders.items()},
        "folder": str(workspace),
    }
    apart = isinstance(kept[0], Step)
    for _, group in itertools.groupby(kept, lambda s: s.impl if apart else s.framework):
        process.run_each(task, list(group), options, record, workspace)


_MODULES = {
    name: f"benchmarks.harness.{module}"
    for name, module in (("Draw", "neighbors"), ("Embedding", "embedding"), ("Step", "minibatch"))
}


def draws(options: Options) -> list[Draw]:
    """The part `neighbors`: all ways of ours, Floyd's algorithm and alias tables in JAX, the CPU
    loaders."""
    ours = [
        places + variant for places in (plan.TREE, plan.DEDUPLICATED) for variant in plan.VARIANTS
    ]
    small = SEEDS[:1] if options.device == "cpu" else SEEDS
    seeds = (32,) if options.quick else options.seeds or small
    impls = (*ours, plan.FLOYD, plan.FLOYD_RBG, plan.ALIAS, *LOADERS)
    # A loader's batches of 65,536 seeds take seconds: the first number alone.
    return [
        Draw(impl, case, count, NUM_NEIGHBORS)
        for case in options.shapes or (CASE,)
        for impl in impls
        for count in (seeds[:1] if impl in LOADERS else seeds)
    ]


def embeddings(options: Options) -> list[Any]:
    """The part `embedding`: batches of 65,536 sources on pokec, and all nodes of each shape."""
    from benchmarks.harness.embedding import Embedding

    gpu = options.device == "gpu"
    children = options.children or ((3,) if options.quick else CHILDREN if gpu else CHILDREN[:1])
    dtypes = options.dtypes or plan.HALF_TOO
    found = []
    for case in options.shapes or (EMBEDDED if gpu else EMBEDDED[:1]):
        for dtype, count in itertools.product(dtypes, children):
            if case != EMBEDDED[1]:
                impls = (plan.OURS, plan.LEAVES, plan.GATHERED)
                found += [Embedding(impl, case, count, dtype, False) for impl in impls]
            elif count != CHILDREN[0] and not options.children:
                continue
            found.append(Embedding(plan.OURS, case, count, dtype, True))
            # Plain JAX on all nodes where that takes no minutes.
            if gpu and dtype == "float32" and count == CHILDREN[0]:
                found.append(Embedding(plan.GATHERED, case, count, dtype, True))
    return found


def steps(options: Options) -> list[Step]:
    """The part `steps`: first what writes the batches that PyG is given."""
    widths = (12, 16, 16, 5) if options.quick else WIDTHS
    seeds = 32 if options.quick else (options.seeds or SEEDS)[0]
    impls = (minibatch.BATCHES, plan.OURS, *PLAIN_STEPS, *READY_STEPS, plan.PYG_STEP)
    return [
        Step(impl, case, seeds, NUM_NEIGHBORS, widths)
        for case in options.shapes or (CASE,)
        for impl in impls
    ]


def host_reads(options: Options) -> list[HostRead]:
    """The part `host`: a gigabyte of rows of 400 and 1,024 bytes, of a matrix of 8 GB."""
    gpu = options.device == "gpu"
    matrix, read = (2**20, 2**16) if options.quick else (8 * 10**9 if gpu else 5 * 10**8, 10**9)
    read = min(read, matrix // 4)
    return [
        HostRead(impl, width, matrix // (4 * width), read // (4 * width))
        for width in options.widths or HOST_WIDTHS
        for impl in (plan.HOST_COPY, plan.HOST_ROWS)
        if plan.wanted(impl, options.only)
    ]


def measurements(options: Options) -> list[Measurement]:
    """The plan in the order in which it runs: the whole graph's products first."""
    gpu = options.device == "gpu"
    cases = options.shapes or ((plan.BIG_SHAPE, "proteins") if gpu else ("rmat",))
    every = (
        measurement
        for case in cases
        for width in options.widths or (256 if gpu else 64,)
        for measurement in _case(case, width, options)
    )
    return plan.narrowed(every, options.dtypes, options.only)


def _case(case: str, width: int, options: Options) -> Iterator[Measurement]:
    gpu = options.device == "gpu"
    whole = (plan.OURS, *(plan.CUSPARSE if gpu else (plan.TORCH,)))
    for direction in plan.BOTH:
        for impl in whole:
            yield Measurement(case, impl, width, "float32", direction)
    dtypes = options.dtypes or plan.HALF_TOO
    sizes = options.sample_sizes or (SIZES if gpu else SIZES[:2])
    for dtype, size in itertools.product(dtypes, sizes):
        impls = (*STRATEGIES, plan.PRESAMPLED) if dtype == "float32" else STRATEGIES[:1]
        for impl in impls:
            yield Measurement(case, impl, width, dtype, "forward", sample=size)
        if options.sample_sizes or size in GRADIENT_SIZES:
            yield Measurement(case, STRATEGIES[0], width, dtype, "backward", sample=size)


def set_baselines(rows: list[Row], device: str) -> None:
    """The baseline is the float32 product of the whole graph by the library for it; beside it the
    ratio to `spmm` of the sample. Of neighborhoods it is the faster of Floyd's algorithm in JAX,
    beside it the ratios to alias tables and to the faster loader; of embeddings plain JAX, of steps
    the fastest other one, of rows on the host the copy."""
    products = plan.CUSPARSE if device == "gpu" else (plan.TORCH,)
    for row in rows:
        if row["pass"] == "sample":
            for name, impls in (("alias_tables", (plan.ALIAS,)), ("loaders", LOADERS)):
                if compare(row, rows, {"impl": impls}, _SAME):
                    row[f"ratio_{name}"] = row["ratio"]
            compare(row, rows, {"impl": (plan.FLOYD, plan.FLOYD_RBG)}, _SAME)
        elif row["pass"] in ("batch", "epoch"):
            same = (*_SAME, "children")
            if compare(row, rows, {"impl": plan.LEAVES}, same):
                row["multiple_of_spmm"] = round(1 / row["ratio"], 3)
            compare(row, rows, {"impl": plan.GATHERED}, same)
        elif row["pass"] == "step":
            compare(row, rows, {"impl": (*PLAIN_STEPS, *READY_STEPS, plan.PYG_STEP)}, _SAME)
        elif row["pass"] == "host":
            compare(row, rows, {"impl": plan.HOST_COPY}, ("case", "width", "pass"))
        else:
            spec = {"impl": plan.PRESAMPLED}
            if compare(row, rows, spec, ("case", "width", "dtype", "pass", "S")):
                row["ratio_spmm_of_the_sample"] = row["ratio"]
            compare(row, rows, {"impl": products}, ("case", "width", "pass"))


_SAME = ("case", "dtype", "pass", "seeds")
