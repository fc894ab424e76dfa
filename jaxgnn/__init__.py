"""Graph neural networks for JAX whose aggregation runs in custom kernels.

The layers: `jaxgnn.ops` (operations, re-exported here but for `csr_row_ids` and `LARGEST_SAMPLE`),
`jaxgnn.algebra` (operators for custom message passing), `jaxgnn.nn` (Flax NNX modules),
`jaxgnn.transform`, `jaxgnn.batch` and `jaxgnn.tiles` (graph preprocessing), `jaxgnn.metrics`
(scores), `jaxgnn.data` (data sets), `jaxgnn.distributed` (graphs over several devices),
`jaxgnn.train` (training runs; needs `jaxgnn[train]`) and `jaxgnn.export` (trained models as
programs; needs `jaxgnn[export]`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxgnn import batch, config, ops
from jaxgnn._core.platform import BuildInfo, build_info, include_dir
from jaxgnn._core.version import VERSION
from jaxgnn.graph import Blocks, Graph, GraphBatch
from jaxgnn.ops import (
    CBSR,
    cosine_attention,
    dot_attention,
    edge_conv,
    gat_attention,
    gather_edges,
    gatv2_attention,
    gaussian_spmm,
    knn_graph,
    maxk,
    maxk_spmm,
    readout,
    sddmm,
    segment_reduce,
    segment_softmax,
    spmm,
)

if TYPE_CHECKING:
    from jaxgnn import algebra, data, distributed, export, metrics, nn, tiles, train, transform
    from jaxgnn.ops import (
        DrawWeights,
        NegativeEdges,
        draw_weights,
        importance_weights,
        negative_edges,
        sage_embedding,
        sample_neighbors,
        sampled_edges,
        sampled_spmm,
    )

__version__ = VERSION

__all__ = [
    "CBSR",
    "Blocks",
    "BuildInfo",
    "DrawWeights",
    "Graph",
    "GraphBatch",
    "NegativeEdges",
    "algebra",
    "batch",
    "build_info",
    "config",
    "cosine_attention",
    "data",
    "distributed",
    "dot_attention",
    "draw_weights",
    "edge_conv",
    "export",
    "gat_attention",
    "gather_edges",
    "gatv2_attention",
    "gaussian_spmm",
    "importance_weights",
    "include_dir",
    "knn_graph",
    "maxk",
    "maxk_spmm",
    "metrics",
    "negative_edges",
    "nn",
    "readout",
    "sage_embedding",
    "sample_neighbors",
    "sampled_edges",
    "sampled_spmm",
    "sddmm",
    "segment_reduce",
    "segment_softmax",
    "spmm",
    "tiles",
    "train",
    "transform",
]

# Imported when first used, as sampling is (`jaxgnn/ops/__init__.py`): `import jaxgnn` stays fast.
_MODULES = (
    *("algebra", "data", "distributed", "export", "metrics", "nn", "tiles", "train", "transform"),
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"jaxgnn.{name}")
    if name in __all__:
        return getattr(ops, name)
    raise AttributeError(f"module 'jaxgnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
