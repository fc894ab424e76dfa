"""Sampling: the pages sampling.md, minibatches.md and kernels/sampling.md."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import plan
from benchmarks.harness.rows import Spec
from benchmarks.table_specs.common import BF16, CUSPARSE, Table


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


TABLES = {
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
    "sampling": _sampling_table("reddit", "nvidia-h200-sampling"),
    "sampling-proteins": _sampling_table("proteins", "nvidia-h200-sampling-proteins"),
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
}
