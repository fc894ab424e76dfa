"""Training: the loop behind `jaxgnn train`, and its parts. Needs `pip install 'jaxgnn[train]'`."""

from jaxgnn.train.build_program import build
from jaxgnn.train.checkpoint import CheckpointError, Checkpoints
from jaxgnn.train.comparison import ComparedRuns, Comparison, compare
from jaxgnn.train.config import TrainConfig
from jaxgnn.train.description import DatasetDescription, LinkDescription
from jaxgnn.train.evaluation import InferenceSample, evaluate, sampled_logits
from jaxgnn.train.folds import run_folds
from jaxgnn.train.graph_data import GraphSetDescription
from jaxgnn.train.graph_loader import GraphLoader, GraphMinibatch, GraphSource
from jaxgnn.train.heap import keep_freed_memory
from jaxgnn.train.host_features import HostFeatures
from jaxgnn.train.layerwise import layerwise_inference
from jaxgnn.train.link_predictions import LinkPredictions, Pairs, predict_links, read_pairs
from jaxgnn.train.links import LinkData
from jaxgnn.train.loaded import LoadedRun, evaluate_scores, load_run
from jaxgnn.train.loaded_graphs import LoadedGraphRun
from jaxgnn.train.loaded_links import LoadedLinkRun, load_link_run
from jaxgnn.train.loop import (
    Best,
    Compiled,
    DivergenceError,
    Progress,
    UnfinishedEpoch,
    lower,
    train,
)
from jaxgnn.train.machine import environment
from jaxgnn.train.model import build_model
from jaxgnn.train.neighbor_loader import NeighborLoader
from jaxgnn.train.neighbor_programs import Batch
from jaxgnn.train.node_problem import load_dataset
from jaxgnn.train.optimizer import build_optimizer
from jaxgnn.train.options import ConfigError
from jaxgnn.train.planning import Plan, plan
from jaxgnn.train.predictions import Predictions, predict
from jaxgnn.train.presets import PRESETS, preset
from jaxgnn.train.recovery import Recovery, RunError, RunWarning
from jaxgnn.train.restored import RestoredRun, restore_run, saved_config
from jaxgnn.train.runner import run
from jaxgnn.train.seeds import SeedRun, SeedsResult, train_in_sequence, train_seeds
from jaxgnn.train.step import LossSums, Program, TrainState
from jaxgnn.train.task import Task, masked_accuracy, masked_loss, score

__all__ = [
    "PRESETS",
    "Batch",
    "Best",
    "CheckpointError",
    "Checkpoints",
    "ComparedRuns",
    "Comparison",
    "Compiled",
    "ConfigError",
    "DatasetDescription",
    "DivergenceError",
    "GraphLoader",
    "GraphMinibatch",
    "GraphSetDescription",
    "GraphSource",
    "HostFeatures",
    "InferenceSample",
    "LinkData",
    "LinkDescription",
    "LinkPredictions",
    "LoadedGraphRun",
    "LoadedLinkRun",
    "LoadedRun",
    "LossSums",
    "NeighborLoader",
    "Pairs",
    "Plan",
    "Predictions",
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
    "UnfinishedEpoch",
    "build",
    "build_model",
    "build_optimizer",
    "compare",
    "environment",
    "evaluate",
    "evaluate_scores",
    "keep_freed_memory",
    "layerwise_inference",
    "load_dataset",
    "load_link_run",
    "load_run",
    "lower",
    "masked_accuracy",
    "masked_loss",
    "plan",
    "predict",
    "predict_links",
    "preset",
    "read_pairs",
    "restore_run",
    "run",
    "run_folds",
    "sampled_logits",
    "saved_config",
    "score",
    "train",
    "train_in_sequence",
    "train_seeds",
]
