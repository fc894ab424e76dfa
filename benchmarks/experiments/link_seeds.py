"""Test ROC AUC of link prediction over seeds, here and in PyG: the same model, splits and schedule.

    python -m benchmarks.experiments.link_seeds facebook_combined.txt.gz [--seeds 10] [--epochs 100]

A GCN of two layers over a learned embedding of the nodes, dot products of their outputs, Adam,
uniform negatives drawn anew in each step; the epoch of the best validation score counts. Seed s has
`transform.link_split`'s split s.
"""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np

from jaxgnn import metrics, transform
from jaxgnn.graph import Graph
from jaxgnn.train import Best, Compiled, LinkData, Progress, Recovery, TrainConfig, train
from jaxgnn.train.loop.epochs import copy
from jaxgnn.train.problems.problem import load_link_data, make_problem


def ours(config: TrainConfig, data: LinkData) -> float:
    """The test score of `jaxgnn train --task link`."""
    problem = make_problem(config, data, Recovery())
    program, state = problem.build()
    compiled = Compiled(program, state, problem.task)
    start = Best(copy(state.params), copy(state.rest))
    limits = {"epochs": config.epochs, "patience": 0}
    _, best, _ = train(compiled, problem.task, state, start, Progress(), **limits)
    results = problem.results(program, compiled.evaluate, best.params, best.rest)
    return results["test_score"]


def pyg(config: TrainConfig, data: LinkData) -> float:
    """That of the same in PyG."""
    import torch
    from torch_geometric.nn import GCN
    from torch_geometric.utils import negative_sampling

    torch.manual_seed(config.seed)
    split = transform.link_split(data.graph, config.val_share, config.test_share, seed=config.split)
    nodes, width = data.graph.num_nodes, config.hidden

    def edges(graph: Graph) -> torch.Tensor:
        return torch.from_numpy(np.stack([graph.senders, graph.receivers]).astype(np.int64))

    def ends(part: transform.LinkPart) -> torch.Tensor:
        return torch.from_numpy(np.stack([part.senders, part.receivers]).astype(np.int64))

    table = torch.nn.Parameter(torch.randn(nodes, width) * width**-0.5)
    model = GCN(width, width, config.layers, width)
    optimizer = torch.optim.Adam([table, *model.parameters()], lr=config.learning_rate)
    messages, positives = edges(split.train.graph), ends(split.train)

    def scores(graph: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        rows = model(table, graph)
        return (rows[pairs[0]] * rows[pairs[1]]).sum(-1)

    def evaluated(part: transform.LinkPart) -> float:
        with torch.no_grad():
            found = scores(edges(part.graph), ends(part)).double().numpy()
        return float(metrics.roc_auc(part.labels, found))

    best = (-1.0, 0.0)
    target = torch.cat([torch.ones(positives.shape[1]), torch.zeros(positives.shape[1])])
    for _ in range(config.epochs):
        optimizer.zero_grad()
        count = positives.shape[1]
        drawn = negative_sampling(messages, nodes, count)
        logits = scores(messages, torch.cat([positives, drawn], dim=1))
        kept = target[: logits.numel()]
        torch.nn.functional.binary_cross_entropy_with_logits(logits, kept).backward()
        optimizer.step()
        val = evaluated(split.val)
        if val > best[0]:
            best = (val, evaluated(split.test))
    return best[1]


def main() -> None:
    """Trains both, and prints mean and deviation over the seeds."""
    parser = argparse.ArgumentParser(description="Link prediction over seeds, here and in PyG.")
    parser.add_argument("dataset")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    config = TrainConfig(
        options.dataset, task="link", dropout=0.0, weight_decay=0.0, epochs=options.epochs
    )
    data = load_link_data(config)
    for name, run in (("jaxgnn", ours), ("PyG", pyg)):
        configs = [dataclasses.replace(config, seed=s, split=s) for s in range(options.seeds)]
        found = [100 * run(each, data) for each in configs]
        print(f"{name}: ROC AUC {np.mean(found):.2f} ± {np.std(found):.2f} %", flush=True)


if __name__ == "__main__":
    main()
