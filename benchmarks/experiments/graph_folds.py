"""Accuracy of graph classification by folds, here and in PyG: the same model, splits and schedule.

    python -m benchmarks.experiments.graph_folds FOLDER [--folds 10] [--epochs 100] ...

The model and the options are those of `examples/graph_classification.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.baselines.pyg_graphs import pyg_graphs
from jaxgnn.data import GraphSet, load


def _example() -> Any:
    """The example as a module: tyro evaluates its annotations in it."""
    path = Path(__file__).resolve().parents[2] / "examples" / "graph_classification.py"
    spec = importlib.util.spec_from_file_location("graph_classification", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pyg_fold(graphs: GraphSet, fold: int, options: Any) -> tuple[float, int]:
    """What `run_fold` of the example computes, in PyG."""
    import torch
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GIN, global_add_pool

    torch.manual_seed(options.seed)

    split = graphs.splits[f"fold{fold}"]
    masks = (split.train, split.val, split.test)
    parts = [pyg_graphs(graphs, np.flatnonzero(mask)) for mask in masks]
    training = DataLoader(parts[0], options.batch_size, shuffle=True)
    loaders = [DataLoader(part, options.batch_size) for part in parts[1:]]
    gin = GIN(graphs.num_features, options.hidden, options.layers, options.hidden, norm="batch")
    linear = torch.nn.Linear(options.hidden, int(graphs.num_classes or 0))
    dropout = torch.nn.Dropout(options.dropout)
    parameters = [*gin.parameters(), *linear.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5)

    def logits(batch: Any) -> Any:
        rows = gin(batch.x, batch.edge_index).relu()
        return linear(dropout(global_add_pool(rows, batch.batch, batch.num_graphs)))

    best = (-1.0, 0.0, 0)
    for epoch in range(1, options.epochs + 1):
        gin.train(), dropout.train()
        for batch in training:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits(batch), batch.y).backward()
            optimizer.step()
        schedule.step()
        gin.eval(), dropout.eval()
        scores = []
        for loader, part in zip(loaders, parts[1:], strict=True):
            with torch.no_grad():
                right = sum(int((logits(b).argmax(-1) == b.y).sum()) for b in loader)
            scores.append(right / len(part))
        if scores[0] > best[0]:
            best = (scores[0], scores[1], epoch)
    return best[1], best[2]


def main() -> None:
    """Trains both, and prints the mean and the deviation over the folds."""
    example = _example()
    options = tyro.cli(example.Options)
    graphs = load(options.dataset)
    assert isinstance(graphs, GraphSet)
    for name, run in (("jaxgnn", example.run_fold), ("PyG", pyg_fold)):
        scores = [100 * run(graphs, fold, options)[0] for fold in range(options.folds)]
        deviation = np.std(scores, ddof=1) if len(scores) > 1 else 0.0
        print(f"{name}: {np.mean(scores):.2f} ± {deviation:.2f} %", flush=True)


if __name__ == "__main__":
    main()
