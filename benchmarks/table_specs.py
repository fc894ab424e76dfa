"""What the pages' tables and figures show: see `benchmarks.tables`."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.harness import plan
from benchmarks.harness.rows import Spec


class Table(NamedTuple):
    """The head of the first column, rows and columns by their heads, and what all cells share."""

    corner: str
    rows: dict[str, Spec]
    columns: dict[str, Spec]
    base: Spec


OURS = ("jaxgnn", "jaxgnn row *")  # rows in their original order, or by a row schedule
SCHEDULED = "jaxgnn row *"
CUSPARSE = "cuSPARSE*"
PLAIN = "jax segment ops sorted*"
MAXK = (plan.MAXK, plan.MAXK_WINDOWS)
MODELS = ("GAT", "GATv2", "AGNN", "MoNet", "EdgeConv")
SHAPES = ("reddit", "proteins", "products", "arxiv", "amazon0601", "artist", "dd")
BF16 = {"dtype": "bfloat16"}
BACKWARD = {"pass": "backward"}


def _cases(*names: str) -> dict[str, Spec]:
    return {name: {"case": name} for name in names}


def _dtypes(rows: dict[str, Spec]) -> dict[str, Spec]:
    """Each row in float32, and beside it in bfloat16."""
    names = {"": {}, ", bfloat16": BF16}
    return {row + name: {**rows[row], **names[name]} for row in rows for name in names}


def _ks(*ks: int, **fields: Any) -> dict[str, Spec]:
    return {f"k = {k}": {"k": k, **fields} for k in ks}


def _cpu_spmm(direction: Spec) -> Table:
    machines = {"EPYC": {"file": "amd-epyc-2-*spmm*"}, "Xeon": {"file": "intel-*-spmm"}}
    return Table(
        "R-MAT",
        {
            f"F = {width}, {machine}": {**spec, "width": width}
            for machine, spec in machines.items()
            for width in (64, 256)
        },
        {
            "jaxgnn, ms": {},
            "`torch.sparse` (MKL), ms": {"impl": "torch.sparse*"},
            "times as fast": {"over": {"impl": "torch.sparse*"}},
            "plain JAX, ms": {"impl": "jax segment_sum sorted"},
            "times as fast ": {"over": {"impl": "jax segment_sum sorted"}},
        },
        {"case": "rmat", "impl": "jaxgnn", **direction},
    )


_STEPS = {"file": "nvidia-h200-attention-steps*", "impl": "jaxgnn", "pass": "step"}
_MAXK_STEPS = {"file": "nvidia-h200-training-maxk-*", "impl": "jaxgnn", "pass": "step"}
_RELU = {"k": None, "impl": plan.DENSE_STEPS}  # the faster of rows and tiles
_ABLATION = {"file": "nvidia-h200-attention-ablation*", "pass": "step"}
_BYTES = {"file": "nvidia-h200-attention-bytes*", "pass": "step traffic"}
_PUBLISHED = {
    name: {"case": f"reddit {model}"}
    for name, model in (("GraphSAGE", "sage"), ("GCN", "gcn"), ("GIN", "gin"))
}
_DENSE = {"impl": CUSPARSE, "k": None}
_GATHERED = {"impl": plan.MAXK_DETERMINISTIC}
_FIXED_POINT = {"impl": plan.MAXK_WINDOWS_DETERMINISTIC}
_STAGES = {
    "as written": {"impl": plan.WRITTEN},
    "reorganized": {"impl": plan.REORGANIZED},
    "fused, edge values stored": {"impl": plan.STORED},
    "fused, recomputed": {"impl": plan.RECOMPUTED},
}


_ABLATED = ("GAT", "EdgeConv", "MoNet")
_TOO_LARGE = {  # of graph, model and stage
    *(("reddit", model, "as written") for model in _ABLATED),
    ("reddit", "MoNet", "reorganized"),
}


def _sampled(name: str, **fields: Any) -> dict[str, Spec]:
    own = {"impl": plan.SAMPLED + name, **fields}
    whole = {"impl": CUSPARSE, "S": None, "dtype": "float32", "pass": "forward"}
    label = f"`{name}`" + ("".join(f", {value}" for value in fields.values()))
    return {f"{label}, ms": own, f"× whole, {label}": {**own, "over": whole}}


def _sampling_table(case: str, file: str) -> Table:
    return Table(
        "edges of a row",
        {f"S = {size}": {"S": size} for size in (16, 32, 64, 128, 256)},
        {
            **_sampled("stride"),
            **_sampled("stride", dtype="bfloat16"),
            **_sampled("bucket"),
            **_sampled("random"),
            "`spmm` of the sample, ms": {"impl": plan.PRESAMPLED},
            **_sampled("stride", **{"pass": "backward"}),
        },
        {"file": file, "case": case},
    )


_DRAWN = {"file": "nvidia-h200-sampling-neighbors*", "case": "products", "pass": "sample"}
_DRAWN |= {"dtype": "int32"}
_FLOYD = {"impl": (plan.FLOYD, plan.FLOYD_RBG)}
_EMBEDDED = {"file": "nvidia-h200-sampling-embedding*", "impl": "jaxgnn", "pass": "batch"}
_EPOCH = {"pass": "epoch"}


def _edges_per_second(seeds: int) -> dict[str, Spec]:
    own, rate = {"seeds": seeds}, {"key": "giga_edges_per_second"}
    return {
        f"{seeds:,} seeds: ms": own,
        f"G edges/s{' ' * (seeds > 1024)}": {**own, **rate},
        f"× Floyd in JAX{' ' * (seeds > 1024)}": {**own, "over": _FLOYD},
    }


# Of a step over several devices, each part's share timed by itself.
_SHARES: dict[str, Spec] = {
    "slowest part, ms": {},
    "by an even one": {"key": "share_of_even"},
    "packing, %": {"key": "packing_share"},
    "exchange, GB": {"key": "exchange_bytes"},
    "padding": {"key": "padding"},
    "predicted, ms": {"key": "predicted_ms"},
    "× one device": {"key": "speed_up"},
    "`plan`, ms": {"key": "planned_ms"},
    "measured, ms": {"key": "measured_ms"},
}

TABLES = {
    # docs/kernels/sampling.md
    "sampled-share": Table(
        "edges of a row",
        {f"S = {size}": {"S": size} for size in (16, 32, 64, 128, 256, 512)},
        {
            f"{name}, %": {"case": case, "key": key}
            for case, of_paper in (("reddit", "Reddit"), ("proteins", "ogbn-proteins"))
            for name, key in (
                (f"`{case}`", "edge_share"),
                (f"{of_paper}, published", "published_share"),
            )
        },
        {"file": "amd-epyc-sampled-share", "impl": "jaxgnn", "dtype": "int32", "pass": "share"},
    ),
    "neighbors": Table(
        "products, [15, 10, 5]",
        {
            f"{places}{variant}": {"impl": f"jaxgnn {places}{variant}"}
            for places in ("tree", "deduplicated")
            for variant in plan.VARIANTS
        },
        {**_edges_per_second(1024), **_edges_per_second(65_536)},
        _DRAWN,
    ),
    "neighbors-cpu": Table(
        "products × 0.1, [15, 10, 5], 1,024 seeds",
        {
            "jaxgnn, deduplicated": {"impl": plan.DEDUPLICATED},
            "PyG 2.8, torch-sparse 0.6.18": {"impl": plan.PYG_LOADER},
            "DGL 2.1": {"impl": plan.DGL_SAMPLER},
        },
        {
            "edges of each hop": {"key": "edges_of_hops"},
            "nodes that each hop adds": {"key": "nodes_of_hops"},
            "p of equal inclusion": {"key": "inclusion_p"},
        },
        {**_DRAWN, "file": "amd-epyc-2-threads-sampling-neighbors"},
    ),
    "embedding-cpu": Table(
        "children and leaves",
        {"pokec, C = 10": {"children": 10}},
        {
            "65,536 sources, ms": {},
            "plain JAX, ms": {"impl": plan.GATHERED},
            "× plain JAX": {"over": {"impl": plan.GATHERED}},
            "all nodes, s": {**_EPOCH, "key": "seconds"},
        },
        {**_EMBEDDED, "file": "amd-epyc-2-threads-sampling-embedding", "case": "pokec"},
    ),
    "embedding": Table(
        "children and leaves",
        {
            f"{case}, C = {children}": {"case": case, "children": children}
            for case, sizes in (("pokec", (10, 25, 100)), ("europe_osm", (10,)))
            for children in sizes
        },
        {
            "65,536 sources, ms": {},
            "`spmm` of the leaves, ms": {"impl": plan.LEAVES},
            "plain JAX, ms": {"impl": plan.GATHERED},
            "all nodes, ms": _EPOCH,
            "all nodes, bfloat16, ms": {**_EPOCH, **BF16},
        },
        _EMBEDDED,
    ),
    "minibatch-step": Table(
        "3 layers of 256, [15, 10, 5], 1,024 seeds",
        {
            "jaxgnn": {"impl": plan.OURS},
            "plain JAX, `segment_sum`": {"impl": plan.BATCH_SEGMENTS},
            "plain JAX, children as an axis": {"impl": plan.BATCH_ROWS},
            "PyG on ready batches": {"impl": plan.PYG_READY},
            "PyG on ready batches, trimmed": {"impl": plan.PYG_TRIMMED},
        },
        {"ms a step": {}, "GB": {"key": "peak_bytes"}},
        {"file": "nvidia-h200-sampling-steps*", "case": "products", "pass": "step"},
    ),
    # docs/performance.md and docs/kernels/tiles.md
    "tensor-core": Table(
        "F = 256",
        _dtypes(_cases("reddit", "proteins")),
        {
            "tiles, ms": {},
            "backward": BACKWARD,
            "rows, ms": {"impl": plan.ORDERED},
            "× rows": {"over": {"impl": plan.ORDERED}},
            "best cuSPARSE, ms": {"impl": CUSPARSE},
            "× cuSPARSE": {"over": {"impl": CUSPARSE}},
        },
        {"file": "nvidia-h200-tensor-core*", "impl": plan.TILES, "pass": "forward"},
    ),
    "tcgnn-sets": Table(
        "float32, and bfloat16 beside float32's best cuSPARSE",
        _cases(*plan.TCGNN_SHAPES),
        {
            f"F = {width}, {name}": {"width": width, **spec}
            for width in (16, 64, 256)
            for name, spec in (
                ("ms", {}),
                ("× cuSPARSE", {"over": {"impl": CUSPARSE, "dtype": "float32"}}),
                ("bfloat16, ms", BF16),
            )
        },
        {"file": "nvidia-h200-tcgnn-sets", "impl": plan.ESTIMATED, "pass": "forward"},
    ),
    "tcgnn-steps": Table(
        "full-batch step, float32",
        {name: {"graph": name} for name in plan.TCGNN_SETS},
        {
            head: {**spec, "model": model}
            for model, space in (("gcn", ""), ("agnn", " "))
            for head, spec in (
                (f"{model.upper()}, ms", {}),
                (f"× PyG{space}", {"over": {"impl": "PyG*"}}),
            )
        },
        {"file": "nvidia-*-tcgnn-steps*", "impl": plan.ESTIMATED, "pass": "step"},
    ),
    # docs/kernels/sampling.md
    "sampling": _sampling_table("reddit", "nvidia-h200-sampling"),
    "sampling-proteins": _sampling_table("proteins", "nvidia-h200-sampling-proteins"),
    # docs/distributed.md
    "scale": Table(
        "4-layer GraphSAGE, Reddit's size",
        {
            f"{layout} on {count}{name}": {"layout": layout, "devices": count, **step}
            for name, step, layouts, counts in (
                ("", {}, ("features", "rows"), (2, 4, 8)),
                (", bfloat16", {"dtype": "bfloat16"}, ("rows",), (2, 4, 8)),
                (", bfloat16", {"dtype": "bfloat16"}, ("features",), (8,)),
                (", tiles", {"impl": plan.ESTIMATED}, ("features",), (2, 4, 8)),
                (
                    ", tiles, bfloat16",
                    {"impl": plan.ESTIMATED, "dtype": "bfloat16"},
                    ("features",),
                    (8,),
                ),
            )
            for layout in layouts
            for count in counts
        },
        _SHARES,
        {"file": "nvidia-h200-scale*", "case": "reddit", "impl": "jaxgnn", "pass": "step"},
    ),
    "scale-maxk": Table(
        "4-layer GraphSAGE, Reddit's size, MaxK 32",
        {f"rows on {count}": {"layout": "rows", "devices": count} for count in (2, 4, 8)},
        _SHARES,
        {"file": "nvidia-h200-scale-maxk", "impl": "jaxgnn", "pass": "step", "k": 32},
    ),
    # docs/performance.md
    "training": Table(
        "4-layer GraphSAGE, full batch",
        {
            "jaxgnn, over tiles": {"impl": plan.ESTIMATED},
            "jaxgnn, by rows": {"impl": "jaxgnn"},
            "cuSPARSE on A and its transpose, by hand": {"impl": "cuSPARSE*"},
            "PyG 2.8, `torch.sparse` adjacency": {"impl": "PyG*"},
            "plain JAX, the backward pass a sorted `segment_sum` too, by hand": {
                "impl": plan.TRANSPOSED + "*"
            },
            "plain JAX, gather + sorted `segment_sum`": {
                "impl": (plan.SORTED, plan.SORTED + plan.FTZ)
            },
        },
        {"ms": {}, "bfloat16, ms": {"dtype": "bfloat16"}, "peak memory, GB": {"key": "peak_bytes"}},
        {"file": "nvidia-h200-training*", "case": "reddit", "pass": "step"},
    ),
    "training-maxk": Table(
        "model",
        _dtypes(_PUBLISHED),
        {
            "ReLU by rows, ms": {},
            "over tiles, ms": {"impl": plan.ESTIMATED},
            "MaxK 32, ms": {"k": 32},
            "times as fast": {"k": 32, "over": _RELU},
            "MaxK 16, ms": {"k": 16},
            "times as fast ": {"k": 16, "over": _RELU},
        },
        {**_MAXK_STEPS, "file": "nvidia-h200-training-maxk-tiles-*"},
    ),
    "attention-steps": Table(
        "model",
        {model: {"model": model.lower()} for model in MODELS},
        {
            head: {**spec, "graph": shape}
            for shape in ("arxiv", "amazon0601", "artist")
            for head, spec in (
                (f"{shape}, ms", {}),
                (f"× PyG{' ' * len(shape)}", {"over": {"impl": "PyG*"}}),
                (f"× JAX{' ' * len(shape)}", {"over": {"impl": PLAIN}}),
            )
        },
        _STEPS,
    ),
    "spmm": Table(
        "graph",
        {
            **_cases(*SHAPES),
            "reddit, bfloat16": {"case": "reddit", **BF16},
            **_dtypes({"reddit, weighted": {"case": "reddit weighted"}}),
        },
        {
            "nodes": {"key": "graph.nodes"},
            "mean degree": {"key": "graph.mean_degree"},
            "original order, ms": {"impl": "jaxgnn"},
            "row schedule, ms": {"impl": SCHEDULED},
            "cuSPARSE's best, ms": {"impl": CUSPARSE},
            "times as fast": {"impl": OURS, "over": {"impl": CUSPARSE}},
        },
        {"file": "nvidia-h200-spmm*", "impl": "jaxgnn"},
    ),
    "maxk-shapes": Table(
        "forward",
        _cases(*SHAPES),
        {
            "dense, ms": {"impl": (*OURS, CUSPARSE), "k": None},
            **_ks(8, 16, 32, 64, 96, 128, over={"impl": (*OURS, CUSPARSE), "k": None}),
        },
        {"file": "nvidia-h200-maxk-sweep*", "impl": MAXK},
    ),
    "cpu-spmm": _cpu_spmm({}),
    "maxk-weights": Table(
        "reddit",
        {
            "forward, weighted edges": {"case": "reddit weighted"},
            "backward, weighted edges": {"case": "reddit weighted", **BACKWARD},
        },
        _ks(
            32,
            16,
            8,
            over={
                "impl": (*OURS, CUSPARSE),
                "case": "reddit",
                "k": None,
                "pass": "forward",
                "file": "nvidia-h200-maxk-sweep*",
            },
        ),
        {"file": "nvidia-h200-maxk-weighted", "impl": plan.MAXK_WINDOWS},
    ),
    "cpu-steps": Table(
        "model",
        {model: {"case": f"rmat-dense {model.lower()}"} for model in MODELS},
        {
            "jaxgnn, s": {"key": "seconds"},
            "GB": {"key": "peak_bytes"},
            "plain JAX, s": {"impl": PLAIN, "key": "seconds"},
            "GB ": {"impl": PLAIN, "key": "peak_bytes"},
            "times as fast": {"over": {"impl": PLAIN}},
        },
        {"file": "amd-epyc-2-threads-attention-steps*", "impl": "jaxgnn", "pass": "step"},
    ),
    # docs/kernels/aggregation.md
    "maximum": Table(
        "F = 256",
        _dtypes(_cases("reddit", "arxiv", "amazon0601")),
        {
            "sum, ms": {"impl": "jaxgnn", "file": "nvidia-h200-spmm*"},
            "maximum, ms": {},
            "with its gradient, ms": BACKWARD,
            "plain JAX: maximum, ms": {"impl": "jax segment_max*"},
            "with its gradient, ms ": {**BACKWARD, "impl": "jax segment_max*"},
        },
        {"file": "nvidia-h200-spmm-max", "impl": "jaxgnn max"},
    ),
    "cpu-spmm-gradient": _cpu_spmm(BACKWARD),
    # docs/kernels/maxk.md
    "maxk": Table(
        "",
        _ks(8, 16, 32, 64),
        {
            "forward, ms": {},
            "over cuSPARSE": {"over": _DENSE},
            "backward, ms": BACKWARD,
            "over cuSPARSE ": {**BACKWARD, "over": {**_DENSE, "pass": "forward"}},
            "bfloat16, ms": BF16,
            "over cuSPARSE in bfloat16": {**BF16, "over": {**_DENSE, "file": "nvidia-h200-spmm*"}},
        },
        {"file": "nvidia-h200-maxk", "case": "reddit", "impl": plan.MAXK_WINDOWS},
    ),
    "maxk-kernels": Table(
        "ms",
        {
            "forward, windows, packed float32": {"impl": plan.MAXK_PACKED},
            "forward, rows": {"impl": plan.MAXK},
            "forward in floating point alone": {"impl": plan.MAXK_FLOAT},
            "backward, reductions without windows": {"impl": plan.MAXK, **BACKWARD},
            "deterministic, windows (64-bit fixed point)": {**_FIXED_POINT, **BACKWARD},
            "deterministic, gathered": {**_GATHERED, **BACKWARD},
            "the same, bfloat16": {**_GATHERED, **BACKWARD, **BF16},
            "selection": {"impl": plan.MAXK, "pass": "select"},
        },
        _ks(32, 16, 8, 64),
        {"file": "nvidia-h200-maxk", "case": "reddit"},
    ),
    "maxk-wide": Table(
        "columns, k",
        {
            f"{width:,}, {k}": {"width": width, "k": k}
            for width, k in ((256, 32), (512, 32), (512, 64), (1024, 32), (1024, 128))
        },
        {
            "forward, ms": {},
            "entries a second, by 256 columns": {"key": "ratio"},
            "packed, ms": {"impl": plan.MAXK_PACKED},
            "backward, ms": BACKWARD,
            "entries a second, by 256 columns ": {**BACKWARD, "key": "ratio"},
        },
        {"file": "nvidia-h200-maxk-wide", "case": "reddit", "impl": plan.MAXK_WINDOWS},
    ),
    "maxk-traffic": Table(
        "kernel",
        {
            "dense SpMM": {"impl": "jaxgnn"},
            "dense SpMM, bfloat16": {"impl": "jaxgnn", **BF16},
            **{
                f"forward{dtype}, k = {k}: {rows}": {"impl": impl, "k": k, **spec}
                for dtype, k, spec in (("", 32, {}), ("", 8, {}), (", bfloat16", 32, BF16))
                for rows, impl in zip(("rows", "windows"), MAXK, strict=True)
            },
            "backward, k = 32: reductions": {"impl": MAXK[0], "k": 32, **BACKWARD},
            "backward, k = 32: windows": {"impl": MAXK[1], "k": 32, **BACKWARD},
            "deterministic, k = 32: gathered": {**_GATHERED, "k": 32, **BACKWARD},
            "deterministic, k = 32: windows": {**_FIXED_POINT, "k": 32, **BACKWARD},
            "selection, k = 32": {"impl": MAXK[0], "k": 32, "pass": "select"},
        },
        {
            "ms": {},
            "L2, GB": {"key": "l2_bytes"},
            "HBM, GB": {"key": "hbm_bytes"},
            "L1 hits, %": {"key": "l1_hit_percent"},
            "L2 hits, %": {"key": "l2_hit_percent"},
        },
        {"file": "nvidia-h200-traffic", "case": "reddit"},
    ),
    "maxk-any-k": Table(
        "over windows, ms",
        {
            "reddit, forward": {"case": "reddit"},
            "reddit, backward": {"case": "reddit", **BACKWARD},
            "arxiv, forward": {"case": "arxiv"},
        },
        _ks(2, 3, 5, 6, 10, 15, 30, 50, 99),
        {"file": "nvidia-h200-maxk-any-k", "impl": plan.MAXK_WINDOWS},
    ),
    "maxk-weighted": Table(
        "ms",
        {
            f"{name}, {how}": {"case": case, "impl": impl, **way}
            for name, way in (("forward", {}), ("backward", BACKWARD))
            for how, case, impl in (
                ("windows", "reddit", MAXK[1]),
                ("windows, weighted", "reddit weighted", MAXK[1]),
                ("rows", "reddit", MAXK[0]),
                ("rows, weighted", "reddit weighted", MAXK[0]),
            )
        },
        _ks(32, 16, 8),
        {"file": "nvidia-h200-maxk-weighted"},
    ),
    "maxk-shapes-backward": Table(
        "backward",
        _cases(*SHAPES),
        {
            "dense, ms": {"impl": OURS, "k": None},
            **_ks(8, 16, 32, 64, 96, 128, over={"impl": OURS, "k": None}),
        },
        {"file": "nvidia-h200-maxk-sweep*", "impl": MAXK, **BACKWARD},
    ),
    "training-shares": Table(
        "aggregation's share of a step, %",
        _PUBLISHED,
        {"ReLU": {"k": None}, "MaxK 32": {"k": 32}, "MaxK 16": {"k": 16}},
        {**_MAXK_STEPS, "key": "aggregation_share"},
    ),
    # docs/kernels/attention.md
    "attention-kernels": Table(
        "4 heads of 64 features",
        _dtypes({"forward": {}, "backward": BACKWARD}),
        {
            "`spmm` of 256 features, ms": {"impl": "jaxgnn"},
            "`gat_attention`, ms": {},
            "its multiple of `spmm`": {"impl": "jaxgnn", "over": {"impl": "jaxgnn gat_attention"}},
        },
        {"file": "nvidia-h200-attention-kernels", "case": "reddit", "impl": "jaxgnn gat_attention"},
    ),
    "attention-baselines": Table(
        "model, graph",
        {
            f"{model}, {shape}": {"graph": shape, "model": model.lower()}
            for model in MODELS
            for shape in ("arxiv", "amazon0601", "artist")
        },
        {
            "jaxgnn, GB": {"key": "peak_bytes"},
            "plain JAX, ms": {"impl": PLAIN},
            "GB": {"impl": PLAIN, "key": "peak_bytes"},
            "PyG, ms": {"impl": "PyG*"},
            "GB ": {"impl": "PyG*", "key": "peak_bytes"},
        },
        _STEPS,
    ),
    "ablation": Table(
        "graph, model: stage",
        {
            f"{graph}, {model}: {stage}": {"case": f"{graph} {model.lower()} ablation", **spec}
            for graph in ("arxiv", "reddit")
            for model in _ABLATED
            for stage, spec in _STAGES.items()
            if (graph, model, stage) not in _TOO_LARGE
        },
        {
            "ms": _ABLATION,
            "peak memory, GB": {**_ABLATION, "key": "peak_bytes"},
            "through L2, GB": {**_BYTES, "key": "l2_bytes"},
            "through HBM, GB": {**_BYTES, "key": "hbm_bytes"},
        },
        {},
    ),
}

_STEP = {"file": "nvidia-h200-training*", "case": "reddit", "pass": "step", "impl": "jaxgnn"}
_TILED_STEP = {**_STEP, "impl": plan.ESTIMATED}
_BUILD = {"file": "*-graph", "case": "rmat20m", "dtype": "int32", "pass": "build", "impl": "jaxgnn"}
_CPU_MAXK = {"file": "amd-epyc-2-threads-maxk", "case": "rmat", "impl": plan.MAXK, "k": 32}
_GPU_MAXK = {"file": "nvidia-h200-maxk", "case": "reddit", "impl": plan.MAXK_WINDOWS, "k": 32}
_OTHERS = {"impl": ("PyG*", "jax *", "torch*", "cuSPARSE*")}
_SAGE = {"file": "nvidia-h200-training-maxk-tiles-*", "case": "reddit sage", "pass": "step"}
_GAT = {"file": "nvidia-h200-attention-memory*", "impl": "jaxgnn", "pass": "step"}
_REDDIT = {"file": "nvidia-h200-spmm", "case": "reddit"}

FIGURES = {
    "step-date": {**_TILED_STEP, "key": "date"},
    "step-best": {**_TILED_STEP, "over": _OTHERS},
    "step-best-name": {**_TILED_STEP, **_OTHERS, "key": "impl"},
    "step-rows": {**_STEP, "over": _OTHERS},
    "step-pyg": {**_TILED_STEP, "over": {"impl": "PyG*"}},
    "step-pyg-memory": {**_TILED_STEP, "key": "peak_bytes", "over": {"impl": "PyG*"}},
    "sage-date": {**_SAGE, "impl": "jaxgnn", "k": 32, "key": "date"},
    "sage-maxk": {**_SAGE, "impl": "jaxgnn", "k": 32, "over": _RELU},
    "sage-bfloat16-date": {**_SAGE, **BF16, "impl": "jaxgnn", "k": 32, "key": "date"},
    "sage-maxk-bfloat16": {**_SAGE, **BF16, "impl": "jaxgnn", "k": 32, "over": _RELU},
    "sage-cusparse-ms": {**_SAGE, "impl": "cuSPARSE*"},
    "sage-pyg-ms": {**_SAGE, "file": "nvidia-h200-training-maxk-sage", "impl": "PyG*"},
    "gat-memory": {**_STEPS, "case": "arxiv gat", "key": "peak_bytes"},
    "gat-pyg-memory": {**_STEPS, "case": "arxiv gat", "impl": "PyG*", "key": "peak_bytes"},
    "gat4-ms": {**_GAT, "case": "reddit gat 4 layers"},
    "gat4-memory": {**_GAT, "case": "reddit gat 4 layers", "key": "peak_bytes"},
    "spmm-jax-ms": {**_REDDIT, "impl": "jax segment_sum sorted"},
    "spmm-jax-gradient-ms": {**_REDDIT, "impl": "jax segment_sum sorted", **BACKWARD},
    "spmm-jax-unsorted-ms": {**_REDDIT, "impl": "jax segment_sum unsorted"},
    "row-schedule-seconds": {**_STEP, "key": "preprocessing_seconds"},
    "tiles-seconds": {
        **{"file": "nvidia-h200-tensor-core", "impl": plan.TILES, "case": "reddit"},
        **{"width": 256, "dtype": "float32", "pass": "forward", "key": "preprocessing_seconds"},
    },
    "windows-seconds": {**_GPU_MAXK, "key": "preprocessing_seconds"},
    "build-seconds": {**_BUILD, "key": "seconds"},
    "build-scipy": {**_BUILD, "over": {"impl": "SciPy*"}},
    "build-memory": {**_BUILD, "key": "memory_ratio"},
    "cpu-maxk-ms": _CPU_MAXK,
    "cpu-maxk-dense": {**_CPU_MAXK, "over": {"impl": "jaxgnn", "k": None}},
}
