"""Arrays that are to be written."""

from __future__ import annotations

from jaxtyping import Array

from jaxgnn._core import ffi
from jaxgnn._core.dispatch import dispatch

_TARGET = "jaxgnn_uninitialized"


def uninitialized(shape: tuple[int, int], like: Array) -> Array:
    """A matrix all of which the caller writes, of the dtype of the matrix `like`.

    What is in it is unknown where a kernel serves the platform, else zeros: XLA's own `empty` is a
    pass that writes zeros. It varies over manual mesh axes as `like`. Has no derivative.
    """

    def kernel(like: Array) -> Array:
        return ffi.call(_TARGET, [like], [(shape, like.dtype)])[0]

    def zeros(like: Array) -> Array:
        return ffi.zeros(shape, like.dtype, like)

    return dispatch((_TARGET,), kernel, zeros, like, platforms=("cuda",))
