"""The shapes that a `GraphLoader` pads its batches to."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int

MAX_NODES = 2**31 - 2


class Shapes:
    """Nodes and edges of padded batches: `GraphLoader` says which.

    Args:
        num_nodes, num_edges: of the graphs that batches are made of.
        batch_size: graphs of a full batch.
        base: ratio of the sizes of two successive shapes from the largest on.
        number: shapes of the full batches that are not among the largest.
    """

    def __init__(
        self,
        num_nodes: Int[np.ndarray, " graphs"],
        num_edges: Int[np.ndarray, " graphs"],
        batch_size: int,
        base: float,
        number: int,
    ):
        self.base, self.number = base, number
        self._sizes, self._batch_size = (num_nodes, num_edges), batch_size
        self._full = min(batch_size, num_nodes.size)
        self._expectations: dict[tuple[int, float], tuple[int, int]] = {}
        self.largest = self._expected(self._full)
        self._smaller = self._smaller_shapes(num_nodes.size % batch_size)

    def take(self, other: Shapes) -> None:
        """Pads to the other's shapes, unless those have no edges and these some."""
        if other.largest[1] or not self.largest[1]:
            self.largest, self._smaller = other.largest, other._smaller

    def union_size(self) -> tuple[int, int]:
        """Nodes, with one of padding, and edges that nearly all batches stay below, and each graph
        alone."""
        nodes, edges = (int(sizes.max()) for sizes in self._sizes)
        return max(self.largest[0], nodes + 1), max(self.largest[1], edges)

    def of(self, nodes: int, edges: int, count: int) -> tuple[int, int]:
        """The padded counts of a batch of so many graphs."""
        if nodes > MAX_NODES:
            raise ValueError(
                f"batch_size: expected batches of fewer than 2**31 - 1 nodes, got {nodes}"
            )
        # Of full batches the size decides, of others what most batches of as many graphs need.
        expected = (0, 0) if count == self._batch_size else self._expected(count)
        needed = max(nodes + 1, expected[0]), max(edges, expected[1])
        for sizes in self._smaller:
            if needed[0] <= sizes[0] and needed[1] <= sizes[1]:
                return sizes
        expected = self._expected(count)
        needed = max(nodes + 1, expected[0]), max(edges, expected[1])
        k = -1 + max(
            math.floor(math.log(need / size) / math.log(self.base)) if need and size else -64
            for need, size in zip(needed, self.largest, strict=True)
        )
        while True:  # the logarithm is rounded
            sizes = tuple(math.ceil(size * self.base**k) for size in self.largest)
            if sizes[0] >= needed[0] and sizes[1] >= needed[1]:
                return min(sizes[0], MAX_NODES + 1), sizes[1]
            k += 1

    def _expected(self, count: int, deviations: float = 2.0) -> tuple[int, int]:
        """Nodes, with one of padding, and edges of a batch of so many graphs that is so many
        standard deviations above the mean: most batches stay below two."""
        key = count, deviations
        if key not in self._expectations:
            nodes, edges = (
                math.ceil(
                    max(count * values.mean() + deviations * math.sqrt(count) * values.std(), 0)
                )
                for values in self._sizes
            )
            self._expectations[key] = nodes + 1, edges
        return self._expectations[key]

    def _smaller_shapes(self, rest: int) -> list[tuple[int, int]]:
        """Shapes below that of most full batches, ascending; one of them is of the last batch of an
        epoch, with so many graphs, where that is not full."""
        deviations = [2 - 4 * i / self.number for i in range(1, self.number)]
        smaller = [self._expected(self._full, above) for above in deviations]
        if smaller and rest:
            smaller.append(self._expected(rest))
        return sorted(smaller)
