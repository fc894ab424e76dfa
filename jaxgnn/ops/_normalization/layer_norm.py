r"""Layer normalization, which XLA's CPU backend takes many passes for, and a kernel one.

$y = s \, n(x) + b$ with the normalized row $n(x) = (x - \mathrm{mean}(x)) / \sqrt{\mathrm{var}(x) +
\varepsilon}$. The transpose by a kernel reads $x$ and the gradient $g$ of $y$ once each: with
$t = s \, g$,

$$\bar x = \frac{t - \mathrm{mean}(t) - n(x) \, \mathrm{mean}(t \, n(x))}{\sqrt{\mathrm{var}(x) +
\varepsilon}}, \qquad \bar s = \sum_i g_i \, n(x_i), \qquad \bar b = \sum_i g_i$$

On a GPU XLA's own fusions are as good. All derivatives are those of `by_jax`, of which the kernels
compute two.
"""

from __future__ import annotations

import functools
import math

from jaxtyping import Array, Float

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.known_gradients import KnownGradients, gradients_by_jax
from jaxgnn.ops._core.normalize import normalize
from jaxgnn.ops._normalization.on_cpu import on_cpu, two_sums


def layer_norm(
    epsilon: float,
    x: Float[Array, "*rows width"],
    scale: Float[Array, " width"],
    bias: Float[Array, " width"],
) -> Float[Array, "*rows width"]:
    """The rows normalized, in float32 (float64 for float64), and rounded once to the dtype of `x`.

    Args:
        epsilon: added to the variance.
        x: rows, along any number of axes.
        scale, bias: of the features, in any floating dtype.
    """
    accumulator = accumulation_dtype(x.dtype)
    operands = x, scale.astype(accumulator), bias.astype(accumulator)
    if x.size == 0:
        return by_jax(epsilon, *operands)
    rows, scale, bias = ffi.unify_varying(*operands)
    rows = rows.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _layer_norm(epsilon, None, None, rows, scale, bias).reshape(x.shape)


def by_jax(
    epsilon: float,
    x: Float[Array, "*rows width"],
    scale: Float[Array, " width"],
    bias: Float[Array, " width"],
) -> Float[Array, "*rows width"]:
    """The same, of a scale and a bias in the accumulation dtype."""
    of_features = (1,) * (x.ndim - 1) + scale.shape
    normalized = normalize(epsilon, x, scale)
    return (normalized + bias.reshape(of_features)).astype(x.dtype)


def _function(epsilon, fixed, x, scale, bias):
    del fixed
    return by_jax(epsilon, x, scale, bias)


def _value(epsilon, known, fixed, x, scale, bias):
    del known, fixed

    def kernel(x, scale, bias):
        results = [(x.shape, x.dtype)]
        return ffi.call("jaxgnn_layer_norm", [x, scale, bias], results, epsilon=epsilon)[0]

    otherwise = functools.partial(by_jax, epsilon)
    return on_cpu("jaxgnn_layer_norm", kernel, otherwise, x, scale, bias)


def _gradients(epsilon, fixed, gradient, x, scale, bias):
    """The gradients of the rows, the scale and the bias, by that of the result."""
    rows, width = x.shape

    def kernel(gradient, x, scale, bias):
        del bias
        results = [(x.shape, x.dtype), *two_sums(rows, width, scale.dtype)]
        dx, sums, _ = ffi.call(
            "jaxgnn_layer_norm_gradient", [x, scale, gradient], results, epsilon=epsilon
        )
        return dx, sums[0], sums[1]

    otherwise = functools.partial(gradients_by_jax, _function, epsilon, fixed)
    return on_cpu("jaxgnn_layer_norm_gradient", kernel, otherwise, gradient, x, scale, bias)


_layer_norm = KnownGradients(_function, _value, _gradients)
