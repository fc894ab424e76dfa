"""What a compiled step on simulated devices sends, beside what is planned."""

import dataclasses
import math
import re

import jax
import numpy as np

from jaxgnn.distributed import shard
from jaxgnn.train import build
from jaxgnn.train.problems.node_problem import choose_split, make_task

_SIZES = {"f32": 4, "u8": 1}


def all_to_all_bytes(compiled):
    """That a device sends to others by all_to_all, an operand for each of them on a CPU."""
    sent = 0
    for types in re.findall(r"= \((.*)\) all-to-all\(", compiled.as_text()):
        found = re.findall(r"(f32|u8)\[([\d,]+)\]", types)
        sizes = [_SIZES[kind] * math.prod(map(int, shape.split(","))) for kind, shape in found]
        sent += sum(sizes) * (1 - 1 / len(found))
    return sent


def sent_in_a_step(config, dataset, plan):
    """The same of the compiled step in the layout of a plan."""
    parts, columns = plan.devices // plan.column_devices, plan.column_devices
    devices = jax.devices()[: plan.devices]
    mesh = jax.make_mesh((parts, columns), ("parts", "columns"), devices=devices)
    axes = {"rows": "parts"} if parts > 1 else {}
    axes |= {"features": "columns"} if columns > 1 else {}
    graph = shard(dataset.graph, mesh, **axes)
    task = make_task(config, dataset, choose_split(dataset, config.split))
    program, state = build(config, dataclasses.replace(task, graph=graph))
    arrays = {
        name: graph.scatter(np.asarray(getattr(task, name)))
        for name in ("features", "labels", "train", "val")
    }
    task = dataclasses.replace(task, graph=graph, **arrays)
    return all_to_all_bytes(jax.jit(program.step).lower(graph.replicate(state), task).compile())
