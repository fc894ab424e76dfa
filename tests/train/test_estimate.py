"""What `jaxgnn info` says of a step's memory and time: the counts, and how rates become seconds."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import build_info
from jaxgnn.data import NodeDataset, Split
from jaxgnn.graph import Graph
from jaxgnn.ops._projection.project import project
from jaxgnn.train import TrainConfig, build, lower
from jaxgnn.train.planning.estimate import estimate
from jaxgnn.train.planning.kernel_rates import Call, Tensor
from jaxgnn.train.planning.step_rates import Rates
from jaxgnn.train.planning.step_work import (
    Dot,
    compiled_dots,
    merged,
    random_bits,
    weight_gradients,
    work,
)
from jaxgnn.train.problems.node_problem import make_task
from jaxgnn_cli import main

NODES, FEATURES, CLASSES, HIDDEN, K = 50, 12, 3, 16, 4


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*rng.integers(NODES, size=(2, 200)), num_nodes=NODES)
    part = np.arange(NODES) % 4
    return NodeDataset(
        "random",
        graph,
        rng.standard_normal((NODES, FEATURES)).astype(np.float32),
        rng.integers(CLASSES, size=NODES).astype(np.int32),
        CLASSES,
        {"one": Split(part < 2, part == 2, part == 3)},
    )


def built(dataset, **options):
    config = TrainConfig(dataset="random", hidden=HIDDEN, **options).check()
    task = make_task(config, dataset, dataset.split())
    return *build(config, task), task


def ticking():
    """A clock on which every measurement takes one second."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU's are XLA's products")
def test_weight_gradients_by_a_kernel_are_products():
    def loss(kernel, x):
        return jnp.sum(project(x, kernel) ** 2)

    kernel, x = jnp.ones((FEATURES, HIDDEN)), jnp.ones((1000, FEATURES))
    text = jax.jit(jax.grad(loss)).lower(kernel, x).as_text()
    shapes = (1000, FEATURES), (1000, HIDDEN), (FEATURES, HIDDEN)
    left, right, out = (Tensor(shape, "f32") for shape in shapes)
    dot = Dot(left, right, (0, 0), out)
    assert weight_gradients(text) == ({dot: 1} if build_info().cpu else {})
    # Measured by the kernel, one call.
    rates = Rates(Graph.from_edges([], [], num_nodes=1), ticking())
    assert rates.products(Counter({dot: 1})) == 1


def test_a_step_s_work_is_counted_and_takes_what_its_rates_say(dataset):
    program, state, task = built(dataset, model="sage", activation="maxk", k=K, norm="layer")
    step, _, _ = lower(program, state, task)
    text = step.as_text()
    dots, calls, _ = work(text, 0)
    assert dots.total() == text.count("stablehlo.dot_general") == 10
    assert dots[Dot(Tensor((NODES, FEATURES), "f32"), Tensor((FEATURES, HIDDEN), "f32"), (1, 0),
                    Tensor((NODES, HIDDEN), "f32"))] == 2  # fmt: skip
    guess = estimate(program, state, task, clock=ticking())
    # Dropout of what MaxK keeps of the one hidden layer: drawn once for forward and backward pass.
    mask = Call("dropout_mask", NODES, 1, "ui32")
    assert guess.random == 0 and calls[mask] == (2 if build_info().cpu else 0)
    assert guess.products == 1 and guess.rest > 0
    held = sum(
        leaf.nbytes
        for leaf in jax.tree.leaves((state.params, state.optimizer, task.features, task.graph))
    )
    assert held < guess.argument_bytes < guess.peak_bytes < 100 * held
    if jax.default_backend() != "cpu" or not calls:
        return
    edges = dataset.graph.num_edges
    kept = [call for call in calls if call.name.startswith("maxk_s")]
    assert Counter(call.name for call in kept) == {"maxk_spmm": 1, "maxk_sspmm": 1}
    assert all(call == Call(call.name, edges, K, "f32") for call in kept)
    assert calls[Call("maxk", NODES, K, "f32", HIDDEN)] == text.count("@jaxgnn_maxk(")
    # Each call is over all edges or rows, and so takes as long as the one that is measured.
    assert guess.kernels == pytest.approx(calls.total() - 1) and not guess.unknown
    assert guess.negatives == 0
    assert guess.seconds == pytest.approx(
        1 + calls.total() - 1 + guess.moved + guess.rest + guess.pages
    )


def test_a_mini_batch_is_one_step_of_fewer_edges(dataset):
    whole = built(dataset, model="gcn")
    program, state, task = built(dataset, model="gcn", num_neighbors="2,2", batch_size=4)
    guess = estimate(program, state, task, clock=ticking())
    calls = work(jax.jit(whole[0].step).lower(*whole[1:]).as_text(), 0)[1]
    assert 0 < guess.kernels < calls.total() or not calls
    assert guess.products == 1 and guess.peak_bytes > guess.argument_bytes


def test_compiled_products_have_the_layouts_that_xla_chose():
    text = """%p = f32[8,4]{1,0} parameter(0)
      %add_fusion = bf16[8,6]{1,0} fusion(%p), kind=kLoop, calls=%f
      %q = bf16[8,4]{1,0} parameter(1)
      ROOT %dot.1 = bf16[4,6]{1,0} dot(%q, %add_fusion), lhs_contracting_dims={0}, \
rhs_contracting_dims={0}, metadata={op_name="x"}
      %dot.2 = f32[2,8,8]{2,1,0} dot(%p, %p), lhs_batch_dims={0}, lhs_contracting_dims={1}, \
rhs_batch_dims={0}, rhs_contracting_dims={1}
    """
    left, right, out = (Tensor(shape, "bf16") for shape in ((8, 4), (8, 6), (4, 6)))
    assert compiled_dots(text) == {Dot(left, right, (0, 0), out): 1}
    compiled = jax.jit(lambda a, b: a @ b).lower(jnp.ones((70, 40)), jnp.ones((40, 90))).compile()
    found = compiled_dots(compiled.as_text())
    assert not found or [dot.out.shape for dot in found] == [(70, 90)]


def test_calls_that_xla_makes_one_of_count_once(dataset):
    program, state, task = built(dataset, model="agnn")
    lowered = jax.jit(program.step).lower(state, task)
    calls = work(lowered.as_text(), 0)[1]
    text = lowered.compile().as_text() or ""
    found = merged(calls, text)
    for name in {call.name for call in calls}:
        kept = text.count(f'custom_call_target="jaxgnn_{name}"')
        counts = [count for call, count in found.items() if call.name == name]
        assert sum(counts) == pytest.approx(kept)
    call = Call("spmm", 5, 4, "f32")
    twice = 'custom_call_target="jaxgnn_spmm"\n' * 2
    assert merged(Counter({call: 4}), twice) == {call: 2}
    assert merged(Counter({call: 4}), "") == {call: 4}  # a program without names


def test_a_kernel_over_windows_is_over_all_edges():
    row = """%0:2 = stablehlo.custom_call @jaxgnn_maxk_sspmm_windows(%a, %b, %c) {api = 4} : \
(tensor<9x3xi32>, tensor<7xi64>, tensor<50x16xf32>, tensor<50x4xui8>) -> \
(tensor<50x4xf32>, tensor<5xui32>)"""
    _, calls, nbytes = work(row, 200)
    assert calls == {Call("maxk_sspmm_windows", 200, 4, "f32"): 1}
    assert nbytes == 9 * 3 * 4 + 7 * 8 + 50 * (16 * 4 + 4 + 4 * 4) + 5 * 4
    scatter = row.replace("maxk_sspmm_windows", "cbsr_scatter")
    assert work(scatter, 200)[1:] == ({}, 0)  # it counts by its bytes


def test_rates_are_measured_once_each_and_long_products_in_part(dataset):
    rates = Rates(dataset.graph, ticking())
    edges = dataset.graph.num_edges
    call = Call("gat_attention_senders", 7, 8, "f32", 2)
    assert rates.item(call) == 0  # its gradient took no longer than the operation itself
    assert rates.item(Call("sddmm", 7, 8, "f32")) == rates.item(Call("spmm", 9, 8, "f32"))
    assert rates.item(Call("spmm", 9, 8, "f32")) == pytest.approx(1 / edges)
    assert Rates(Graph.from_edges([], [], num_nodes=3), ticking()).item(call) == 0
    # Of 8 KB the fill takes a second, less the time of as many bytes; of more than 64 MB a part.
    assert rates.pages(8192) == pytest.approx(1 - 8192 * rates.byte)
    assert rates.pages(0) == rates.pages(1 << 28) == 0  # here these bytes take longer than a second
    rates.byte = 0.0
    assert rates.pages(1 << 28) == pytest.approx(4)
    rows = 3 << 14
    long = Dot(Tensor((rows, 2), "f32"), Tensor((2, 2), "f32"), (1, 0), Tensor((rows, 2), "f32"))
    small = Dot(Tensor((5, 2), "f32"), Tensor((2, 2), "f32"), (1, 0), Tensor((5, 2), "f32"))
    assert rates.products(Counter({long: 2, small: 1})) == 3 + 1
    key = jax.random.key(0)
    traced = jax.make_jaxpr(jax.jit(lambda key: jax.random.bernoulli(key, 0.5, (6, 7))))(key)
    assert sum(random_bits(traced.jaxpr)) == 42


def test_info_has_the_estimate(capsys):
    assert main(["info", "digits", "--model", "mlp", "--hidden", "8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "memory of a step" in text and "a step (estimate)" in text and "kernels" in text
