"""Calls of the target of dropout's mask."""

from __future__ import annotations

from tests.support.raw_calls.common import ROWS, U32, Call, Calls, Graph


def mask(g: Graph) -> Call:
    """Any rows will do, any threshold of 32 bits, and any width of two words."""
    keys = g.rng.integers(0, 2**32, (2, 2), U32)
    results = {"mask": ((2, ROWS, 2), U32)}
    free = frozenset({"mask, axis 1", "drop_below", "width"})
    return Call({"keys": keys}, results, {"drop_below": 9, "width": 40}, free)


CALLS: Calls = {
    "jaxgnn_dropout_mask": mask,
}
