"""The options of a training run: their names, what each may be, and which belong together."""

from __future__ import annotations

import math
from typing import Literal, get_args

from jaxgnn.ops._sampling.negative_edges import NegativeMethod

Activation = Literal["relu", "elu", "maxk"]
DType = Literal["float32", "bfloat16", "float16", "float64"]
Features = Literal["auto", "raw", "normalized", "embedding", "categories"]
Decay = Literal["l2", "decoupled"]
DecayLayers = Literal["all", "first"]
Method = Literal["uniform", "labor"]
TaskName = Literal["node", "link", "graph"]
Readout = Literal["sum", "mean", "max", "min", "attention"]
EdgeFeatures = Literal["auto", "none", "raw", "categories"]
GraphMetric = Literal["auto", "accuracy", "roc_auc", "average_precision", "micro_f1", "rmse", "mae"]
Decoder = Literal["dot", "mlp"]
FeaturesOn = Literal["device", "host"]
Shard = Literal["auto", "rows", "features", "both"]
Sampling = Literal["bucket", "fastrand", "stride", "random", "dropedge"]

# Options of links alone.
OF_LINKS = ("decoder", "negatives", "val_share", "test_share", "disjoint_train", "directed")

# Options of many graphs alone.
OF_GRAPHS = ("readout", "edge_features", "metric")

# Options that need `num_neighbors`.
OF_MINI_BATCHES = (
    "batch_size",
    "replace",
    "method",
    "deduplicate",
    "steps_per_call",
    "checkpoint_steps",
    "features_on",
    "evaluation_batch_size",
)

_BELOW_1 = math.nextafter(1, 0)
_FLOAT32_MAX = math.ldexp(2 - 2**-23, 127)
RANGES: dict[str, tuple[float, float, str]] = {
    "layers": (1, 1000, "an integer from 1 to 1000"),
    "hidden": (1, 1 << 20, "an integer from 1 to 2**20"),
    "k": (0, 4096, "an integer from 1 to 4096 or auto"),
    "k_epochs": (1, 1 << 31, "a positive integer"),
    "k_tolerance": (0, 1, "a number from 0 to 1"),
    "anneal_from": (0, 4096, "an integer from 0 to 4096"),
    "anneal_epochs": (1, 1 << 30, "a positive integer"),
    "heads": (1, 1024, "an integer from 1 to 1024"),
    "out_heads": (0, 1024, "an integer from 0 to 1024"),
    "head_k": (-1, 4096, "an integer from 0 to 4096 or auto"),
    "kernel_size": (1, 1024, "an integer from 1 to 1024"),
    "dim": (1, 16, "an integer from 1 to 16"),
    "dropout": (0, _BELOW_1, "a number from 0 to less than 1"),
    "input_dropout": (0, _BELOW_1, "a number from 0 to less than 1"),
    "sample_size": (0, 4096, "an integer from 0 to 4096"),
    "sample_rate": (0, 1, "a number from 0 to 1"),
    "val_share": (0, _BELOW_1, "a number from 0 to less than 1"),
    "test_share": (0, _BELOW_1, "a number from 0 to less than 1"),
    "disjoint_train": (0, _BELOW_1, "a number from 0 to less than 1"),
    "batch_size": (1, 1 << 30, "a positive integer"),
    "steps_per_call": (0, 1 << 30, "an integer from 0"),
    "evaluation_batch_size": (1, 1 << 30, "a positive integer"),
    "learning_rate": (math.ulp(0), _FLOAT32_MAX, "a finite number above 0"),
    "weight_decay": (0, _FLOAT32_MAX, "a finite number from 0"),
    "epochs": (1, 1 << 31, "a positive integer"),
    "patience": (0, 1 << 31, "an integer from 0"),
    "split": (0, 1 << 31, "an integer from 0"),
    "seed": (0, 2**32 - 1, "an integer from 0 to 2**32 - 1"),
    "stall_timeout": (0, 1 << 30, "an integer from 0"),
    "checkpoint_interval": (1, 1 << 31, "a positive integer"),
    "checkpoint_steps": (0, 1 << 30, "an integer from 0"),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "activation": get_args(Activation),
    "dtype": get_args(DType),
    "features": get_args(Features),
    "features_on": get_args(FeaturesOn),
    "decay": get_args(Decay),
    "decay_layers": get_args(DecayLayers),
    "strategy": get_args(Sampling),
    "shard": get_args(Shard),
    "task": get_args(TaskName),
    "readout": get_args(Readout),
    "edge_features": get_args(EdgeFeatures),
    "metric": get_args(GraphMetric),
    "decoder": get_args(Decoder),
    "negatives": get_args(NegativeMethod),
    "norm": ("none", "batch", "layer", "graph"),
    "jumping": ("none", "last", "cat", "max"),
}


class ConfigError(ValueError):
    """An option that cannot be: one line that names it, what was expected and what came."""


def option(name: str) -> str:
    """The command line's spelling of a field."""
    return "--" + name.replace("_", "-")
