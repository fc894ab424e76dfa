"""The implementations of the suites `spmm` and `maxk`, a class for each framework.

A family is used in a process of its own. It holds one graph and one dense matrix at a time and
makes of a `Measurement` a `Candidate`: a call without arguments that enqueues one product.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.graphs import StoredGraph
from benchmarks.plan import Measurement


class Unsupported(Exception):
    """This implementation does not have this product; the reason is the message."""


@dataclasses.dataclass
class Candidate:
    """A product ready to be timed.

    Attributes:
        call: enqueues it and returns the result.
        input_bytes: size of what it reads, if the family does not measure its memory otherwise.
        peak_bytes: the memory that it needs with its inputs, if the compiler says.
        repeated: a call that runs so many products one after the other on the device, where
            a call of its own from Python takes longer than a short product.
        close: frees what the garbage collector does not.
        rows: how rows of the result are read, if not as the family reads those of a matrix.
        error: checks a result that is no product's, in place of a comparison of rows.
        facts: further fields of the row.
        selected_from: what a selection selects from, given rows of the matrix and their numbers,
            if not those themselves.
    """

    call: Callable[[], Any]
    input_bytes: int = 0
    peak_bytes: int | None = None
    repeated: Callable[[int], Callable[[], Any]] | None = None
    close: Callable[[], None] = lambda: None
    rows: Callable[[Any, np.ndarray], np.ndarray] | None = None
    error: Callable[[Any], float] | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    selected_from: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


class Family(abc.ABC):
    """A framework: where its arrays live and how its work is waited for."""

    def __init__(self, device: str) -> None:
        self.device = device

    @abc.abstractmethod
    def load(self, graph: StoredGraph) -> None:
        """Puts a graph on the device, in place of the one before."""

    @abc.abstractmethod
    def candidate(
        self,
        measurement: Measurement,
        dense: np.ndarray,
        weights: np.ndarray | None,
        kept: np.ndarray | None,
    ) -> Candidate:
        """Prepares the product of the graph (or its transpose) with `dense`.

        `dense` is in the measurement's dtype; `weights` are float32 values of that dtype, in the
        order of the edges of `StoredGraph.rows`; `kept` are the columns of the entries that a
        measurement with `k` keeps, ascending in each row.
        """

    @abc.abstractmethod
    def poison(self, shape: tuple[int, int], dtype: str) -> None:
        """Fills memory like the result's with NaN, so that an unwritten element shows."""

    @abc.abstractmethod
    def wait(self, result: Any) -> None:
        """Returns once the result is there."""

    @abc.abstractmethod
    def rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        """These rows of a result, as float32."""

    def seconds(self, call: Callable[[], Any], count: int) -> float:
        """Time of `count` calls on the host's clock, each waited for."""
        start = time.perf_counter()
        for _ in range(count):
            self.wait(call())
        return time.perf_counter() - start

    def peak_bytes(self, candidate: Candidate) -> int | None:
        """Peak memory of one call, with what it reads."""
        if candidate.peak_bytes is not None:
            return candidate.peak_bytes

        def call() -> Any:
            result = candidate.call()
            self.wait(result)
            return result

        peak = timing.peak_resident_bytes(call)
        return None if peak is None else peak + candidate.input_bytes

    def clear(self) -> None:  # noqa: B027
        """Gives memory back to the system between candidates."""

    def device_lost(self, error: Exception) -> bool:
        """Whether the GPU may be in any state after this error, and the process is done for."""
        if out_of_memory(error):
            return False
        return self.device == "gpu" and any(
            sign in str(error) for sign in ("CUDA error", "CUDA_ERROR", "INTERNAL", "illegal")
        )


def out_of_memory(error: Exception) -> bool:
    """Whether a framework asked for more memory than there is."""
    return "out of memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error)


def make(family: str, device: str) -> Family:
    """The family of this name; imports its framework."""
    if family in ("jax", "jax_ftz"):
        from benchmarks.family_jax import JaxFamily

        return JaxFamily(device)
    if family == "torch":
        from benchmarks.family_torch import TorchFamily

        return TorchFamily(device)
    from benchmarks.family_scipy import ScipyFamily

    return ScipyFamily(device)
