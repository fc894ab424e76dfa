"""`ResumableLoader`: the place of a loader in its sequence of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxgnn._core import checks


def as_pair(result: Any) -> tuple[Any, Any]:
    """What a user's `step` gave, if it is a state and an output."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"step: expected (state, output), got {type(result).__name__}")
    return result[0], result[1]


def count_batches(count: int, batch_size: int, drop_last: bool, name: str) -> int:
    """The batches of `count` entries of the argument `name`.

    Raises:
        ValueError: there is none.
    """
    batches = count // batch_size if drop_last else -(-count // batch_size)
    if batches == 0:
        least = f"{batch_size}, a batch_size, with drop_last" if drop_last else "1"
        raise ValueError(f"{name}: expected at least {least}, got {count}")
    return batches


class ResumableLoader:
    """What `GraphLoader` and `NeighborLoader` share: epochs of equally many batches, and the place
    of the next one."""

    _epoch = _position = 0

    def __len__(self) -> int:
        """The batches of an epoch."""
        raise NotImplementedError

    @property
    def state(self) -> dict[str, int]:
        """The place in the sequence of batches, for a checkpoint; may be assigned."""
        return {"epoch": self._epoch, "position": self._position}

    @state.setter
    def state(self, state: Mapping[str, int]) -> None:
        if not isinstance(state, Mapping) or set(state) != {"epoch", "position"}:
            raise ValueError(f"state: expected epoch and position, got {state!r}")
        epoch = checks.integer(state["epoch"], "epoch", 0, 2**31 - 1)
        self._position = checks.integer(state["position"], "position", 0, len(self) - 1)
        self._epoch = epoch

    def _advance(self, steps: int = 1) -> None:
        epochs, self._position = divmod(self._position + steps, len(self))
        self._epoch += epochs
