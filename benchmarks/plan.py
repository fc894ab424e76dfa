"""Implementations by name, and which of them the suite `spmm` runs on what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

Pass = Literal["forward", "backward", "select"]

OURS = "jaxgnn"
ORDERED = "jaxgnn row order"
SORTED = "jax segment_sum sorted"
UNSORTED = "jax segment_sum unsorted"
SHUFFLED = "jax segment_sum shuffled"
BCSR = "jax BCSR"
BCOO = "jax BCOO"
TORCH = "torch.sparse CSR"
CUSPARSE = tuple(f"cuSPARSE {name}" for name in ("default", "csr_alg1", "csr_alg2", "csr_alg3"))
PYG_EDGE_INDEX = "PyG EdgeIndex"
PYG_ADJ = "PyG adj_t"
PYG_SCATTER = "PyG gather + scatter"
SCIPY = "SciPy CSR"
MAX = "jaxgnn max"  # the maximum over neighbours; backward both passes
MAX_SORTED = "jax segment_max sorted"
FTZ = " (ftz atomics)"
MAXK = "jaxgnn maxk"
MAXK_WINDOWS = "jaxgnn maxk windows"
MAXK_DETERMINISTIC = "jaxgnn maxk deterministic"
MAXK_WINDOWS_DETERMINISTIC = "jaxgnn maxk windows deterministic"
MAXK_FLOAT = "jaxgnn maxk float"
MAXK_PACKED = "jaxgnn maxk windows packed"
MAXK_DROPOUT = "jaxgnn maxk dropout"  # in the selection
MAXK_BERNOULLI = "jaxgnn maxk after bernoulli"  # jax.random's dropout, then the selection
MAXK_PHILOX = "jaxgnn maxk after philox"  # the mask of the first in JAX, then the selection
TOP_K = "jax top_k"
COPY = "copy of the input"
GAT = "jaxgnn gat_attention"
# Of a training step: the model by operations on edges, and the same with its products on nodes.
PLAIN = "jax segment ops sorted"
PLAIN_NODES = "jax segment ops sorted, products on nodes"
PLAIN_EDGES = "jax segment ops sorted, products on edges"
STORED = "jaxgnn, values of edges stored"  # composed of kernels, in place of the fused operation
PYG_EDGES = "PyG edge_index"

# The worker process that runs each: two frameworks never share one, nor its memory.
FAMILY = {
    **dict.fromkeys((OURS, ORDERED, SORTED, UNSORTED, SHUFFLED, BCSR, BCOO), "jax"),
    **dict.fromkeys((MAX, MAX_SORTED), "jax"),
    **dict.fromkeys((MAXK, MAXK_WINDOWS, MAXK_PACKED, MAXK_FLOAT, TOP_K, COPY), "jax"),
    **dict.fromkeys((MAXK_DETERMINISTIC, MAXK_WINDOWS_DETERMINISTIC, GAT), "jax"),
    **dict.fromkeys((MAXK_DROPOUT, MAXK_BERNOULLI, MAXK_PHILOX), "jax"),
    **dict.fromkeys((TORCH, *CUSPARSE, PYG_EDGE_INDEX, PYG_ADJ, PYG_SCATTER), "torch"),
    **dict.fromkeys((SORTED + FTZ, UNSORTED + FTZ), "jax_ftz"),
    SCIPY: "scipy",
}

BIG_SHAPE = "reddit"
OTHER_SHAPES = ("arxiv", "amazon0601", "artist", "dd", "products", "proteins")
BOTH: tuple[Pass, ...] = ("forward", "backward")
FORWARD: tuple[Pass, ...] = ("forward",)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One product to time; with `k`, of rows that keep so many entries."""

    case: str
    impl: str
    width: int
    dtype: str
    direction: Pass
    weighted: bool = False
    k: int | None = None

    @property
    def family(self) -> str:
        return FAMILY[self.impl]

    def __str__(self) -> str:
        weighted = " weighted" if self.weighted else ""
        k = "" if self.k is None else f" k={self.k}"
        return f"{self.case}{weighted} F={self.width}{k} {self.dtype} {self.direction} {self.impl}"


@dataclasses.dataclass(frozen=True)
class Block:
    """A rectangle of measurements."""

    cases: tuple[str, ...]
    impls: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32",)
    directions: tuple[Pass, ...] = BOTH
    weighted: bool = False


CPU = (
    Block(("rmat",), (OURS, SORTED, UNSORTED, TORCH, SCIPY, PYG_EDGE_INDEX, PYG_SCATTER)),
    Block(("rmat",), (SHUFFLED, BCSR, BCOO, PYG_ADJ), directions=FORWARD),
    Block(("rmat",), (OURS,), dtypes=("bfloat16", "float16")),
    Block(("rmat",), (OURS, TORCH), directions=FORWARD, weighted=True),
    Block(("rmat",), (MAX,)),
)

GPU = (
    Block((BIG_SHAPE,), (OURS, ORDERED, TORCH, *CUSPARSE), dtypes=("float32", "bfloat16")),
    Block((BIG_SHAPE,), (OURS, CUSPARSE[3]), dtypes=("float16",)),
    Block((BIG_SHAPE,), (SORTED, UNSORTED, PYG_EDGE_INDEX)),
    Block((BIG_SHAPE,), (SHUFFLED, BCSR, PYG_SCATTER), directions=FORWARD),
    Block(
        (BIG_SHAPE,),
        (OURS, ORDERED, *CUSPARSE[2:]),
        dtypes=("float32", "bfloat16"),
        directions=FORWARD,
        weighted=True,
    ),
    Block(
        OTHER_SHAPES,
        (OURS, ORDERED, *CUSPARSE),
        dtypes=("float32", "bfloat16"),
        directions=FORWARD,
    ),
    Block(OTHER_SHAPES, (OURS, ORDERED, *CUSPARSE[2:]), directions=("backward",)),
    Block((BIG_SHAPE, *OTHER_SHAPES[:2]), (MAX,), dtypes=("float32", "bfloat16")),
    Block(OTHER_SHAPES[:2], (MAX_SORTED,)),
    Block(OTHER_SHAPES, (SORTED,), directions=FORWARD),
)

FTZ_ATOMICS = (Block((BIG_SHAPE,), (SORTED + FTZ, UNSORTED + FTZ)),)

DTYPES = ("float32", "bfloat16", "float16")
WIDTHS = {"cpu": (64, 256), "gpu": (256,)}
MAXK_WIDTH = 256
ATTENTION_HEADS = 4
DROPOUT_RATE = 0.5  # in the suite maxk


def measurements(
    device: str,
    *,
    cases: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    ftz_atomics: bool = False,
) -> list[Measurement]:
    """The plan of a device, narrowed by the options, in the order in which it runs.

    Args:
        device: `"cpu"` or `"gpu"`.
        cases: graphs to keep; one that the plan does not name gets the plan of the others.
        widths: instead of the device's own.
        dtypes: dtypes to keep.
        only: implementations to keep, by part of their name.
        ftz_atomics: also JAX's baselines with LLVM's fast float atomics (see `docs/benchmarks.md`).
    """
    blocks = (CPU if device == "cpu" else GPU) + (FTZ_ATOMICS if ftz_atomics else ())

    def every() -> Iterator[Measurement]:
        for block in blocks:
            for case in _cases(block, blocks, cases):
                for width in widths or WIDTHS[device]:
                    for dtype in block.dtypes:
                        for direction in block.directions:
                            for impl in block.impls:
                                yield Measurement(
                                    case, impl, width, dtype, direction, block.weighted
                                )

    kept = dict.fromkeys(
        m
        for m in every()
        if (not dtypes or m.dtype in dtypes)
        and (not only or any(part.lower() in m.impl.lower() for part in only))
    )
    order = list(dict.fromkeys(m.case for m in kept))
    # A worker loads a graph once and the features once for what needs the same.
    return sorted(
        kept,
        key=lambda m: (
            order.index(m.case),
            m.width,
            m.direction == "backward",
            DTYPES.index(m.dtype),
        ),
    )


def _cases(block: Block, blocks: Sequence[Block], wanted: Sequence[str] | None) -> tuple[str, ...]:
    if not wanted:
        return block.cases
    known = {case for b in blocks for case in b.cases}
    unknown = tuple(case for case in wanted if case not in known)
    kept = tuple(case for case in block.cases if case in wanted)
    return kept + (unknown if block.cases[-1] == blocks[-1].cases[-1] else ())
