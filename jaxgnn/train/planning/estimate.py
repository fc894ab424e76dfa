"""`jaxgnn info`: the memory and the time of a training step, before one is run.

Memory is XLA's own account of the compiled step. Time is a sum over kinds of work, each at a rate
that is measured on this machine when it is asked for: the step's matrix products by their shapes,
jaxgnn's kernels by edges and width, rows that XLA gathers and scatters by their number and width,
random numbers by their count, of links the draw of negatives as a whole, everything else by the
bytes that XLA counts for it, and memory that is new to the process, by its size: a CPU's allocator
returns large blocks after each step, and the next one's first touch of each page is a page fault.
Work is assumed not to overlap.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax

from jaxgnn.graph import Graph
from jaxgnn.ops import negative_edges
from jaxgnn.train.planning.kernel_rates import KINDS
from jaxgnn.train.planning.step_rates import Rates
from jaxgnn.train.planning.step_work import (
    compiled_dots,
    dot_bytes,
    merged,
    moved_rows,
    random_bits,
    weight_gradients,
    work,
)
from jaxgnn.train.problems.graph_problem import GraphTask
from jaxgnn.train.problems.graph_step import step_on_first_batch
from jaxgnn.train.problems.links import LinkTask
from jaxgnn.train.steps.step import TrainState, no_loss


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a training step takes.

    Attributes:
        peak_bytes: at the step's peak, with all that it reads and returns; 0 where XLA gives no
            account.
        argument_bytes: of these the graph, features, labels, parameters and optimizer states.
        seconds: of a step, as the sum of the next ones.
        products, kernels, moved, random, negatives, rest, pages: seconds of matrix products, of
            kernels over edges, of rows that XLA gathers and scatters, of random numbers, of links'
            negatives, of all else, and of first touches of temporary memory.
        unknown: kernels over edges that were counted as products of as many edges and columns.
    """

    peak_bytes: int
    argument_bytes: int
    products: float
    kernels: float
    moved: float
    random: float
    negatives: float
    rest: float
    pages: float
    unknown: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The sum of the parts."""
        arithmetic = self.products + self.kernels + self.random + self.negatives
        return arithmetic + self.moved + self.rest + self.pages


def one_step(program: Any, state: TrainState, task: Any) -> tuple[Any, tuple[Any, ...], Graph]:
    """A function of one step, what it is called with, and the graph that it aggregates: the whole
    one, of a set of graphs a batch's union."""
    if isinstance(task, GraphTask):
        return step_on_first_batch(program, state, task)
    if program.batches is None:
        return program.step, (state, task), task.graph
    step = functools.partial(program.step_on_batches, 1)
    return step, (state, no_loss(task), task), task.whole_graph


def estimate(
    program: Any,
    state: TrainState,
    task: Any,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Estimate:
    """The memory and time of one step: on the whole graph, or on one mini-batch.

    The step is compiled, but not run; rates are measured, for a few tenths of a second each.

    Args:
        program, state, task: as a run's problem builds them: of nodes, links or graphs.
        clock: what rates are measured with: `time.process_time` has the processor time of all
            threads, which on a CPU does not depend on what else the machine does.
    """
    function, operands, graph = one_step(program, state, task)
    traced = jax.jit(function, donate_argnums=0).trace(*operands)
    lowered = traced.lower()
    compiled = lowered.compile()
    text = compiled.as_text() or ""
    dots, calls, known = work(lowered.as_text(), graph.num_edges)
    dots = (compiled_dots(text) or dots) + weight_gradients(lowered.as_text())
    moves = moved_rows(text)
    known += sum(dot_bytes(dot) * count for dot, count in dots.items())
    known += sum(move.nbytes * count for move, count in moves.items())
    bits = sum(random_bits(traced.jaxpr.jaxpr))
    rates = Rates(graph, clock)
    negatives = 0.0
    if isinstance(task, LinkTask):
        drawn = functools.partial(negative_edges, num=task.senders.shape[0], method=task.negatives)
        key = jax.random.key(0)
        negatives = rates.of(lambda graph, key: drawn(graph, key=key), task.known, key)
        bits -= sum(random_bits(jax.make_jaxpr(lambda key: drawn(task.known, key=key))(key).jaxpr))
    arguments = peak = temporary = 0
    memory = compiled.memory_analysis()
    if memory is not None:
        temporary = memory.temp_size_in_bytes
        arguments = memory.argument_size_in_bytes
        peak = arguments + memory.output_size_in_bytes + temporary
        peak -= memory.alias_size_in_bytes  # what was donated has been counted
    accessed = (compiled.cost_analysis() or {}).get("bytes accessed", 0.0)
    return Estimate(
        peak_bytes=peak,
        argument_bytes=arguments,
        products=rates.products(dots),
        kernels=sum(n * call.items * rates.item(call) for call, n in merged(calls, text).items()),
        moved=rates.moved(moves),
        random=bits * rates.random if bits else 0.0,
        negatives=negatives,
        rest=max(accessed - known, 0.0) * rates.byte,
        pages=rates.pages(temporary),
        unknown=tuple(sorted({call.name for call in calls if call.name not in KINDS})),
    )
