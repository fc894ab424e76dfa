"""Sharded graphs on eight simulated devices: the checks of `eight_devices`, in a child process."""

import os
import re

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import segment_reduce
from jaxgnn.distributed import shard
from jaxgnn.nn import GATConv
from tests.distributed.eight_devices.support import close, mesh, random_graph
from tests.support.paths import ROOT
from tests.support.processes import PACKAGES, run_python

if jax.default_backend() != "cpu":
    pytest.skip("simulated devices are the CPU's", allow_module_level=True)

EIGHT_DEVICES = ("-m", "tests.distributed.eight_devices")
PATH = os.pathsep.join((PACKAGES, str(ROOT)))  # the installed jaxgnn first


def test_layouts_agree_with_one_device():
    done = run_python(*EIGHT_DEVICES, directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_edge_data_by_senders_with_overlap_alone(shape, reduce):
    graph, rng = random_graph(9, 30)
    sharded = shard(graph, mesh(2), rows="x", overlap=True)
    data = rng.standard_normal((30, *shape)).astype(np.float32)
    cotangent = rng.standard_normal((9, *shape)).astype(np.float32)

    @jax.jit
    def reduced(graph, data, cotangent):
        out, pullback = jax.vjp(lambda d: segment_reduce(graph, d, reduce, by="senders"), data)
        return out, *pullback(cotangent)

    want, of_data = reduced(graph, graph.sort_edge_data(data), cotangent)
    known = np.asarray(sharded.edge_mask)
    placed = np.array(sharded.scatter_edges(data))
    placed[~known] = 7  # counts nowhere
    got, of_placed = reduced(sharded, placed, sharded.scatter(cotangent))
    close(sharded.gather(got), want)
    close(of_placed[known], of_data[np.asarray(sharded.edge_of_place)[known]])
    halves, _ = reduced(
        sharded, *(a.astype(np.float16) for a in (placed, sharded.scatter(cotangent)))
    )
    assert halves.dtype == np.float16
    np.testing.assert_allclose(sharded.gather(halves), want, atol=0.05)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_errors_with_overlap_alone_name_what_users_call():
    graph, rng = random_graph(9, 30)
    sharded = shard(graph, mesh(2), rows="x", overlap=True)
    conv = GATConv(8, 8, heads=4, edge_dim=4, rngs=nnx.Rngs(0))
    features = sharded.scatter_edges(rng.standard_normal((30, 4)).astype(np.float32))
    with pytest.raises(ValueError, match="graph: attention with edge_dim expected all edges of a"):
        conv(sharded, sharded.scatter(np.ones((9, 8), np.float32)), features)
    with pytest.raises(ValueError, match="x: expected an array, got lists of different lengths"):
        sharded.scatter([[0], [1, 2]])


@pytest.mark.system
def test_all_shapes_and_models():
    done = run_python(*EIGHT_DEVICES, "--all", directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_models_on_one_to_three_devices():
    done = run_python(*EIGHT_DEVICES, "--few", directory=ROOT, PYTHONPATH=PATH)
    assert done.stdout.endswith("all hold\n")


@pytest.mark.system
def test_the_example_trains_alike_in_all_layouts():
    losses = []
    for layout in ("one", "rows", "features"):
        options = (
            f"--shape arxiv --scale 0.02 --features 16 --steps 2 --devices 3 --layout {layout}"
        )
        done = run_python(
            "examples/train_sharded.py", *options.split(), directory=ROOT, XLA_FLAGS=""
        )
        assert done.stdout.endswith("1 compiled\n")
        found = re.search(r"loss (\d+\.\d{6}) to (\d+\.\d{6})", done.stdout)
        assert found is not None
        losses.append([float(text) for text in found.groups()])
    assert losses[0][0] > losses[0][1]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)
