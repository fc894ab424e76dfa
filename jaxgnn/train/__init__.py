"""Training: the loop behind `jaxgnn train`, and its parts. Needs `pip install 'jaxgnn[train]'`."""

from jaxgnn.train.checkpoint import CheckpointError, Checkpoints
from jaxgnn.train.config import ConfigError, TrainConfig
from jaxgnn.train.evaluation import InferenceSample, evaluate, sampled_logits
from jaxgnn.train.host_features import HostFeatures
from jaxgnn.train.layerwise import layerwise_inference
from jaxgnn.train.links import LinkData
from jaxgnn.train.loop import Best, Compiled, DivergenceError, Progress, lower, train
from jaxgnn.train.neighbor_loader import Batch, NeighborLoader
from jaxgnn.train.presets import PRESETS, preset
from jaxgnn.train.recovery import Recovery, RunError, RunWarning
from jaxgnn.train.restored import RestoredRun, restore_run, saved_config
from jaxgnn.train.runner import run
from jaxgnn.train.seeds import SeedRun, SeedsResult, train_in_sequence, train_seeds
from jaxgnn.train.step import Program, TrainState, build, build_model, build_optimizer
from jaxgnn.train.task import Task, masked_accuracy, masked_loss, score

__all__ = [
    "PRESETS",
    "Batch",
    "Best",
    "CheckpointError",
    "Checkpoints",
    "Compiled",
    "ConfigError",
    "DivergenceError",
    "HostFeatures",
    "InferenceSample",
    "LinkData",
    "NeighborLoader",
    "Program",
    "Progress",
    "Recovery",
    "RestoredRun",
    "RunError",
    "RunWarning",
    "SeedRun",
    "SeedsResult",
    "Task",
    "TrainConfig",
    "TrainState",
    "build",
    "build_model",
    "build_optimizer",
    "evaluate",
    "layerwise_inference",
    "lower",
    "masked_accuracy",
    "masked_loss",
    "preset",
    "restore_run",
    "run",
    "sampled_logits",
    "saved_config",
    "score",
    "train",
    "train_in_sequence",
    "train_seeds",
]
