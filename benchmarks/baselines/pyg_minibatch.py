"""The mini-batch training step of PyG: on batches that lie ready, or from its loader."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch_geometric.nn import GraphSAGE

from benchmarks.baselines.loaders import WORKERS, pyg_loader
from benchmarks.harness import plan
from benchmarks.harness.minibatch import READY, Batch, Data, Step, Trainer
from benchmarks.harness.neighbors import endless
from benchmarks.harness.setting import layer_parameters


def trainer(step: Step, data: Data) -> Trainer:
    """The step on the CPU or the GPU, in TF32 there."""
    torch.set_num_threads(data.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    where = torch.device("cuda" if data.device == "gpu" else "cpu")
    x, labels = torch.from_numpy(data.x), torch.from_numpy(data.labels).long()
    model = _model(step, data).to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if step.impl == plan.PYG_STEP:
        return _with_loader(step, data, model, optimizer, x, labels, where)
    batches = _ready(data, where, trimmed=step.impl == plan.PYG_TRIMMED)
    x, labels = x.to(where), labels.to(where)

    def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
        nodes = batch["nodes"]
        out = model(x[nodes], batch["edges"], **batch["hops"])[: step.seeds]
        return functional.cross_entropy(out, labels[nodes[: step.seeds]])

    one_step = _one_step(model, optimizer, loss)
    following = itertools.cycle(batches)

    def seconds(count: int) -> float:
        _wait(where)
        start = time.perf_counter()
        for _ in range(count):
            one_step(next(following))
        _wait(where)
        return time.perf_counter() - start

    def first_loss() -> tuple[float, Batch]:
        fresh, batch = _model(step, data).to(where), batches[0]
        nodes, (senders, receivers) = batch["nodes"].cpu().numpy(), batch["edges"].cpu().numpy()
        return loss(fresh, batch).item(), Batch(nodes, senders, receivers, step.seeds)

    return Trainer(seconds, first_loss, lambda: _peak_bytes(where))


def _model(step: Step, data: Data) -> GraphSAGE:
    """PyG's model with the parameters of jaxgnn's."""
    first, *hidden, last = step.widths
    model = GraphSAGE(first, hidden[0], num_layers=len(hidden) + 1, out_channels=last)
    for conv, own in zip(model.convs, layer_parameters(data.parameters), strict=True):
        state = {
            "lin_l.weight": own["linear_neighbors.kernel"].T,
            "lin_l.bias": own["linear_neighbors.bias"],
            "lin_r.weight": own["linear_root.kernel"].T,
        }
        conv.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    return model


def _ready(data: Data, where: torch.device, trimmed: bool) -> list[dict[str, Any]]:
    """The batches that jaxgnn wrote; trimmed, each layer computes what the next one reads."""
    found = []
    with np.load(data.folder / "batches.npz") as archive:
        for number in range(READY):
            one = {
                name: torch.from_numpy(archive[f"{number}.{name}"]).long().to(where)
                for name in ("nodes", "edges")
            }
            hops = {
                f"num_sampled_{name}_per_hop": archive[f"{number}.{name}_of_hops"].tolist()
                for name in ("nodes", "edges")
            }
            found.append({**one, "hops": hops if trimmed else {}})
    return found


def _one_step(model: Any, optimizer: Any, loss: Callable) -> Callable[[Any], torch.Tensor]:
    def one_step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    return one_step


def _with_loader(
    step: Step, data: Data, model: Any, optimizer: Any, x: Any, labels: Any, where: torch.device
) -> Trainer:
    """The loader's workers sample and gather features; the step's process moves them."""
    workers = min(WORKERS, len(os.sched_getaffinity(0)))
    nodes = torch.from_numpy(data.input_nodes).long()
    loader = pyg_loader(
        *(data.graph, step.num_neighbors, step.seeds, workers),
        input_nodes=nodes,
        shuffle=True,
        pin_memory=data.device == "gpu",
        x=x,
        y=labels,
    )
    following = endless(loader)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        return functional.cross_entropy(out, batch.y[: batch.batch_size])

    one_step = _one_step(model, optimizer, loss)

    def seconds(count: int) -> float:
        # Workers deliver in turns: as many batches of each.
        start = time.perf_counter()
        for _ in range(count * workers):
            one_step(following().to(where, non_blocking=True))
        _wait(where)
        return (time.perf_counter() - start) / workers

    def first_loss() -> tuple[float, Batch]:
        batch, fresh = following(), _model(step, data).to(where)
        value = loss(fresh, batch.to(where)).item()
        ends = batch.edge_index.cpu().numpy()
        return value, Batch(batch.n_id.cpu().numpy(), *ends, batch.batch_size)

    return Trainer(seconds, first_loss, lambda: _peak_bytes(where), facts={"workers": workers})


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()


def _peak_bytes(where: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated() if where.type == "cuda" else None
