"""Training: the loop behind `jaxgnn train`, and its parts. Needs `pip install 'jaxgnn[train]'`."""

from jaxgnn.train.loaders.graph_loader import GraphLoader, GraphMinibatch, GraphSource
from jaxgnn.train.loaders.host_features import HostFeatures
from jaxgnn.train.loaders.neighbor_loader import NeighborLoader
from jaxgnn.train.loaders.neighbor_programs import Batch
from jaxgnn.train.loop.epochs import (
    Best,
    Compiled,
    DivergenceError,
    Progress,
    UnfinishedEpoch,
    lower,
    train,
)
from jaxgnn.train.planning.plan import Plan, plan
from jaxgnn.train.problems.graph_data import GraphSetDescription
from jaxgnn.train.problems.links import LinkData
from jaxgnn.train.problems.node_problem import load_dataset
from jaxgnn.train.process.checkpoint import CheckpointError, Checkpoints
from jaxgnn.train.process.heap import keep_freed_memory
from jaxgnn.train.process.machine import environment
from jaxgnn.train.process.recovery import Recovery, RunError, RunWarning
from jaxgnn.train.reports.comparison import ComparedRuns, Comparison, compare
from jaxgnn.train.reports.description import DatasetDescription, LinkDescription
from jaxgnn.train.runs.folds import run_folds
from jaxgnn.train.runs.runner import run
from jaxgnn.train.runs.seeds import SeedRun, SeedsResult, train_in_sequence, train_seeds
from jaxgnn.train.settings.config import TrainConfig
from jaxgnn.train.settings.options import ConfigError
from jaxgnn.train.settings.presets import PRESETS, preset
from jaxgnn.train.steps.build_program import build
from jaxgnn.train.steps.layerwise import layerwise_inference
from jaxgnn.train.steps.model import build_model
from jaxgnn.train.steps.optimizer import build_optimizer
from jaxgnn.train.steps.step import LossSums, Program, TrainState
from jaxgnn.train.steps.task import Task, masked_accuracy, masked_loss, score
from jaxgnn.train.trained.evaluation import InferenceSample, evaluate, sampled_logits
from jaxgnn.train.trained.link_predictions import LinkPredictions, Pairs, predict_links, read_pairs
from jaxgnn.train.trained.loaded import LoadedRun, evaluate_scores, load_run
from jaxgnn.train.trained.loaded_graphs import LoadedGraphRun
from jaxgnn.train.trained.loaded_links import LoadedLinkRun, load_link_run
from jaxgnn.train.trained.predictions import Predictions, predict
from jaxgnn.train.trained.restored import RestoredRun, restore_run, saved_config

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
