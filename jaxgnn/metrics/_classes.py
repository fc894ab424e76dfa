"""Scores of classes: accuracy and F1."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.core import Tracer

from jaxgnn._core import checks
from jaxgnn.metrics._arrays import (
    Mask,
    Rows,
    Score,
    alike,
    arguments,
    integer_dtype,
    is_positive,
    mean_of_counted,
    mean_over_tasks,
    ratio,
    result,
    score_dtype,
)


def accuracy(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    """Share of the labels that are predicted.

    Args:
        labels: classes `[rows]`, or `[rows, tasks]`.
        predictions: predicted classes, not logits.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return mean_over_tasks(_accuracy, labels, predictions, mask)


def micro_f1(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    r"""F1 of all labels together: $2TP / (2TP + FP + FN)$; NaN where no row has or is given one.

    Args:
        labels: classes `[rows]`, for which it is the accuracy, or `[rows, classes]`, a label that
            a row has where above 0.
        predictions: the same, predicted; not logits.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    xp, true, predicted, valid = arguments(labels, predictions, mask)
    if true.ndim == 1:
        return result(xp, *_accuracy(xp, true, predicted, valid))
    hits, misses = _confusion(xp, true, predicted, valid)
    hits, misses = hits.sum(), misses.sum()
    return result(xp, ratio(xp, 2 * hits, 2 * hits + misses), hits + misses > 0)


def macro_f1(
    labels: Rows, predictions: Rows, mask: Mask = None, *, num_classes: int | None = None
) -> Score:
    r"""Mean over the classes of each one's F1.

    Of classes `[rows]`, those count that are a label or a prediction of some row. Of
    `[rows, classes]` all count that have a known label, 0 where no row has or is given the label:
    scikit-learn's rules.

    Args:
        labels, predictions, mask: as of `micro_f1`.
        num_classes: of classes `[rows]`, which are then from 0 on; needed under `jax.jit`, where
            others count as none.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes, classes beyond
            `num_classes`, or none given under `jax.jit`.
    """
    xp, true, predicted, valid = arguments(labels, predictions, mask)
    if true.ndim == 2:
        hits, misses = _confusion(xp, true, predicted, valid)
        counted = valid.any(axis=0)
    else:
        traced = any(isinstance(a, Tracer) for a in (true, predicted, valid))
        present = None if traced else _counted_classes(true, predicted, np.asarray(valid))
        if num_classes is not None:
            classes = xp.arange(checks.integer(num_classes, "num_classes", 0, 2**31 - 1))
            if present is not None:
                _check_classes(present, num_classes)
        elif present is not None:
            classes = xp.asarray(_distinct(present))
        else:
            raise ValueError("num_classes: expected the number of classes under jit, got none")
        true, predicted = (_one_hot(xp, a, classes) for a in (true, predicted))
        columns = xp.broadcast_to(valid[:, None], true.shape)
        hits, misses = _confusion(xp, true, predicted, columns)
        counted = hits + misses > 0
    values = ratio(xp, 2 * hits, 2 * hits + misses)
    total = xp.where(counted, values, xp.zeros_like(values)).sum()
    return result(xp, total / xp.maximum(counted.sum(), 1).astype(values.dtype), counted.any())


def _accuracy(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    dtype = score_dtype(xp, labels, predictions)
    return mean_of_counted(xp, xp.equal(*alike(xp, labels, predictions)).astype(dtype), valid)


def _confusion(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    """True positives, and false positives and negatives together, of each column."""
    true, predicted = is_positive(labels), is_positive(predictions)
    hits = (true & predicted & valid).sum(axis=0, dtype=integer_dtype(xp))
    return hits, ((true ^ predicted) & valid).sum(axis=0, dtype=integer_dtype(xp))


def _counted_classes(labels: Any, predictions: Any, valid: np.ndarray) -> np.ndarray:
    """Those of the rows that count, with repeats; NaN is no class."""
    rows = [np.asarray(classes)[valid].astype(np.float64) for classes in (labels, predictions)]
    classes = np.concatenate(rows)
    return classes[~np.isnan(classes)]


def _distinct(classes: np.ndarray) -> np.ndarray:
    """In integers where they are whole: float32 would round large ones."""
    distinct = np.unique(classes)
    whole = np.isfinite(distinct).all() and (distinct == np.floor(distinct)).all()
    return distinct.astype(np.int64) if whole else distinct


def _check_classes(classes: np.ndarray, num_classes: int) -> None:
    for value in classes[(classes < 0) | (classes >= num_classes)][:1]:
        got = np.format_float_positional(value, trim="-")
        raise ValueError(f"labels: expected classes from 0 to {num_classes - 1}, got {got}")


def _one_hot(xp: Any, rows: Any, classes: Any) -> Any:
    """Whether each row is of each class."""
    if xp.issubdtype(rows.dtype, xp.floating):
        classes = classes.astype(score_dtype(xp, rows))  # 16 bits would round them
    return xp.equal(*alike(xp, rows[:, None], classes[None, :]))
