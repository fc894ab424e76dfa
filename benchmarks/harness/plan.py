"""Implementations by name, and the operations to measure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

Pass = Literal["forward", "backward", "select", "build"]

OURS = "jaxgnn"
HOST_ROWS = "jaxgnn HostFeatures"
HOST_COPY = "jax copy of pinned memory"  # as many bytes, to the device
ORDERED = "jaxgnn row order"
TILES = "jaxgnn tiles"
ESTIMATED = "jaxgnn tiles or rows"  # of a graph with tiles, the faster by estimate
DENSE_STEPS = (OURS, ESTIMATED)  # ours without MaxK: by rows, and over a graph with tiles
SDDMM = "jaxgnn sddmm"  # dot products of the features with themselves, by rows
CUSPARSE_SDDMM = "cuSPARSE sddmm"
JAX_SDDMM = "jax sddmm"  # two gathers and a sum
SORTED = "jax segment_sum sorted"
TRANSPOSED = "jax segment_sum sorted, A^T by hand"  # of a step: the gradient is sorted, too
UNSORTED = "jax segment_sum unsorted"
BCOO = "jax BCOO"
TORCH = "torch.sparse CSR"
CUSPARSE = tuple(f"cuSPARSE {name}" for name in ("default", "csr_alg1", "csr_alg2", "csr_alg3"))
CUSPARSE_STEP = "cuSPARSE A and A^T by hand"  # torch's CSR product on the CPU
PYG_EDGE_INDEX = "PyG EdgeIndex"
PYG_ADJ = "PyG adj_t"
PYG_EDGES = "PyG edge_index"
SCIPY = "SciPy CSR"
SCIPY_BUILD = "SciPy tocsr + tocsc"
MAX = "jaxgnn max"  # the maximum over neighbours; backward both passes
MAX_SORTED = "jax segment_max sorted"
MAXK = "jaxgnn maxk"
MAXK_WINDOWS = "jaxgnn maxk windows"
MAXK_DENSE = "jaxgnn maxk dense"  # `spmm` of the dense rows
MAXK_CHOSEN = "jaxgnn maxk chosen"  # of these three, by estimate
MAXK_DETERMINISTIC = "jaxgnn maxk deterministic"
MAXK_WINDOWS_DETERMINISTIC = "jaxgnn maxk windows deterministic"
MAXK_FLOAT = "jaxgnn maxk float"
MAXK_PACKED = "jaxgnn maxk windows packed"
# The gradient for the weights, of either.
MAXK_OF_WEIGHTS = "jaxgnn maxk of the weights"
MAXK_WINDOWS_OF_WEIGHTS = "jaxgnn maxk windows of the weights"
MAXK_DROPOUT = "jaxgnn maxk dropout"  # in the selection
MAXK_BERNOULLI = "jaxgnn maxk after bernoulli"  # jax.random's dropout, then the selection
TOP_K = "jax top_k"
COPY = "copy of the input"
GAT = "jaxgnn gat_attention"
SAMPLED = "jaxgnn sampled "  # and the strategy
PRESAMPLED = "jaxgnn spmm of the sample"  # which was drawn beforehand
# Neighborhoods of seeds.
TREE = "jaxgnn tree"
DEDUPLICATED = "jaxgnn deduplicated"
VARIANTS = ("", ", replace", ", labor", ", weighted", ", weighted, replace")
FLOYD = "jax Floyd"
FLOYD_RBG = "jax Floyd rbg"  # jax.random's fastest generator
ALIAS = "jax alias tables, weighted, replace"  # built beforehand; the fastest generator
PYG_LOADER = "PyG NeighborLoader"
DGL_SAMPLER = "DGL NeighborSampler"
# Embeddings of two hops.
LEAVES = "jaxgnn spmm of the leaves"  # which were drawn beforehand
GATHERED = "jax gather and mean"
# Mini-batch steps.
BATCH_SEGMENTS = "jax Floyd, segment_sum"
BATCH_ROWS = "jax Floyd, rows"  # the tree's fixed number of children as an axis
PYG_READY = "PyG on ready batches"
PYG_TRIMMED = "PyG on ready batches, trimmed"  # a layer computes what the next ones read
PYG_STEP = "PyG NeighborLoader and step"
# Steps of edge models in plain JAX: heads flattened into the features, projections on the nodes.
PLAIN = "jax segment ops sorted"
PLAIN_FLAT = "jax segment ops sorted, flattened heads"
PLAIN_NODES = "jax segment ops sorted, products on nodes"
# Steps by the algebra, as the layers are written and with what a paper adds, one by one.
WRITTEN = "algebra, as written"  # projections on the edges, every value stored
REORGANIZED = "algebra, reorganized"  # projections on the nodes
UNFUSED = "algebra, reorganized, recomputed"  # no value of edges stored, none fused
STORED = "algebra, fused"  # kernels, the values of edges for backward stored
RECOMPUTED = "algebra, fused, recomputed"
STAGES = (WRITTEN, REORGANIZED, UNFUSED, STORED, RECOMPUTED)
# With XLA's fastest flags for scatters (`process.FTZ_ATOMICS`), in a process of its own.
FTZ = " (ftz atomics)"

BIG_SHAPE = "reddit"
OTHER_SHAPES = ("arxiv", "amazon0601", "artist", "dd", "products", "proteins")
# Sets of TC-GNN's Table 4, those of many small graphs and the rest, but for those above.
SMALL_GRAPHS = ("proteins_full", "ovcar_8h", "yeast", "dd", "yeast_h")
TCGNN_SHAPES = (
    *("citeseer", "cora", "pubmed", "ppi", "amazon0505", "com_amazon", "soc_blogcatalog"),
    *(shape for shape in SMALL_GRAPHS if shape not in OTHER_SHAPES),
)
TCGNN_SETS = (*TCGNN_SHAPES, "dd", "artist", "amazon0601")  # all of that table
# PyG's paths for the steps of TC-GNN's models: GCN's normalized adjacency or edges are cached.
TCGNN_PYG = {"gcn": (PYG_ADJ, PYG_EDGES), "agnn": (PYG_EDGES,)}
# Graphs of attention's steps.
STEP_SHAPES = ("arxiv", "amazon0601", "artist")
CPU_SHAPE = "rmat-dense"
# Attention's steps by their memory: what a case ends in, its widths and dtypes.
DEEP = {
    " 2 layers": ((602, 128, 41), ("float32",)),
    " 4 layers": ((602, 256, 256, 256, 41), ("float32", "bfloat16")),
}
# What a step of training is compared with. Plain JAX as its users write it, and its strongest: by
# hand, with XLA's fastest flags on a GPU.
STEP_REFERENCES = (
    *(CUSPARSE_STEP, PYG_ADJ),
    *(impl + flags for impl in (SORTED, TRANSPOSED) for flags in ("", FTZ)),
)
BOTH: tuple[Pass, ...] = ("forward", "backward")
FORWARD: tuple[Pass, ...] = ("forward",)
HALF_TOO = ("float32", "bfloat16")
DTYPES = (*HALF_TOO, "float16")
# Models whose messages belong to edges, and those whose attention has a self-loop for each node.
EDGE_MODELS = ("gat", "gatv2", "agnn", "edgeconv", "monet")
LOOPED_MODELS = ("gat", "gatv2", "agnn")
MAXK_WIDTH = 256
ATTENTION_HEADS = 4
DROPOUT_RATE = 0.5  # of a selection after dropout, and of the training steps


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One operation to time; with `k`, of rows that keep that many entries; with `sample`, over at
    most that many edges of each row."""

    case: str
    impl: str
    width: int
    dtype: str
    direction: Pass
    weighted: bool = False
    k: int | None = None
    sample: int | None = None

    @property
    def framework(self) -> str:
        """Whose worker process runs it: two frameworks share neither process nor memory."""
        library = self.impl.split()[0]
        if library in ("jax", "jaxgnn", "copy"):
            return "jax" + FTZ if self.impl.endswith(FTZ) else "jax"
        return "scipy" if library == "SciPy" else "torch"

    def __str__(self) -> str:
        weighted = " weighted" if self.weighted else ""
        k = "" if self.k is None else f" k={self.k}"
        k += "" if self.sample is None else f" S={self.sample}"
        return f"{self.case}{weighted} F={self.width}{k} {self.dtype} {self.direction} {self.impl}"


@dataclasses.dataclass(frozen=True)
class Block:
    """A rectangle of measurements."""

    cases: tuple[str, ...]
    impls: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32",)
    directions: tuple[Pass, ...] = BOTH
    weighted: bool = False

    def at(self, case: str, width: int) -> Iterator[Measurement]:
        every = itertools.product(self.dtypes, self.directions, self.impls)
        for dtype, direction, impl in every:
            yield Measurement(case, impl, width, dtype, direction, self.weighted)


def plain_steps(model: str, device: str | None) -> tuple[str, ...]:
    """A model of edges in plain JAX: as its users write it, and its strongest.

    Heads are flattened into the features, EdgeConv's projections are on the nodes, and on a GPU
    the fastest form also has XLA's fastest flags.
    """
    heads = (PLAIN_FLAT,) if model in ("gat", "gatv2") else ()
    forms = (PLAIN, *heads, *((PLAIN_NODES,) if model == "edgeconv" else ()))
    return (*forms, forms[-1] + FTZ) if device == "gpu" else forms


def wanted(name: str, only: Sequence[str]) -> bool:
    """Whether `--only` keeps the implementation of this name."""
    return not only or any(part.lower() in name.lower() for part in only)


def narrowed(
    every: Iterable[Measurement], dtypes: Sequence[str] = (), only: Sequence[str] = ()
) -> list[Measurement]:
    """Each measurement once, as far as the options keep it."""
    kept = (m for m in every if (not dtypes or m.dtype in dtypes) and wanted(m.impl, only))
    return list(dict.fromkeys(kept))
