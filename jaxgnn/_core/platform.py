"""Which implementation runs: a kernel where the platform has one, else the JAX reference."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Literal

import jax

from jaxgnn._core import ffi

Impl = Literal["kernel", "jax"] | None


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """What this installation consists of; see `jaxgnn.build_info`.

    Attributes:
        cpu: whether the CPU kernels are loaded.
        cpu_error: why not.
        cpu_isa: the instruction set that the CPU kernels chose.
        cuda: whether the CUDA kernels are loaded.
        cuda_error: why not.
        cuda_architectures: the GPU architectures they were compiled for.
        jax, jaxlib: versions.
    """

    cpu: bool
    cpu_error: str | None
    cpu_isa: str | None
    cuda: bool
    cuda_error: str | None
    cuda_architectures: str | None
    jax: str
    jaxlib: str


def build_info() -> BuildInfo:
    """The build: which kernel modules are loaded, why one is not, versions."""
    return BuildInfo(
        cpu=ffi.cpu_module is not None,
        cpu_error=ffi.cpu_error,
        cpu_isa=None if ffi.cpu_module is None else ffi.cpu_module.isa(),
        cuda=ffi.cuda_module is not None,
        cuda_error=ffi.cuda_error,
        cuda_architectures=None if ffi.cuda_module is None else ffi.cuda_module.architectures(),
        jax=jax.__version__,
        jaxlib=importlib.metadata.version("jaxlib"),
    )


def kernels_available(*targets: str) -> bool:
    """Whether the platform that JAX computes on by default has our kernels, `targets` among them.

    Decided when a function is traced: XLA then picks the target registered for the platform
    that it compiles for. A GPU without the CUDA module, and a TPU, run the JAX reference.
    """
    platform = jax.default_backend()
    if platform == "cpu":
        return ffi.cpu_module is not None and ffi.targets["cpu"].issuperset(targets)
    if platform in ("gpu", "cuda"):
        loaded = ffi.cuda_module is not None and ffi.cpu_module is not None
        return loaded and ffi.targets["CUDA"].issuperset(targets)
    return False


def use_kernel(impl: Impl, *targets: str) -> bool:
    """Resolves an operation's `impl` argument; `targets` are those that it is going to call.

    Raises:
        ValueError: not one of `None`, `"kernel"`, `"jax"`.
        RuntimeError: `"kernel"` where this platform has none.
    """
    if impl is None:
        return kernels_available(*targets)
    if impl == "jax":
        return False
    if impl != "kernel":
        raise ValueError(f"impl: expected None, 'kernel' or 'jax', got {impl!r}")
    if not kernels_available(*targets):
        raise RuntimeError(
            f"impl='kernel': jaxgnn has no kernels for the platform {jax.default_backend()!r} "
            f"(_cpu: {ffi.cpu_error or 'loaded'}; _cuda: {ffi.cuda_error or 'loaded'})"
        )
    return True
