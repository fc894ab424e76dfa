"""The windows of a graph's parts."""

import jax
import numpy as np

from jaxgnn import distributed
from jaxgnn.graph._layouts import windows as _windows
from tests.support.window_products import hubs


def test_parts_take_the_receivers_in_the_order_of_the_graph_s_windows(monkeypatch):
    """The host groups receivers once: a part's windows are built from what it found."""
    module, ordered = _windows.host_module("with_windows"), []

    class Recorded:
        def build_windows(self, *arguments):
            ordered.append(arguments[-1])
            return module.build_windows(*arguments)

    monkeypatch.setattr(_windows, "host_module", lambda _: Recorded())
    graph = hubs()
    assert graph.windows is not None
    sharded = distributed.shard(graph, jax.make_mesh((1,), ("x",)), rows="x")
    (of_graph, of_part) = ordered
    assert of_graph is None
    # All nodes are the part's, in their order; behind them come rows of padding.
    np.testing.assert_array_equal(of_part[: graph.num_nodes], graph.windows.order)
    windows = sharded.graph.windows
    assert windows is not None and windows.senders.shape[1] == graph.windows.senders.size
