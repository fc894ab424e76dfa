"""The targets: ratios that a run must reach, as one table, and their evaluation over the rows."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.harness import plan
from benchmarks.harness.rows import Row, Spec, fastest
from jaxgnn.data import benchmark_shapes


@dataclasses.dataclass(frozen=True)
class Target:
    """A statement that a run meets or misses.

    `ours` and `over` are specifications of rows, `over` beside what it shares with `ours`. The
    ratio of the quantity of `over` to ours is `at_least` so much; with several `cases` their
    geometric mean is, or with `worst` each of them. Without `over`, our quantity in `unit` is
    `at_most` so much.
    `published_ms` is what the paper's kernels took on the same GPU and graph; of embeddings, on a
    V100 and on the set of which the graph is a stand-in.
    """

    what: str
    suite: str
    device: str | None
    ours: Spec
    over: Spec | None = None
    at_least: float | None = None
    at_most: float | None = None
    quantity: str = "ms"
    unit: float = 1.0
    cases: tuple[str, ...] = ()
    worst: bool = False
    published_ms: float | None = None


_OURS = {"impl": (plan.OURS,)}
_SPMM = {"impl": (plan.OURS, plan.ORDERED)}
_MAXK = (plan.MAXK, plan.MAXK_WINDOWS)
_DETERMINISTIC = (plan.MAXK_DETERMINISTIC, plan.MAXK_WINDOWS_DETERMINISTIC)
_CUSPARSE = {"impl": plan.CUSPARSE}
_FORWARD, _BACKWARD, _SELECT = ({"pass": name} for name in ("forward", "backward", "select"))
_HALF = {"dtype": "bfloat16"}
_DENSE = {"k": None}
_LARGE_BYTES = 50e6
_SHARING = (plan.BIG_SHAPE, "proteins")  # whose windows share columns


def _spmm() -> Iterator[Target]:
    segment_sum = "JAX gather + sorted segment_sum"
    for width, times in ((64, 3.5), (256, 4.0)):
        for what, fields, impl, at_least in (
            ("torch.sparse CSR", {}, plan.TORCH, 1.3),
            (segment_sum, {}, plan.SORTED, times),
            (f"gradient of {segment_sum}", _BACKWARD, plan.SORTED, 5.0),
        ):
            ours = {**_OURS, "case": "rmat", "width": width, **fields}
            what = f"rmat, F = {width}: {what}"
            yield Target(what, "spmm", "cpu", ours, {"impl": (impl,)}, at_least)
    plain, flagged = {"impl": (plan.SORTED,)}, {"impl": (plan.SORTED + plan.FTZ,)}
    for what, fields, over, at_least in (
        ("best cuSPARSE float32", {}, _CUSPARSE, 1.2),
        ("bfloat16: best cuSPARSE bfloat16", _HALF, _CUSPARSE, 1.0),
        ("backward within 15 % of forward", _BACKWARD, _FORWARD, 1 / 1.15),
        ("bfloat16 backward within 15 % of forward", {**_HALF, **_BACKWARD}, _FORWARD, 1 / 1.15),
        ("JAX sorted segment_sum", {}, plain, 1.4),
        ("gradient of JAX sorted segment_sum", _BACKWARD, plain, 4.0),
        ("JAX unsorted segment_sum", {}, {"impl": (plan.UNSORTED,)}, 15.0),
        ("forward: JAX with its fastest flags", {}, flagged, 1.0),
        ("backward: JAX with its fastest flags", _BACKWARD, flagged, 1.0),
    ):
        ours = {**_SPMM, "case": plan.BIG_SHAPE, "width": 256, **fields}
        yield Target(f"{plan.BIG_SHAPE}, F = 256: {what}", "spmm", "gpu", ours, over, at_least)
    ours, what = {**_SPMM, "width": 256}, "F = 256: best cuSPARSE float32"
    for shape in plan.OTHER_SHAPES:
        one = {**ours, "case": shape}
        yield Target(f"{shape}, {what}", "spmm", "gpu", one, _CUSPARSE, 1.0)
    what = f"geometric mean of the other shapes, {what}"
    yield Target(what, "spmm", "gpu", ours, _CUSPARSE, 1.3, cases=plan.OTHER_SHAPES)


def _tensor_core() -> Iterator[Target]:
    """Of tiles against cuSPARSE, both in one dtype, on the graphs whose windows share columns."""
    for case, bounds in zip(_SHARING, ((1.9, 1.7), (2.1, 2.0)), strict=True):
        name = f"{case}, F = 256: "
        for dtype, at_least in zip(plan.HALF_TOO, bounds, strict=True):
            ours = {"impl": (plan.TILES,), "case": case, "width": 256, "dtype": dtype}
            what = f"{name}best cuSPARSE {dtype}"
            yield Target(what, "tensor_core", "gpu", ours, _CUSPARSE, at_least)
            what = f"{name}rows, {dtype}"
            yield Target(what, "tensor_core", "gpu", ours, _SPMM, 1.3)
            what = f"{name}backward within 10 % of forward, {dtype}"
            backward = {**ours, **_BACKWARD}
            yield Target(what, "tensor_core", "gpu", backward, _FORWARD, 1 / 1.1)
            if dtype == "float32":
                limit: Any = {"at_most": 2.0, "quantity": "error", "unit": 1e-6}
                what = f"{name}error in millionths, float32"
                yield Target(what, "tensor_core", "gpu", ours, **limit)
    for case, width, dtype in itertools.product(_SHARING, (64, 128), plan.HALF_TOO):
        ours = {"impl": (plan.TILES,), "case": case, "width": width, "dtype": dtype}
        what = f"{case}, F = {width}: rows, {dtype}"
        yield Target(what, "tensor_core", "gpu", ours, _SPMM, 1.3)
    ours = {"impl": (plan.TILES,), "case": f"{plan.BIG_SHAPE} weighted", "width": 256}
    what = f"{plan.BIG_SHAPE} weighted, F = 256: best cuSPARSE float32"
    yield Target(what, "tensor_core", "gpu", ours, _CUSPARSE, 1.5)
    over: Spec = {"impl": (plan.CUSPARSE_SDDMM,)}
    for case, (width, at_least) in itertools.product(_SHARING, ((64, 1.6), (128, 1.6), (256, 2.0))):
        ours = {"impl": (plan.SDDMM,), "case": case, "width": width}
        what = f"{case}, F = {width}: cuSPARSE SDDMM float32"
        yield Target(what, "tensor_core", "gpu", ours, over, at_least)
    apart = tuple(shape for shape in plan.OTHER_SHAPES if shape not in _SHARING)
    over = {"impl": (plan.CUSPARSE_SDDMM, plan.JAX_SDDMM)}
    for width in (64, 128, 256):
        ours = {"impl": (plan.SDDMM,), "width": width}
        what = f"each other shape, F = {width}: best of cuSPARSE and JAX, SDDMM float32"
        yield Target(what, "tensor_core", "gpu", ours, over, 1.3, cases=apart, worst=True)
    yield from _faster_engine()
    for model, mean, least in (("gcn", 3.5, 1.5), ("agnn", 12.0, 6.0)):
        cases = tuple(f"{name} {model}" for name in plan.TCGNN_SETS)
        ours, over = {"impl": (plan.ESTIMATED,), "pass": "step"}, {"impl": plan.TCGNN_PYG[model]}
        at: Any = ("tensor_core", "gpu", ours, over)
        what = f"geometric mean of Table 4's sets, {model} step: PyG's best path"
        yield Target(what, *at, mean, cases=cases)
        what = f"each of Table 4's sets, {model} step: PyG's best path"
        yield Target(what, *at, least, cases=cases, worst=True)


def _faster_engine() -> Iterator[Target]:
    """Of the engine chosen by estimate against cuSPARSE in float32, over the sets; and copies."""
    chosen: Spec = {"impl": (plan.ESTIMATED,), **_FORWARD}
    best = {**_CUSPARSE, "dtype": "float32"}
    seven = (plan.BIG_SHAPE, *plan.OTHER_SHAPES)
    every = (*seven, *plan.TCGNN_SHAPES)
    means = [("the seven shapes", seven, 256, "float32", 1.7)]
    for width, (dtype, at_least) in itertools.product(
        (16, 32, 64, 128, 256), (("float32", 1.6), ("bfloat16", 2.4))
    ):
        means.append(("all shapes", every, width, dtype, at_least))
    for width in (16, 32, 64):
        means.append(("many small graphs", plan.SMALL_GRAPHS, width, "float32", 2.0))
    for name, cases, width, dtype, at_least in means:
        what = f"geometric mean of {name}, F = {width}, {dtype}: best cuSPARSE float32"
        ours = {**chosen, "width": width, "dtype": dtype}
        yield Target(what, "tensor_core", "gpu", ours, best, at_least, cases=cases)
    engines = {"impl": (plan.TILES, plan.OURS)}
    weighted = tuple(f"{case} weighted" for case in _SHARING)
    for width, dtype in itertools.product((16, 32, 64, 128, 256), plan.HALF_TOO):
        ours = {**chosen, "width": width, "dtype": dtype}
        for name, cases in (("shape", every), ("weighted shape", weighted)):
            at: Any = {"cases": cases, "worst": True}
            at_width = f"each {name}, F = {width}, {dtype}"
            what = f"{at_width}: best cuSPARSE float32"
            yield Target(what, "tensor_core", "gpu", ours, best, 1.0, **at)
            what = f"{at_width}: the faster engine, chosen by estimate"
            yield Target(what, "tensor_core", "gpu", ours, engines, 1 / 1.05, **at)
    copy = {"impl": (plan.COPY,), **_SELECT}
    for case, width in itertools.product(plan.SMALL_GRAPHS, (16, 32, 64)):
        if benchmark_shapes()[case].num_nodes * width * 4 < _LARGE_BYTES:
            continue  # a cache holds much of the features
        ours = {**chosen, "case": case, "width": width}
        what = f"{case}, F = {width}: copy of the features"
        yield Target(what, "tensor_core", "gpu", ours, copy, 1 / 1.6)


def _maxk() -> Iterator[Target]:
    ours = {"impl": _MAXK, "case": "rmat", "width": 256, "k": 32}
    yield Target("rmat, k = 32: our dense spmm", "maxk", "cpu", ours, {**_OURS, **_DENSE}, 2.0)
    cusparse, dense = {**_CUSPARSE, **_FORWARD, **_DENSE}, {**_SPMM, **_DENSE}
    both, half = {"impl": _MAXK}, {"impl": _MAXK, **_HALF}
    either = {"impl": (*_MAXK, *_DETERMINISTIC), **_BACKWARD}
    deterministic = "deterministic backward, bfloat16: our dense spmm"
    by_rows = {"impl": _DETERMINISTIC, **_HALF, **_BACKWARD}
    packed = "forward, packed float32: best cuSPARSE float32"
    select = {"impl": (plan.MAXK,), **_SELECT}
    copy, top_k = {"impl": (plan.COPY,), **_DENSE}, {"impl": (plan.TOP_K,)}
    forward, backward = (f"{way}, float32: best cuSPARSE float32" for way in plan.BOTH)
    published = {
        forward: {32: 7.24, 16: 4.95, 8: 5.06},
        backward: {32: 6.79, 16: 2.79, 8: 2.21},
        "select, float32: copy of the input": {32: 0.28},
    }
    for what, fields, over, bounds in (
        (forward, both, cusparse, {32: 4.6, 16: 8.0, 8: 10.0}),
        ("forward, bfloat16: best cuSPARSE bfloat16", half, cusparse, {32: 2.2, 16: 3.9, 8: 5.7}),
        (backward, either, cusparse, {32: 4.0, 16: 7.5, 8: 11.0}),
        (packed, {"impl": (plan.MAXK_PACKED,)}, cusparse, {32: 5.5, 16: 9.5, 8: 14.0}),
        ("forward, float32: our dense spmm", both, dense, {32: 2.5}),
        ("backward, float32: our dense spmm", {**both, **_BACKWARD}, dense, {32: 2.5}),
        ("forward, bfloat16: our dense spmm", half, dense, {32: 1.35}),
        ("backward, bfloat16: our dense spmm", {**half, **_BACKWARD}, dense, {32: 1.35}),
        (deterministic, by_rows, {**dense, **_FORWARD}, {32: 1.0}),
        ("select, float32: copy of the input", select, copy, {32: 1 / 1.2}),
        ("select, float32: jax.lax.top_k", select, top_k, {32: 15.0}),
    ):
        for k, at_least in bounds.items():
            ours = {**fields, "case": plan.BIG_SHAPE, "width": plan.MAXK_WIDTH, "k": k}
            ms = published.get(what, {}).get(k)
            name = f"{plan.BIG_SHAPE}, k = {k}: {what}"
            yield Target(name, "maxk", "gpu", ours, over, at_least, published_ms=ms)
    for way, k in itertools.product(plan.BOTH, (32, 16, 8)):
        ours = {**both, "case": plan.BIG_SHAPE + " weighted", "pass": way}
        ours |= {"width": plan.MAXK_WIDTH, "k": k}
        name = f"{plan.BIG_SHAPE}, k = {k}: {way} with weights, float32: without"
        yield Target(name, "maxk", "gpu", ours, {"case": plan.BIG_SHAPE}, 1 / 1.4)


def _sampling() -> Iterator[Target]:
    whole = {**_CUSPARSE, **_FORWARD, "dtype": "float32", "S": None}
    stride, bucket, fastrand = (
        {"impl": (plan.SAMPLED + name,)} for name in ("stride", "bucket", "fastrand")
    )
    over = "best cuSPARSE float32 of all edges"
    sizes = (16, 32, 64, 128, 256)
    for case, ours, bounds in (
        (plan.BIG_SHAPE, stride, (28, 15.5, 8.5, 4.9, 2.9)),
        (plan.BIG_SHAPE, fastrand, (28, 15.5, 8.5, 4.9, 2.9)),
        (plan.BIG_SHAPE, bucket, (32, 20.5, 10.5, 6.1, 3.3)),
        (plan.BIG_SHAPE, {**stride, **_HALF}, (52, 29, 16, 9.2, 5.6)),
        ("proteins", stride, (26, 14, 7.6, 4.1, 2.2)),
    ):
        for size, at_least in zip(sizes, bounds, strict=True):
            own = {**ours, "case": case, "width": 256, "S": size}
            name = f"{ours['impl'][0]} {ours.get('dtype', 'float32')}"
            what = f"{case}, S = {size}, {name}: {over}"
            yield Target(what, "sampling", "gpu", own, whole, at_least)
    for size in sizes:
        own = {**stride, "case": plan.BIG_SHAPE, "width": 256, "S": size}
        what = f"{plan.BIG_SHAPE}, S = {size}: within 1.1 times spmm of the sample"
        yield Target(what, "sampling", "gpu", own, {"impl": (plan.PRESAMPLED,)}, 1 / 1.1)
    own = {**stride, **_BACKWARD, "case": plan.BIG_SHAPE, "width": 256, "S": 64}
    yield Target(f"{plan.BIG_SHAPE}, S = 64, gradient: {over}", "sampling", "gpu", own, whole, 6.0)


def _neighbors() -> Iterator[Target]:
    """Of mini-batches: sampling, the training step, and features on the host."""
    rate: Any = {"quantity": "giga_edges_per_second"}
    drawn = {"case": "products", "dtype": "int32", "pass": "sample"}
    for seeds, at_least in ((1024, 8.0), (65_536, 30.0)):
        ours = {**drawn, "impl": (plan.TREE,), "seeds": seeds}
        what = f"products, {seeds} seeds: G sampled edges/s"
        yield Target(what, "sampling", "gpu", ours, at_least=at_least, **rate)
        floyd = {"impl": (plan.FLOYD, plan.FLOYD_RBG)}
        yield Target(f"products, {seeds} seeds: Floyd in JAX", "sampling", "gpu", ours, floyd, 3.0)
    step = {**_OURS, "case": "products", "pass": "step"}
    what = "products, mini-batch step: milliseconds"
    yield Target(what, "sampling", "gpu", step, at_most=1.0)
    for what, impls, at_least in (
        ("PyG's loader and step", (plan.PYG_STEP,), 15.0),
        ("PyG on ready batches", (plan.PYG_READY, plan.PYG_TRIMMED), 3.0),
        ("plain JAX", (plan.BATCH_SEGMENTS, plan.BATCH_ROWS), 1.3),
    ):
        what, over = f"products, mini-batch step: {what}", {"impl": impls}
        yield Target(what, "sampling", "gpu", step, over, at_least)
    for width in (100, 256):
        what = f"features on the host, rows of {4 * width} bytes: rate of a copy"
        own = {"case": "host", "pass": "host", "width": width}
        over = {"impl": (plan.HOST_COPY,)}
        yield Target(what, "sampling", "gpu", {**own, "impl": (plan.HOST_ROWS,)}, over, 0.8)


def _embedding() -> Iterator[Target]:
    pokec, road = ({**_OURS, "case": case} for case in ("pokec", "europe_osm"))
    batch, epoch = {"pass": "batch"}, {"pass": "epoch"}
    over: Any = {"impl": (plan.GATHERED,)}
    v100 = {10: 602.0, 25: 1379.0, 100: 6793.0}
    for children, times, most in ((10, 2.2, 18.0), (25, 1.6, 70.0), (100, 1.4, 600.0)):
        one, name = {"children": children}, f"pokec, C = {children}"
        leaves = {"impl": (plan.LEAVES,)}
        own = {**pokec, **batch, **one}
        what = f"{name}: within {times} times spmm of the leaves"
        yield Target(what, "sampling", "gpu", own, leaves, 1 / times)
        yield Target(f"{name}: plain JAX", "sampling", "gpu", own, over, 2.0)
        own, what = {**pokec, **epoch, **one}, f"{name}, all nodes: milliseconds"
        limit: Any = {"at_most": most, "published_ms": v100[children]}
        yield Target(what, "sampling", "gpu", own, **limit)
        half, what = {**own, **_HALF}, f"{name}, all nodes, bfloat16: float32"
        yield Target(what, "sampling", "gpu", half, {"dtype": "float32"}, 1.4)
    own = {**road, **epoch, "children": 10}
    limit = {"at_most": 350.0, "published_ms": 18_440.0}
    yield Target("europe_osm, C = 10, all nodes: milliseconds", "sampling", "gpu", own, **limit)
    own = {**pokec, **batch, "children": 10}
    yield Target("pokec, C = 10: plain JAX", "sampling", "cpu", own, over, 3.0)
    own, limit = {**pokec, **epoch, "children": 10}, {"at_most": 30.0, "unit": 1e3}
    yield Target("pokec, C = 10, all nodes: seconds", "sampling", "cpu", own, **limit)


def _attention() -> Iterator[Target]:
    for dtype, (direction, times) in itertools.product(
        ("float32", "bfloat16"), (("forward", 1.4), ("backward", 2.2))
    ):
        what = f"4 heads of 64, {direction}, {dtype}: within {times} times our spmm"
        ours = {"impl": (plan.GAT,), "case": plan.BIG_SHAPE, "width": 256}
        ours |= {"dtype": dtype, "pass": direction}
        over = {**_OURS, **_FORWARD}
        yield Target(f"{plan.BIG_SHAPE}, {what}", "attention", "gpu", ours, over, 1 / times)
    step, memory, pyg = {**_OURS, "pass": "step"}, "peak_bytes", (plan.PYG_EDGES,)
    for model in plan.EDGE_MODELS:
        for shape in (*plan.STEP_SHAPES, plan.CPU_SHAPE):
            device = "cpu" if shape == plan.CPU_SHAPE else "gpu"
            plain = plan.plain_steps(model, device)
            bounds = [("plain JAX", plain, 2.0, "ms")]
            bounds += [("peak memory of plain JAX", (plan.PLAIN,), 10.0, memory)]
            if device == "gpu":
                bounds = [("PyG", pyg, 3.0, "ms"), ("peak memory of PyG", pyg, 4.0, memory)]
                bounds += [("plain JAX", plain, 5.0, "ms")]
            for what, impls, at_least, quantity in bounds:
                ours, what = {**step, "case": f"{shape} {model}"}, f"{shape} {model} step: {what}"
                at: Any = ("attention", device, ours, {"impl": impls}, at_least)
                yield Target(what, *at, quantity=quantity)
    two, four = (f"{plan.BIG_SHAPE} gat{label}" for label in plan.DEEP)
    milliseconds, gigabytes = ("milliseconds", "ms", 1.0), ("peak memory in GB", memory, 1e9)
    for case, dtype, (what, quantity, unit), at_most in (
        (two, "float32", gigabytes, 3.9),
        (four, "float32", milliseconds, 230.0),
        (four, "bfloat16", milliseconds, 130.0),
        (four, "float32", gigabytes, 8.0),
    ):
        ours, what = {**step, "case": case, "dtype": dtype}, f"{case} step, {dtype}: {what}"
        limit: Any = {"at_most": at_most, "quantity": quantity, "unit": unit}
        yield Target(what, "attention", "gpu", ours, **limit)


def _training() -> Iterator[Target]:
    step = {**_OURS, "pass": "step"}
    ours = {**step, "case": plan.BIG_SHAPE}
    for what, impls, at_least in (
        ("the best of all others", plan.STEP_REFERENCES, 1.3),
        ("PyG's best path", (plan.PYG_ADJ,), 2.0),
        ("plain JAX", (plan.SORTED,), 2.7),
    ):
        yield Target(f"GraphSAGE step: {what}", "training", "gpu", ours, {"impl": impls}, at_least)
    limit: Any = {"at_most": 7.5, "quantity": "peak_bytes", "unit": 1e9}
    yield Target("GraphSAGE step: peak memory in GB", "training", "gpu", ours, **limit)
    at = ("training-maxk", "gpu")
    bounds = {"float32": {32: 2.2, 16: 3.0}, "bfloat16": {32: 1.35, 16: 1.9}}
    for model, dtype, k in itertools.product(("sage", "gcn", "gin"), bounds, (32, 16)):
        ours = {**step, "case": f"{plan.BIG_SHAPE} {model}", "dtype": dtype, "k": k}
        what = f"{model}, MaxK {k}, {dtype}: our ReLU model"
        over = {"impl": plan.DENSE_STEPS, **_DENSE}
        yield Target(what, *at, ours, over, bounds[dtype][k])
    for k, at_least in ((32, 5.0), (16, 7.0)):
        ours, over = {**step, "case": f"{plan.BIG_SHAPE} sage", "k": k}, {"impl": (plan.PYG_ADJ,)}
        yield Target(f"sage, MaxK {k}, float32: PyG", *at, ours, {**over, **_DENSE}, at_least)


def _scale() -> Iterator[Target]:
    """Predicted speed-ups over one device, and what a device does and sends."""
    dense = {"features": (1.85, 3.5, 6.3), "rows": (1.8, 3.2, 5.3)}
    steps = [(None, dtype, layout) for dtype in plan.HALF_TOO for layout in dense]
    for k, dtype, layout in [*steps, (32, "float32", "rows")]:
        needed = dense[layout] if k is None else (1.8, 3.2, 5.2)
        for count, times in zip((2, 4, 8), needed, strict=True):
            ours = {**_OURS, "case": plan.BIG_SHAPE, "pass": "step", "dtype": dtype, "k": k}
            ours |= {"layout": layout, "devices": count}
            what = f"{layout} on {count}, {dtype}{f', MaxK {k}' if k else ''}"
            at = ("scale", "gpu", ours)
            least = times if dtype == "float32" else round(0.9 * times, 3)
            yield Target(f"{what}: speed-up", *at, at_least=least, quantity="speed_up")
            most = 1.1 if k is None else 1.15
            text = f"{what}: slowest part by an even one"
            yield Target(text, *at, at_most=most, quantity="share_of_even")
            yield Target(f"{what}: padding", *at, at_most=1.2, quantity="padding")
            text = f"{what}: jaxgnn plan by the prediction"
            yield Target(text, *at, at_most=1.2, quantity="planned_by_predicted")
            yield Target(text, *at, at_least=0.8, quantity="planned_by_predicted")
            text = f"{what}: packing by the part"
            yield Target(text, *at, at_most=0.1, quantity="packing_share")
            text = f"{what}: the prediction by what several GPUs take"
            yield Target(text, *at, at_least=0.85, quantity="predicted_by_measured")
            if k is not None:
                text = f"{what}: bytes by dense rows"
                yield Target(text, *at, at_most=0.15, quantity="dense_share")


def table() -> list[Target]:
    """All targets."""
    build = {**_OURS, "case": "rmat20m", "dtype": "int32", "pass": "build"}
    what = "building 20 M edges: peak memory over the result's"
    graph = Target(what, "graph", None, build, at_most=3.0, quantity="memory_ratio")
    sampling = [*_sampling(), *_neighbors(), *_embedding()]
    return [
        *_spmm(),
        *_tensor_core(),
        *_maxk(),
        *sampling,
        *_attention(),
        *_training(),
        *_scale(),
        graph,
    ]


def evaluate(
    rows: Sequence[Row], suite: str, device: str | None, scale: float | None = 1.0
) -> list[dict[str, Any]]:
    """Each target of a suite and device with its value and `met`, `missed` or `not measured`.

    Graphs of another size than the targets speak of (`scale`) measure none of them.
    """
    return [
        _evaluate(target, rows if scale == 1 else [])
        for target in table()
        if target.suite == suite and target.device in (device, None)
    ]


def _evaluate(target: Target, rows: Sequence[Row]) -> dict[str, Any]:
    bounds = {"at_least": target.at_least, "at_most": target.at_most}
    result = {"target": target.what, **bounds}
    if target.published_ms is not None:
        result["published_ms"] = target.published_ms
    if not target.cases:
        best = fastest(rows, target.ours)
        result |= {"impl": best and best["impl"], "ms": best and best["ms"]}
    ours = [{**target.ours, "case": case} for case in target.cases] or [target.ours]
    values = [_value(target, one, rows) for one in ours]
    known = [value for value in values if value is not None]
    lower, upper = target.at_least, target.at_most

    def meets(value: float) -> bool:
        return value <= upper if lower is None else value >= lower  # type: ignore[operator]

    # One that misses decides about the worst, whatever the others are.
    if len(known) < len(values) and (not target.worst or all(map(meets, known))):
        return {**result, "value": None, "status": "not measured"}
    if target.worst:
        value = min(known) if upper is None else max(known)
    else:
        value = statistics.geometric_mean(known) if target.cases else known[0]
    met = meets(value)
    return {**result, "value": round(value, 3), "status": "met" if met else "missed"}


def _value(target: Target, ours: Spec, rows: Sequence[Row]) -> Any:
    """The quantity of ours in its unit, or its ratio; `None` where there is no row or figure."""
    specs = (ours,) if target.over is None else (ours, {**ours, **target.over})
    found = [(fastest(rows, spec) or {}).get(target.quantity) for spec in specs]
    if None in found:
        return None
    return found[0] / target.unit if target.over is None else found[1] / found[0]
