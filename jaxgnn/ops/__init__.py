"""Operations on graphs: the functional layer that `jaxgnn.nn` is a thin shell over."""

from jaxgnn.ops.cosine_attention import cosine_attention
from jaxgnn.ops.dot_attention import dot_attention
from jaxgnn.ops.edge_conv import edge_conv, edge_conv_max
from jaxgnn.ops.expand_rows import expand_rows
from jaxgnn.ops.gat_attention import gat_attention
from jaxgnn.ops.gather_edges import gather_edges
from jaxgnn.ops.gatv2_attention import gatv2_attention
from jaxgnn.ops.gaussian_spmm import gaussian_spmm
from jaxgnn.ops.knn_graph import knn_graph
from jaxgnn.ops.maxk import CBSR, maxk
from jaxgnn.ops.maxk_spmm import maxk_spmm
from jaxgnn.ops.readout import readout
from jaxgnn.ops.sddmm import sddmm
from jaxgnn.ops.segment_reduce import segment_reduce
from jaxgnn.ops.segment_softmax import segment_softmax
from jaxgnn.ops.spmm import spmm

__all__ = [
    "CBSR",
    "cosine_attention",
    "dot_attention",
    "edge_conv",
    "edge_conv_max",
    "expand_rows",
    "gat_attention",
    "gather_edges",
    "gatv2_attention",
    "gaussian_spmm",
    "knn_graph",
    "maxk",
    "maxk_spmm",
    "readout",
    "sddmm",
    "segment_reduce",
    "segment_softmax",
    "spmm",
]
