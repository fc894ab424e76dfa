"""Graph neural networks for JAX whose aggregation runs in XLA custom calls."""

from jaxgnn._ffi import BuildInfo, build_info
from jaxgnn.graph import Graph
from jaxgnn.ops import (
    gather_edges,
    readout,
    sddmm,
    segment_reduce,
    segment_softmax,
    spmm,
)

__version__ = "0.1.0"

__all__ = [
    "BuildInfo",
    "Graph",
    "build_info",
    "gather_edges",
    "readout",
    "sddmm",
    "segment_reduce",
    "segment_softmax",
    "spmm",
]
