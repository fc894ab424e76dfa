"""What this installation has: its kernels, and which platforms they serve."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from pathlib import Path
from typing import Any, Literal

import jax

from jaxgnn import config
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
        cuda_error: why not, or why they cannot run on this GPU with this driver.
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
        cuda_error=why_not("cuda"),
        cuda_architectures=None if ffi.cuda_module is None else ffi.cuda_module.architectures(),
        jax=jax.__version__,
        jaxlib=importlib.metadata.version("jaxlib"),
    )


def include_dir() -> str:
    """The directory with the C++ headers that an operation outside of jaxgnn may include.

    `common/rows.h`, `ffi/check.h`, `cpu/core/parallel.h` and `cuda/core/rows.cuh`, with what they
    include; XLA's headers are in `jax.ffi.include_dir()`.

    Raises:
        RuntimeError: this installation has none.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "include", package.parent):  # a wheel's, or a checkout
        if (folder / "common" / "rows.h").is_file():
            return str(folder)
    raise RuntimeError(f"include_dir: expected headers in {package / 'include'}, got none")


@functools.cache
def _cuda_problem() -> str | None:
    """Why the CUDA module cannot run on this machine's GPU with its driver, or `None`."""
    return None if ffi.cuda_module is None else ffi.cuda_module.why_not() or None


def why_not(platform: str) -> str | None:
    """Why a platform, by the name that JAX lowers for, has no kernels; `None` if it has."""
    if platform == "cpu":
        return None if ffi.cpu_module is not None else ffi.cpu_error or "not built"
    if platform == "cuda":
        if ffi.cuda_module is None:
            return ffi.cuda_error or "not built"
        return _cuda_problem()
    return "jaxgnn has kernels for CPUs and for NVIDIA GPUs"


def serves(platform: str, *targets: str) -> bool:
    """Whether a platform, by the name that JAX lowers for, has these targets' kernels."""
    registered = ffi.targets.get(platform, set())
    return why_not(platform) is None and registered.issuperset(targets)


def of_device(device: Any = None) -> str:
    """The platform of a device, or of the default one, by the name that JAX lowers for."""
    name = jax.default_backend() if device is None else device.platform
    return "cuda" if name == "gpu" else name


def kernels_available(*targets: str) -> bool:
    """Whether the platform that JAX computes on by default has our kernels, `targets` among them.

    For reports: which implementation runs is decided at lowering (`_core.dispatch`).
    """
    return serves(of_device(), *targets)


def chosen(impl: Impl) -> Impl:
    """The `impl` that an operation was given, else the setting `jaxgnn.config.impl`.

    Raises:
        ValueError: not one of `None`, `"kernel"`, `"jax"`.
    """
    if impl not in (None, "kernel", "jax"):
        raise ValueError(f"impl: expected None, 'kernel' or 'jax', got {impl!r}")
    return config.impl if impl is None else impl
