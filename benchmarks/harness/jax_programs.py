"""Compiled JAX functions as candidates, for jaxgnn and plain JAX alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.operations import Candidate


def compiled(function: Callable, *operands: Any, **fields: Any) -> Candidate:
    """A call of the compiled function with these operands; `fields` are the candidate's."""
    program = jax.jit(function).lower(*operands).compile()

    def repeated(steps: int) -> Callable[[], Any]:
        loop = jax.jit(repeat(function, steps)).lower(*operands).compile()
        return lambda: loop(*operands)

    return Candidate(
        lambda: program(*operands), peak_bytes=program_bytes(program), repeated=repeated, **fields
    )


def repeat(function: Callable, steps: int) -> Callable:
    """`steps` times `function(x, *operands)` in one program, each after the one before.

    A step's `x` is handed out together with the result of the step before: XLA can neither hoist
    the operation out of the loop nor drop one, and nothing is computed to that end.
    """

    def run(x, *operands):
        def step(_, carry):
            x = carry[0]
            return jax.lax.optimization_barrier((x, function(x, *operands)))

        # The count is known when this is compiled: XLA then enqueues step after step, where it
        # would else read the loop's condition on the host before each.
        return jax.lax.fori_loop(1, steps, step, step(0, (x,)))[1]

    return run


def pullback(function: Callable, at: Callable[[Any], Any] = jnp.zeros_like) -> Callable:
    """The gradient of `function` for `x` as a function of the cotangent, at `at(cotangent)`.

    Where a linear map is differentiated does not matter: unused results of the forward pass are
    not computed.
    """

    def gradient(cotangent, *operands):
        return jax.vjp(lambda x: function(x, *operands), at(cotangent))[1](cotangent)[0]

    return gradient


def call_seconds(call: Callable[[], Any], count: int, device: str) -> float:
    """The time of `count` calls; a GPU's stream runs what was enqueued in order."""
    start = time.perf_counter()
    for _ in range(count):
        result = call()
        if device == "cpu":
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return time.perf_counter() - start


def float32_rows(result: Any, rows: np.ndarray) -> np.ndarray:
    """These rows of a result on the host."""
    return np.asarray(result[jnp.asarray(rows)].astype(jnp.float32))


def program_bytes(program: Any) -> int | None:
    """Memory of a compiled function with its operands and results, as XLA accounts for it."""
    memory = program.memory_analysis()
    if memory is None:
        return None
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
