"""What the checks share: meshes, graphs, partitions, and comparisons."""

import dataclasses
import re
import types

import jax
import numpy as np

from jaxgnn import Graph
from jaxgnn.distributed import shard

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def mesh(parts, both=False):
    """One axis; or two, with two devices on the second one."""
    shape, names = ((parts // 2, 2), ("r", "c")) if both else ((parts,), ("x",))
    return jax.make_mesh(shape, names, devices=jax.devices()[:parts])


def collectives(compiled):
    text = compiled.as_text()
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def random_graph(nodes, edges, seed=0):
    """Directed, with duplicates, self-loops and nodes without edges."""
    rng = np.random.default_rng(seed)
    busy = max(nodes - 2, 1)
    senders, receivers = rng.integers(0, busy, (2, edges))
    senders[: edges // 4] = receivers[: edges // 4]
    if edges:
        senders[-edges // 4 :], receivers[-edges // 4 :] = senders[0], receivers[-1]
    return Graph.from_edges(senders, receivers, num_nodes=nodes), rng


def partitions(nodes, parts, rng):
    """The default; owners at random; and all nodes on the last part: others are empty."""
    yield None
    yield types.SimpleNamespace(parts=parts, owner=rng.integers(0, parts, nodes, np.int32))
    yield types.SimpleNamespace(parts=parts, owner=np.full(nodes, parts - 1, np.int32))


def with_both(sharded, graph, parts, layout):
    """Edges in two graphs and in one, as by default where overlap is predicted to be faster."""
    whole = shard(graph, mesh(parts, both="features" in layout), **layout | {"overlap": False})
    assert (sharded.graph is None) == (sharded.kinds is not None) == (sharded.pair_rows > 0)
    return dataclasses.replace(sharded, graph=whole.graph)


def close(got, want, exact=None):
    """Within 1e-5 of one device's, and twice its own error where `exact` is in float64.

    A column of batch normalisation whose variance is small multiplies the rounding of both.
    """
    got, want = np.asarray(got), np.asarray(want)
    scale = max(float(np.abs(want).max(initial=0)), 1)
    error = 0.0
    if exact is not None:
        error = float(np.abs(want - np.asarray(exact)).max(initial=0))
        assert error <= 1e-3 * scale, f"one device is off by {error} of {scale}"
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * scale + 2 * error)


def in_float64(step, *arguments):
    """What the step gives in float64, which the CPU alone computes."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        wide = jax.tree.map(
            lambda leaf: np.asarray(leaf, np.float64 if leaf.dtype == np.float32 else None),
            arguments,
        )
        return jax.device_get(step(*wide))


def raises(text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except (TypeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")
