"""cuSPARSE's sparse-dense product through its C interface, one algorithm at a time.

`torch.sparse` and JAX take the default algorithm only; the best one is the honest baseline.
The matrices are torch tensors on the GPU; all dense ones are row-major.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import sys
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p

import torch

# cusparseSpMMAlg_t, those for CSR.
ALGORITHMS = {"default": 0, "csr_alg1": 4, "csr_alg2": 6, "csr_alg3": 12}

_VALUE_TYPE = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType
_COMPUTE_FLOAT32 = 0
_INDEX_32 = 2
_BASE_ZERO = 0
_NON_TRANSPOSE = 0
_TRANSPOSE = 1
_DEFAULT_ALGORITHM = 0  # the only one of cusparseSDDMM
_ROW_MAJOR = 2


def _load() -> ctypes.CDLL:
    """The library that torch has loaded, else one among the packages or of the toolkit."""
    places = (*(f"{folder}/nvidia/*/lib" for folder in sys.path), "/usr/local/cuda/lib64")
    found = [path for place in places for path in sorted(glob.glob(f"{place}/libcusparse.so.*"))]
    for name in ("libcusparse.so.12", "libcusparse.so.13", "libcusparse.so", *found):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError("libcusparse: found neither in the process nor beside the CUDA packages")


class CuSparse:
    """A handle of the library on torch's current stream."""

    def __init__(self) -> None:
        self.library = _load()
        self.handle = c_void_p()
        self.call("cusparseCreate", byref(self.handle))
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("cusparseSetStream", self.handle, stream)

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self.library, name)
        function.restype = c_int
        status = function(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with status {status}")


class _Call:
    """A prepared call of one CSR matrix and two dense ones; calling it enqueues one."""

    def __init__(
        self,
        cusparse: CuSparse,
        csr: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        dense: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        rows, columns, values = csr
        if not all(x.is_contiguous() for x in dense) or rows.dtype != torch.int32:
            raise ValueError("expected contiguous dense rows, and int32 row offsets")
        self._cusparse = cusparse
        self._value_type = _VALUE_TYPE[dense[0].dtype]
        self._matrix, self._dense = c_void_p(), (c_void_p(), c_void_p())
        nodes = rows.numel() - 1  # the matrices are square
        cusparse.call(
            "cusparseCreateCsr",
            byref(self._matrix),
            *map(c_int64, (nodes, nodes, columns.numel())),
            *(c_void_p(array.data_ptr()) for array in csr),
            *map(c_int, (_INDEX_32, _INDEX_32, _BASE_ZERO, _VALUE_TYPE[values.dtype])),
        )
        for descriptor, x in zip(self._dense, dense, strict=True):
            height, width = x.shape
            cusparse.call(
                "cusparseCreateDnMat",
                byref(descriptor),
                *map(c_int64, (height, width, width)),
                c_void_p(x.data_ptr()),
                *map(c_int, (self._value_type, _ROW_MAJOR)),
            )
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def _prepare(self, name: str, arguments: tuple, device: torch.device) -> None:
        """The buffer and the preprocessing of `cusparse` + `name`, untimed."""
        self._name, self._arguments, size = f"cusparse{name}", arguments, c_size_t()
        self._cusparse.call(f"{self._name}_bufferSize", *arguments, byref(size))
        self._buffer = torch.empty(max(size.value, 1), dtype=torch.uint8, device=device)
        self._pointer = c_void_p(self._buffer.data_ptr())
        self._cusparse.call(f"{self._name}_preprocess", *arguments, self._pointer)
        self._function = getattr(self._cusparse.library, self._name)

    def _run(self) -> None:
        status = self._function(*self._arguments, self._pointer)
        if status != 0:
            raise RuntimeError(f"{self._name} failed with status {status}")

    def close(self) -> None:
        """Frees the descriptors; the tensors go with the object."""
        self._cusparse.call("cusparseDestroySpMat", self._matrix)
        for descriptor in self._dense:
            self._cusparse.call("cusparseDestroyDnMat", descriptor)


class Product(_Call):
    """A prepared product `out = A x`."""

    def __init__(
        self,
        cusparse: CuSparse,
        row_offsets: torch.Tensor,
        columns: torch.Tensor,
        values: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        algorithm: str,
    ) -> None:
        csr = (row_offsets, columns, values)
        super().__init__(cusparse, csr, (x, out))
        self._keep = (*csr, x)
        self.out = out
        arguments = (
            cusparse.handle,
            c_int(_NON_TRANSPOSE),
            c_int(_NON_TRANSPOSE),
            byref(self._one),
            self._matrix,
            self._dense[0],
            byref(self._zero),
            self._dense[1],
            c_int(_COMPUTE_FLOAT32),
            c_int(ALGORITHMS[algorithm]),
        )
        self._prepare("SpMM", arguments, x.device)

    def __call__(self) -> torch.Tensor:
        self._run()
        return self.out

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The product with another matrix of the same shape, in memory of its own."""
        x = x.contiguous()
        self.out, self._keep = torch.empty_like(x), self._keep[:3]
        for descriptor, dense in zip(self._dense, (x, self.out), strict=True):
            pointer = c_void_p(dense.data_ptr())
            self._cusparse.call("cusparseDnMatSetValues", descriptor, pointer)
        out, self.out = self(), None
        return out


class SampledProduct(_Call):
    """A prepared `out = a b^T` at the entries of a CSR matrix."""

    def __init__(
        self,
        cusparse: CuSparse,
        row_offsets: torch.Tensor,
        columns: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> None:
        self.out = torch.full((columns.numel(),), torch.nan, dtype=a.dtype, device=a.device)
        super().__init__(cusparse, (row_offsets, columns, self.out), (a, b))
        self._keep = (row_offsets, columns, a, b)
        arguments = (
            cusparse.handle,
            c_int(_NON_TRANSPOSE),
            c_int(_TRANSPOSE),
            byref(self._one),
            *self._dense,
            byref(self._zero),
            self._matrix,
            c_int(_COMPUTE_FLOAT32),
            c_int(_DEFAULT_ALGORITHM),
        )
        self._prepare("SDDMM", arguments, a.device)

    def __call__(self) -> torch.Tensor:
        self._run()
        return self.out
