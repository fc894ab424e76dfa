"""Checks of a graph over two processes, each with two simulated devices.

python -m tests.distributed.two_processes PORT PROCESS    # PROCESS: 0 and 1; --all: all layouts
python -m tests.distributed.two_processes PORT PROCESS --all --gpu    # a GPU of this host each
python -m tests.distributed.two_processes PORT PROCESS --models    # every model by rows
"""

import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from jaxgnn import Graph
from jaxgnn.distributed import Partition, load_sharded, shard
from jaxgnn.distributed._placement import to_host
from jaxgnn.nn import GraphSAGE
from jaxgnn.train import ConfigError, TrainConfig
from jaxgnn.train.process import processes
from tests.distributed.eight_devices.models import EACH_BY_ROWS, check_models

NODES, EDGES = 37, 150


def problem():
    """Directed, with duplicates, self-loops and isolated nodes."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, NODES - 2, (2, EDGES))
    senders[:20] = receivers[:20]
    senders[-9:], receivers[-9:] = senders[0], receivers[-1]
    graph = Graph.from_edges(senders, receivers, num_nodes=NODES)
    x = rng.standard_normal((NODES, 6)).astype(np.float32)
    target = rng.standard_normal((NODES, 3)).astype(np.float32)
    weights = rng.standard_normal(EDGES).astype(np.float32)
    return graph, x, target, weights


def check_agreement(process):
    """Options that differ are refused in both processes; what differs by host is not."""
    config = TrainConfig(distributed=True, dataset=f"data-{process}", process=process)
    processes.check_options(config)
    processes.check_options(dataclasses.replace(config, resume=f"{'../' * process}run"))
    for options, message in (
        ({"seed": process}, "got --seed 0 in process 0 and --seed 1 in process 1"),
        ({"resume": ("run", None)[process]}, "got --resume run in process 0 and --resume None"),
        ({"shard": ("rows", "auto")[process]}, "got --shard rows in process 0 and --shard auto"),
        ({"checkpoint_interval": 5 + process}, "got --checkpoint-interval 5 in process 0 and"),
    ):
        with pytest.raises(ConfigError, match=message):
            processes.check_options(dataclasses.replace(config, **options))
    with pytest.raises(ConfigError, match=r"the same data in all processes, .* in process 1, "):
        processes.check_shared(Path(), {"name": str(process)})


def main(port, process, *options):
    on_gpu = "--gpu" in options
    jax.config.update("jax_platforms", "cuda,cpu" if on_gpu else "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_num_cpu_devices", 2)
    own = [int(process)] if on_gpu else None
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process), local_device_ids=own)
    check_agreement(int(process))
    if "--models" in options:
        check_models(EACH_BY_ROWS)
        print("all hold", flush=True)
        jax.distributed.shutdown()
        return
    graph, x, target, weights = problem()
    model = GraphSAGE(6, 8, 3, num_layers=2, rngs=nnx.Rngs(0))
    definition, parameters = nnx.split(model)

    @jax.jit
    def step(parameters, graph, x, target, weights, mask):
        def loss(parameters):
            outputs = nnx.merge(definition, parameters)(graph, x, weights)
            return jnp.mean((outputs - target) ** 2, where=mask[:, None]), outputs

        return jax.value_and_grad(loss, has_aux=True)(parameters)

    ordered = graph.sort_edge_data(weights)
    want = step(parameters, graph, x, target, ordered, np.ones(NODES, bool))
    (want_loss, want_outputs), want_gradients = want
    devices = np.array(jax.devices())
    layouts = (
        (Mesh(devices, ("d",)), {"rows": "d"}),
        (Mesh(devices.reshape(2, -1), ("hosts", "gpus")), {"rows": "hosts", "features": "gpus"}),
        (Mesh(devices, ("d",)), {"features": "d"}),
    )
    cases = [(shard(graph, mesh, **layout), {}) for mesh, layout in layouts]
    cases = cases if "--all" in options else cases[:1]
    if "--all" in options:
        rng = np.random.default_rng(1)
        owner = rng.integers(0, 4, NODES, np.int32)
        split = Partition.of_owners(graph, owner, 4)
        folder = os.path.join(tempfile.gettempdir(), f"jaxgnn-{port}-{process}")
        arrays = {"x": x, "target": target}
        split.save(folder, graph, arrays, edge_arrays={"weights": np.asarray(ordered)})
        for hidden in set(range(4)) - {int(process) * 2, int(process) * 2 + 1}:
            for name in ("senders", "row_offsets", "x", "target", "weights"):  # another process's
                os.remove(os.path.join(folder, f"part-{hidden:05d}", f"{name}.npy"))
        for mesh, layout in layouts[:2]:
            cases += [
                load_sharded(folder, mesh, **layout, overlap=overlap) for overlap in (False, True)
            ]
        shutil.rmtree(folder)
    for sharded, arrays in cases:
        assert not sharded.node_of_place.is_fully_addressable
        placed = [sharded.scatter(array) for array in (x, target)]
        if arrays:
            for name, array in zip(("x", "target"), placed, strict=True):
                np.testing.assert_array_equal(to_host(arrays[name]), to_host(array))
            expected = sharded.scatter_edges(ordered, in_graph_order=True)
            np.testing.assert_array_equal(to_host(arrays["weights"]), to_host(expected))
            assert arrays["weights"].sharding == expected.sharding
            placed = [arrays[name] for name in ("x", "target", "weights")]
        else:
            placed.append(sharded.scatter_edges(weights))
        got = step(sharded.replicate(parameters), sharded, *placed, sharded.node_mask)
        (loss, outputs), gradients = got
        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        np.testing.assert_allclose(sharded.gather(outputs), want_outputs, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(sharded.gather(placed[0]), x)
        np.testing.assert_array_equal(sharded.gather(to_host(placed[0])), x)
        pairs = zip(jax.tree.leaves(gradients), jax.tree.leaves(want_gradients), strict=True)
        for found, expected in pairs:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    print("all hold", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
