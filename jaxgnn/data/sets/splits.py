"""Seeded random splits, for the sets that come without one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from jaxgnn.data.files.limits import DataError
from jaxgnn.data.sets.dataset import Split


def split_per_class(
    labels: Int[np.ndarray, " num_nodes"],
    num_train: int,
    num_val: int,
    *,
    seed: int,
) -> Split:
    """`num_train` nodes of each class to learn from, `num_val` to select on, the rest to test.

    The convention of Shchur et al., "Pitfalls of Graph Neural Network Evaluation" (2018), with
    20 and 30. Deterministic in `seed`.

    Raises:
        DataError: a class has no node left to test, or a number is out of range.
    """
    if num_train < 1 or num_val < 0:
        raise DataError(
            f"num_train, num_val: expected at least 1 and 0, got {num_train} and {num_val}"
        )
    rng = np.random.default_rng(seed)
    train, val = np.zeros(labels.size, bool), np.zeros(labels.size, bool)
    for label in np.unique(labels):
        nodes = rng.permutation(np.flatnonzero(labels == label))
        if nodes.size <= num_train + num_val:
            raise DataError(
                f"class {label}: expected more than {num_train} + {num_val} nodes to leave some "
                f"to test, got {nodes.size}"
            )
        train[nodes[:num_train]] = True
        val[nodes[num_train : num_train + num_val]] = True
    return Split(train=train, val=val, test=~(train | val))


def split_fractions(num_nodes: int, train: float, val: float, *, seed: int) -> Split:
    """A share `train` of the nodes to learn from, at least one, `val` to select on, the rest to
    test: of a node or two there may be none.

    Raises:
        DataError: a share is out of range, or they leave no share to test.
    """
    if not (0 < train < 1 and val >= 0 and train + val < 1):
        raise DataError(f"train, val: expected shares that sum to less than 1, got {train}, {val}")
    order = np.random.default_rng(seed).permutation(num_nodes)
    place = np.empty(num_nodes, np.int64)
    place[order] = np.arange(num_nodes)
    first, second = max(1, round(train * num_nodes)), round((train + val) * num_nodes)
    return Split(
        train=place < first,
        val=(place >= first) & (place < second),
        test=place >= max(first, second),
    )


def per_class_splits(
    labels: Int[np.ndarray, " num_nodes"],
    num_train: int,
    num_val: int,
    *,
    seed: int,
    num_splits: int,
) -> dict[str, Split]:
    """`split_per_class` for the seeds `seed` to `seed + num_splits - 1`, by the names `"seed<s>"`.

    Raises:
        DataError: as `split_per_class`, or a negative `seed`, or no splits.
    """
    return {
        f"seed{s}": split_per_class(labels, num_train, num_val, seed=s)
        for s in _seeds(seed, num_splits)
    }


def fraction_splits(
    num_nodes: int, train: float, val: float, *, seed: int, num_splits: int
) -> dict[str, Split]:
    """`split_fractions` for the seeds `seed` to `seed + num_splits - 1`, by the names `"seed<s>"`.

    Raises:
        DataError: as `split_fractions`, or a negative `seed`, or no splits.
    """
    return {
        f"seed{s}": split_fractions(num_nodes, train, val, seed=s) for s in _seeds(seed, num_splits)
    }


def _seeds(seed: int, num_splits: int) -> range:
    if seed < 0 or num_splits < 1:
        raise DataError(f"seed, num_splits: expected at least 0 and 1, got {seed} and {num_splits}")
    return range(seed, seed + num_splits)


def fold_splits(
    labels: Int[np.ndarray, " num_items"], folds: int, *, seed: int
) -> dict[str, Split]:
    """Splits named `"fold<i>"`, stratified by class: fold i tests, the next validates.

    Raises:
        DataError: fewer than three folds, or a negative seed.
    """
    if folds < 3 or seed < 0:
        raise DataError(f"folds, seed: expected at least 3 and 0, got {folds} and {seed}")
    rng = np.random.default_rng(seed)
    fold, dealt = np.empty(labels.size, np.int64), 0
    for label in np.unique(labels):
        items = rng.permutation(np.flatnonzero(labels == label))
        # Dealt on from where the last class ended, so that the folds differ by at most one.
        fold[items] = (dealt + np.arange(items.size)) % folds
        dealt += items.size
    splits = {}
    for i in range(folds):
        test, val = fold == i, fold == (i + 1) % folds
        splits[f"fold{i}"] = Split(~(test | val), val, test).check_trains()
    return splits
