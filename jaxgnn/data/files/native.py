"""The compiled module, for the parts of `jaxgnn.data` that cannot do without."""

from __future__ import annotations

from typing import Any

from jaxgnn.data.files.limits import DataError


def native_module(what: str) -> Any:
    """`jaxgnn._cpu`.

    Raises:
        DataError: it is not built.
    """
    from jaxgnn._core import ffi, platform

    if ffi.cpu_module is None:
        raise DataError(f"{what} need jaxgnn._cpu, which is not built: {platform.build_info()}")
    return ffi.cpu_module
