"""Scores of predicted numbers: RMSE and MAE."""

from __future__ import annotations

from typing import Any

from jaxgnn.metrics._arrays import (
    Mask,
    Rows,
    Score,
    mean_of_counted,
    mean_over_tasks,
    score_dtype,
)


def rmse(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    """Root of the mean squared error.

    Args:
        labels, predictions: numbers.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return mean_over_tasks(_rmse, labels, predictions, mask)


def mae(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    """Mean absolute error.

    Args:
        labels, predictions: numbers.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return mean_over_tasks(_mae, labels, predictions, mask)


def _rmse(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    error = _difference(xp, labels, predictions, valid)
    value, defined = mean_of_counted(xp, error * error, valid)
    return xp.sqrt(value), defined


def _mae(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    return mean_of_counted(xp, abs(_difference(xp, labels, predictions, valid)), valid)


def _difference(xp: Any, labels: Any, predictions: Any, valid: Any) -> Any:
    dtype = score_dtype(xp, labels, predictions)
    error = predictions.astype(dtype) - labels.astype(dtype)
    return xp.where(valid, error, xp.zeros_like(error))
