"""Checkpoints by Orbax: complete or absent, whenever the process dies."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp


class CheckpointError(ValueError):
    """A checkpoint that cannot be continued from; the message says which and why."""


class Checkpoints:
    """The last two states of a run, by epoch.

    Orbax writes into a temporary directory and renames it when all is written: a process killed
    meanwhile leaves the checkpoint before. The leaves of a state are stored by their path, random
    keys as their data, so that the files do not depend on the classes of the pytree.
    """

    def __init__(self, directory: Path):
        for name in ("absl", "orbax"):  # their warnings would break the live display
            logging.getLogger(name).setLevel(logging.ERROR)
        self._directory = directory.absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=False, create=True
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def latest(self) -> int | None:
        """The epoch of the last complete checkpoint, if there is one."""
        return self._manager.latest_step()

    def save(self, epoch: int, state: Any, progress: dict[str, Any]) -> None:
        """Writes a state and its JSON-serializable progress; returns when they are complete."""
        self._manager.save(
            epoch,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_flatten(state)),
                progress=ocp.args.JsonSave(progress),
            ),
        )

    def restore(self, epoch: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The state of an epoch, in the structure of `like`, and its progress.

        Raises:
            CheckpointError: an unreadable checkpoint, or one of a different structure.
        """
        template = _flatten(like)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(template), progress=ocp.args.JsonRestore()
        )
        restored, reason = self._try_restore(epoch, arguments)
        if reason:
            raise CheckpointError(f"{self._directory / str(epoch)}: cannot be restored ({reason})")
        for name, leaf in template.items():
            found = restored.state[name]
            if found.shape != leaf.shape or found.dtype != leaf.dtype:
                raise CheckpointError(
                    f"{self._directory / str(epoch)}: {name}: expected "
                    f"{leaf.dtype}{list(leaf.shape)}, got {found.dtype}{list(found.shape)}"
                )
        return _unflatten(restored.state, like), restored.progress

    def _try_restore(self, epoch: int, arguments: ocp.args.Composite) -> tuple[Any, str]:
        """What Orbax restores, or why it does not."""
        hook = sys.unraisablehook
        # Reads that fail beside the first one end as coroutines that nobody awaits.
        sys.unraisablehook = lambda _: None
        try:
            try:
                return self._manager.restore(epoch, args=arguments), ""
            except Exception as error:  # Orbax and TensorStore raise what they like
                first = next(iter(str(error).splitlines()), "")
                reason = f"{type(error).__name__}: {first[:100]}"
            gc.collect()
            return None, reason
        finally:
            sys.unraisablehook = hook

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases Orbax's threads."""
        self._manager.close()


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _flatten(tree: Any) -> dict[str, jax.Array]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    flat = {
        _name(path): jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)
        for path, leaf in leaves
    }
    assert len(flat) == len(leaves), "two leaves of one name"
    return flat


def _unflatten(flat: dict[str, jax.Array], like: Any) -> Any:
    def leaf(path, old):
        new = flat[_name(path)]
        if _is_key(old):
            return jax.random.wrap_key_data(new, impl=jax.random.key_impl(old))
        return new

    return jax.tree_util.tree_map_with_path(leaf, like)
