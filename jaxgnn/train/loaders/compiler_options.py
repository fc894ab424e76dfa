"""XLA's options for a program that runs many training steps on a GPU.

A step of a small batch is many short kernels. XLA records those that follow each other as a CUDA
graph (its "command buffer"), by default one after the other and without the loop around them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

# What XLA records by default: https://openxla.org/xla/flags_guidance
RECORDED = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"


def of_steps(*, counted: bool) -> dict[str, str | bool] | None:
    """For `jax.jit` or `Lowered.compile`; `None` where JAX has no GPU.

    Kernels that do not need each other's results may run at the same time.

    Args:
        counted: whether the number of steps is known when the program is compiled. XLA then
            enqueues them ahead. Else it would read the loop's condition on the host before each
            step, and the loop is recorded, too.
    """
    if jax.default_backend() != "gpu":
        return None
    options: dict[str, str | bool] = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
    if not counted:
        options["xla_gpu_enable_command_buffer"] = f"{RECORDED},CONDITIONAL,WHILE"
    return options


def jit_steps(function: Callable[..., Any], *, static_argnums: Any, counted: bool) -> Any:
    """`jax.jit` with these options, which are chosen in the first call."""

    @functools.cache
    def program() -> Any:
        options = of_steps(counted=counted)
        return jax.jit(function, static_argnums=static_argnums, compiler_options=options)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return program()(*arguments)

    return call
