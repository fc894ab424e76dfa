"""Batch normalization in training: ours, Flax's module as XLA compiles it, and PyTorch's.

    python -m benchmarks.experiments.batch_norm [--rows 50000] [--width 256] [--dtype bfloat16]
        [--device gpu] [--json FILE]

As `benchmarks.experiments.layer_norm`.
"""

from __future__ import annotations

from flax import nnx

from benchmarks.experiments.layer_norm import measure
from jaxgnn.nn import BatchNorm

if __name__ == "__main__":
    measure(BatchNorm, nnx.BatchNorm, "BatchNorm1d")
