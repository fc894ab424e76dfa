"""A valid call of every FFI target, by the target's name."""

from tests.support.raw_calls import (
    aggregation,
    attention,
    dropout,
    gaussian,
    maxk,
    normalization,
    projection,
    sampling,
    tiles,
)
from tests.support.raw_calls.common import BOOLEANS, F32, I32, U8, Call, Calls, Graph

CALLS: Calls = aggregation.CALLS | maxk.CALLS | attention.CALLS | gaussian.CALLS | sampling.CALLS
CALLS |= dropout.CALLS | projection.CALLS
CPU_CALLS: Calls = aggregation.CPU_CALLS | normalization.CPU_CALLS | sampling.CPU_CALLS
CUDA_CALLS: Calls = tiles.CUDA_CALLS | maxk.CUDA_CALLS | attention.CUDA_CALLS | sampling.CUDA_CALLS

__all__ = [
    "BOOLEANS",
    "CALLS",
    "CPU_CALLS",
    "CUDA_CALLS",
    "F32",
    "I32",
    "U8",
    "Call",
    "Graph",
]
