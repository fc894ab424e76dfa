"""What a call takes, measured in another process under RLIMIT_AS."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.fuzz.pool import Worker

# Buffers, JAX's arrays and threads' stacks, beside what `max_bytes` counts.
SLACK = 64 << 20
_SECONDS = 120


@dataclass(frozen=True)
class Cost:
    """What a reader said and took; no `message` if it read the file, of `num_nodes`."""

    kind: str
    message: str | None
    num_nodes: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)


def cost_of(worker: Worker, call: str, max_bytes: int) -> Cost:
    """Evaluates an expression of `data` in the worker, with about `max_bytes` to spare."""
    return Cost(**worker.ask({"call": call, "max_bytes": max_bytes}, _SECONDS))
