"""What tests of layer and of batch normalization share."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def assert_near(actual, expected, unit):
    """Within 16 units of the largest number, or of 1."""
    expected = np.asarray(expected, np.float64)
    size = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=16 * unit * size)


def assert_modules_agree(ours, theirs, x, units):
    """Results and all gradients of two modules with the same parameters."""
    assert jax.tree.structure(nnx.state(ours)) == jax.tree.structure(nnx.state(theirs))

    def both(module):
        def loss(module, x):
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                out = module(x)  # Flax's relies on both
            return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

        return nnx.grad(loss, argnums=(0, 1), has_aux=True)(module, x)

    found, expected = both(ours), both(theirs)
    unit = float(jnp.finfo(found[1].dtype).eps)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert_near(one, other, units * unit)


def assert_maps_over_examples(norm, x, scale, bias, rtol):
    """`vmap` over rows, over scales, and over both, forward and with all gradients."""

    def f(x, scale):
        out, pullback = jax.vjp(norm, x, scale, bias)
        return out, pullback(jnp.cos(out))

    scales = jnp.stack([scale, 2 * scale, -scale])
    for axes, arguments in (((0, None), (x, scale)), ((None, 0), (x[0], scales)), (0, (x, scales))):
        results = jax.jit(jax.vmap(f, axes))(*arguments)
        for i in range(3):
            alone = f(
                x[i] if arguments[0] is x else x[0], arguments[1][i] if axes != (0, None) else scale
            )
            for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(alone), strict=True):
                np.testing.assert_allclose(one[i], other, rtol=rtol, atol=1e-5)
