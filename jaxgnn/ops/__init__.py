"""Operations on graphs: the functional layer that `jaxgnn.nn` is a thin shell over."""

import importlib
from typing import TYPE_CHECKING, Any

from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn.ops._aggregation.edge_conv import edge_conv
from jaxgnn.ops._aggregation.gather_edges import gather_edges
from jaxgnn.ops._aggregation.readout import readout
from jaxgnn.ops._aggregation.sddmm import sddmm
from jaxgnn.ops._aggregation.segment_reduce import segment_reduce
from jaxgnn.ops._aggregation.segment_softmax import segment_softmax
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._attention.cosine_attention import cosine_attention
from jaxgnn.ops._attention.dot_attention import dot_attention
from jaxgnn.ops._attention.gat_attention import gat_attention
from jaxgnn.ops._attention.gatv2_attention import gatv2_attention
from jaxgnn.ops._gaussian.gaussian_spmm import gaussian_spmm
from jaxgnn.ops._knn.knn_graph import knn_graph
from jaxgnn.ops._maxk.maxk import CBSR, maxk
from jaxgnn.ops._maxk.maxk_spmm import maxk_spmm

if TYPE_CHECKING:
    from jaxgnn.ops._sampling.draw_weights import draw_weights
    from jaxgnn.ops._sampling.importance import importance_weights
    from jaxgnn.ops._sampling.negative_edges import NegativeEdges, negative_edges
    from jaxgnn.ops._sampling.sage_embedding import sage_embedding
    from jaxgnn.ops._sampling.sample import LARGEST_SAMPLE
    from jaxgnn.ops._sampling.sample_neighbors import sample_neighbors
    from jaxgnn.ops._sampling.sampled_edges import sampled_edges
    from jaxgnn.ops._sampling.sampled_spmm import sampled_spmm
    from jaxgnn.ops._sampling.weighted import DrawWeights

__all__ = [
    "CBSR",
    "LARGEST_SAMPLE",
    "DrawWeights",
    "NegativeEdges",
    "cosine_attention",
    "csr_row_ids",
    "dot_attention",
    "draw_weights",
    "edge_conv",
    "gat_attention",
    "gather_edges",
    "gatv2_attention",
    "gaussian_spmm",
    "importance_weights",
    "knn_graph",
    "maxk",
    "maxk_spmm",
    "negative_edges",
    "readout",
    "sage_embedding",
    "sample_neighbors",
    "sampled_edges",
    "sampled_spmm",
    "sddmm",
    "segment_reduce",
    "segment_softmax",
    "spmm",
]

# Imported when first used, from these modules of `_sampling`: `import jaxgnn` stays fast.
_SAMPLING = {
    "DrawWeights": "weighted",
    "LARGEST_SAMPLE": "sample",
    "NegativeEdges": "negative_edges",
    "draw_weights": "draw_weights",
    "importance_weights": "importance",
    "negative_edges": "negative_edges",
    "sage_embedding": "sage_embedding",
    "sample_neighbors": "sample_neighbors",
    "sampled_edges": "sampled_edges",
    "sampled_spmm": "sampled_spmm",
}


def __getattr__(name: str) -> Any:
    if name in _SAMPLING:
        module = importlib.import_module(f"jaxgnn.ops._sampling.{_SAMPLING[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'jaxgnn.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
