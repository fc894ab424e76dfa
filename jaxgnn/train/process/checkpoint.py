"""Checkpoints by Orbax: complete or absent, whenever the process dies."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import shutil
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jaxgnn._core.text import printable
from jaxgnn.distributed._placement import is_key
from jaxgnn.train.process.recovery import os_error


class CheckpointError(ValueError):
    """A checkpoint that cannot be continued from; the message says which and why."""


class Checkpoints:
    """The last two states of a run, by epoch.

    Orbax writes into a temporary directory and renames it when all is written: a process killed
    meanwhile leaves the checkpoint before. The leaves of a state are stored by their path, random
    keys as their data, so that the files do not depend on the classes of the pytree. Of several
    processes each calls each method.
    """

    def __init__(self, directory: Path):
        """Opens a directory of checkpoints, and makes it if it is not there.

        Raises:
            OSError: it cannot be read or made.
        """
        self._directory = directory.absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=False, create=True
        )
        with self._os_errors(), _quiet():
            self._manager = ocp.CheckpointManager(self._directory, options=options)

    def epochs(self) -> list[int]:
        """The epochs of the complete checkpoints, the newest first.

        Files in the place of checkpoints are among them: Orbax passes over those, and a run would
        go on from an older one without a word.
        """
        files = (path for path in self._directory.iterdir() if path.is_file())
        replaced = {int(path.name) for path in files if re.fullmatch("[0-9]{1,9}", path.name)}
        return sorted({*self._manager.all_steps(), *replaced}, reverse=True)

    def save(self, epoch: int, state: Any, progress: dict[str, Any]) -> None:
        """Writes a state and its JSON-serializable progress; returns when they are complete.

        Raises:
            OSError: a full disk, say; the checkpoints before are as they were.
        """
        flat = _flatten(state)
        with self._os_errors(), _quiet():
            try:
                self._manager.save(
                    epoch,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardSave(flat),
                        progress=ocp.args.JsonSave(
                            {"progress": progress, "checksum": _checksum(flat)}
                        ),
                    ),
                )
            except Exception:
                for path in self._directory.glob(f"{epoch}.*tmp*"):
                    shutil.rmtree(path, ignore_errors=True)
                raise

    def restore(self, epoch: int, like: Any) -> tuple[Any, Any]:
        """The state of an epoch, in the structure of `like`, and its progress.

        Raises:
            CheckpointError: an unreadable checkpoint, or one of a different structure.
        """
        where = printable(self._directory / str(epoch))
        template = _flatten(like)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore(template), progress=ocp.args.JsonRestore()
        )
        restored, reason = self._try_restore(epoch, arguments)
        if reason:
            raise CheckpointError(f"{where}: cannot be restored ({reason})")
        for name, leaf in template.items():
            found = restored.state[name]
            if found.shape != leaf.shape or found.dtype != leaf.dtype:
                raise CheckpointError(
                    f"{where}: {name}: expected "
                    f"{leaf.dtype}{list(leaf.shape)}, got {found.dtype}{list(found.shape)}"
                )
        record = restored.progress
        if not isinstance(record, dict) or record.keys() != {"progress", "checksum"}:
            raise CheckpointError(f"{where}: expected the keys progress and checksum")
        if record["checksum"] != _checksum(restored.state):
            raise CheckpointError(f"{where}: its checksum is not that of its arrays")
        return _unflatten(restored.state, like), record["progress"]

    def set_aside(self, epoch: int, name: str = "damaged") -> Path:
        """Moves a checkpoint out of the way, beside the directory; returns where to."""
        parent = self._directory.parent
        target, number = parent / f"{name}-{epoch}", 2
        while target.exists():
            target, number = parent / f"{name}-{epoch}-{number}", number + 1
        if jax.process_index() == 0:
            (self._directory / str(epoch)).rename(target)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"set aside {epoch}")
        self._manager.reload()
        return target

    def _try_restore(self, epoch: int, arguments: ocp.args.Composite) -> tuple[Any, str]:
        """What Orbax restores, or why it does not."""
        try:
            with _quiet():
                return self._manager.restore(epoch, args=arguments), ""
        except MemoryError:
            raise
        except Exception as error:  # Orbax and TensorStore raise what they like
            first = next(iter(str(error).splitlines()), "")
            reason = f"{type(error).__name__}: {printable(first)[:100]}"
        with _quiet():
            gc.collect()
        return None, reason

    @contextlib.contextmanager
    def _os_errors(self) -> Iterator[None]:
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            raise os_error(error, self._directory) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases Orbax's threads."""
        with _quiet():
            self._manager.close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax from printing: an error ends its threads and coroutines with tracebacks, beside
    the exception that it raises."""
    for name in ("absl", "orbax"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    unraisable, of_threads = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = threading.excepthook = lambda _: None
    try:
        yield
    except BaseException:
        unraisable = _LateCallbacks.dropped_from(unraisable)
        raise
    finally:
        sys.unraisablehook, threading.excepthook = unraisable, of_threads


class _LateCallbacks:
    """A hook that drops TensorStore's calls into an event loop that Orbax has closed: after an
    error its threads make them at any time, until the process ends."""

    def __init__(self, hook: Callable[[Any], object]):
        self._hook = hook

    @classmethod
    def dropped_from(cls, hook: Callable[[Any], object]) -> _LateCallbacks:
        return hook if isinstance(hook, cls) else cls(hook)

    def __call__(self, unraisable: Any, /) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._hook(unraisable)


def _checksum(flat: dict[str, Any]) -> str:
    """CRC-32 of all arrays: what a flipped bit on the disk would change."""
    crc = 0
    for name in sorted(flat):
        array = np.ascontiguousarray(flat[name])
        crc = zlib.crc32(f"{name} {array.shape} {array.dtype}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return f"{crc:08x}"


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _flatten(tree: Any) -> dict[str, jax.Array]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    flat = {
        _name(path): jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf)
        for path, leaf in leaves
    }
    assert len(flat) == len(leaves), "two leaves of one name"
    return flat


def _unflatten(flat: dict[str, jax.Array], like: Any) -> Any:
    def leaf(path, old):
        new = flat[_name(path)]
        if is_key(old):
            return jax.random.wrap_key_data(new, impl=jax.random.key_impl(old))
        return new

    return jax.tree_util.tree_map_with_path(leaf, like)
