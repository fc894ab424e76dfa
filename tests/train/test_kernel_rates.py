"""The operations by which `jaxgnn info` measures a kernel call the same kernel in the same way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import build_info, maxk
from jaxgnn._core import ffi, platform
from jaxgnn.graph import Graph
from jaxgnn.ops import (
    cosine_attention,
    dot_attention,
    gat_attention,
    gatv2_attention,
    gaussian_spmm,
    spmm,
)
from jaxgnn.ops._attention import cosine_rule
from jaxgnn.train.planning.kernel_rates import KINDS, Call, seconds_of_item
from jaxgnn.train.planning.step_work import work

# A GPU has a sparse forward kernel up to an eighth of the width.
NODES, EDGES, HEADS, WIDTH, K = 20, 60, 2, 8, 1

pytestmark = pytest.mark.skipif(not build_info().cpu, reason="kernels of the CPU module")


@pytest.fixture(scope="module")
def graph():
    return Graph.from_edges(
        *np.random.default_rng(0).integers(NODES, size=(2, EDGES)), num_nodes=NODES
    )


HEADED = jnp.ones((NODES, HEADS, WIDTH))
ROWS, SCORES, VECTOR = jnp.ones((NODES, WIDTH)), HEADED[..., 0], HEADED[0]
MU, ENDS = jnp.ones((3, 2)), jnp.ones((NODES, 2))
DROP = {"dropout_rate": 0.25, "dropout_rng": jax.random.key(0)}
OPERATIONS = {
    "extremum": (lambda g, x: spmm(g, x, reduce="max"), (ROWS,)),
    "gat": (lambda g, *a: gat_attention(g, *a, **DROP, self_loops=True), (HEADED, SCORES, SCORES)),
    "sparse": (lambda g, x, *a: gat_attention(g, maxk(x, K), *a), (HEADED, SCORES, SCORES)),
    "dot": (lambda g, *a: dot_attention(g, *a, **DROP), (HEADED, HEADED, HEADED)),
    "gatv2": (lambda g, *a: gatv2_attention(g, *a, self_loops=True), (HEADED, HEADED, VECTOR)),
    "cosine": (lambda g, *a: cosine_attention(g, *a, self_loops=True), (HEADED,)),
    "gaussian": (
        lambda g, x, m, s, u, v: gaussian_spmm(g, x, m, s, (u, v), activation="tanh"),
        (jnp.ones((NODES, 3, WIDTH)), MU, MU, ENDS, ENDS),
    ),
}


def calls_of(function, *operands):
    text = jax.jit(function).lower(*operands).as_text()
    calls = work(text, EDGES)[1]
    return {call: count for call, count in calls.items() if call.name in KINDS}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_measured_program_has_the_call_that_it_is_measured_for(graph, name):
    operation, operands = OPERATIONS[name]

    def gradients(graph, *operands):
        out, pull = jax.vjp(lambda *a: operation(graph, *a), *operands)
        return pull(out)

    found = [
        call
        for call in calls_of(gradients, graph, *operands)
        if call.name not in ("maxk", "sddmm", "spmm")
    ]
    assert len({call.name for call in found}) >= 2  # there and back
    for call in found:
        measured: list[Call] = []

        def seconds_of(function, *operands):
            calls = calls_of(function, *operands)
            measured.extend(calls)  # noqa: B023
            # A second for each kernel of its kind, none for others.
            kind = KINDS[call.name]  # noqa: B023
            return float(sum(count for c, count in calls.items() if KINDS[c.name] == kind))

        each = seconds_of_item(seconds_of, graph, call)
        assert call in measured
        assert each * call.items == pytest.approx(1)


@pytest.mark.parametrize("name", ["gat", "cosine", "gaussian"])
def test_chunks_of_long_rows_are_no_wider_rows(name):
    """Their partial results have columns for the sums of weights."""
    senders = np.arange(1000) % NODES
    hub = Graph.from_edges(senders, np.zeros_like(senders), num_nodes=NODES)
    assert hub.row_chunks.table.shape[0] > 1
    forward, operands = OPERATIONS[name]
    (call,) = calls_of(forward, hub, *operands)
    assert call.width == operands[0].size // NODES


def test_a_gpu_s_kernel_of_cosines_in_16_bits_is_read(monkeypatch):
    """By rows: with chunks of a long row, which are no wider rows."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)
    monkeypatch.setitem(ffi.targets, "cuda", set(cosine_rule.TARGETS))
    senders = np.arange(3000) % NODES
    hub = Graph.from_edges(senders, np.zeros_like(senders), num_nodes=NODES)
    for graph in (hub, hub.with_row_schedule()):
        traced = jax.jit(OPERATIONS["cosine"][0]).trace(graph, jnp.ones((NODES, 2, 64), "bfloat16"))
        found = work(traced.lower(lowering_platforms=("cuda",)).as_text(), 3000)[1]
        (call,) = (call for call in found if call.name in KINDS)
        expected = Call("tiles_cosine_attention", 3000 + NODES, 128, "bf16", 2)
        assert call == expected._replace(self_loops=True)
        assert KINDS[call.name] == "cosine"


def test_options_of_a_call_are_read(graph):
    forward, operands = OPERATIONS["gat"]
    (call,) = calls_of(forward, graph, *operands)
    expected = Call("gat_attention", EDGES + NODES, HEADS * WIDTH, "f32", HEADS)
    assert call == expected._replace(dropout=0.25, self_loops=True)
    forward, operands = OPERATIONS["sparse"]
    (call,) = (call for call in calls_of(forward, graph, *operands) if call.name != "maxk")
    assert call == Call("sparse_attention", EDGES, HEADS * WIDTH, "f32", HEADS, kept=K)
    forward, operands = OPERATIONS["gatv2"]
    (call,) = calls_of(forward, graph, *operands)
    assert (call.variant, call.more, call.self_loops) == ("gatv2", HEADS, True)
    forward, operands = OPERATIONS["gaussian"]
    (call,) = calls_of(forward, graph, *operands)
    assert call == Call("gaussian_spmm", EDGES, 3 * WIDTH, "f32", 3, kept=2)
