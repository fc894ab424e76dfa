"""XLA's options for programs of many steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxgnn.train.loaders.compiler_options import jit_steps, of_steps


def total(count: int, x: jax.Array, end: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, end, lambda i, found: found + count * i, x)


@pytest.mark.parametrize("counted", [False, True])
def test_options_are_those_that_xla_knows(monkeypatch, counted):
    # XLA checks the names and values of a GPU's options on a CPU, too.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    options = of_steps(counted=counted)
    assert options is not None
    program = jit_steps(total, static_argnums=0, counted=counted)
    assert program(2, jnp.float32(1), jnp.int32(4)) == 13
    with pytest.raises(Exception, match=r"(?i)such|option"):
        jax.jit(total, static_argnums=0, compiler_options=options | {"xla_gpu_unknown": "1"})(
            2, jnp.float32(1), jnp.int32(4)
        )


def test_only_a_gpu_has_some():
    assert (of_steps(counted=True) is None) == (jax.default_backend() != "gpu")
