"""Scores of a ranking of rows: ROC AUC and average precision."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxgnn.metrics._arrays import (
    Mask,
    Rows,
    Score,
    counts_before,
    integer_dtype,
    is_positive,
    mean_over_tasks,
    nan_where,
    ratio,
    score_dtype,
)


def roc_auc(labels: Rows, scores: Rows, mask: Mask = None) -> Score:
    r"""Area under the receiver operating characteristic.

    The probability that a positive has a higher score than a negative, where equal scores count
    half:

    $$\frac{1}{PN} \sum_{p, n} [s_p > s_n] + \tfrac12 [s_p = s_n]$$

    Args:
        labels: positive where above 0.
        scores: any increasing function of the probability, such as logits; a NaN among those that
            count makes the score NaN.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.

    Source: Hanley and McNeil, "The meaning and use of the area under a ROC curve" (1982).
    """
    return mean_over_tasks(_roc_auc, labels, scores, mask, "scores")


def average_precision(labels: Rows, scores: Rows, mask: Mask = None) -> Score:
    r"""Average precision: the mean, over the positives, of the precision at their score.

    $$\frac1P \sum_p \frac{|\{p' : s_{p'} \ge s_p\}|}{|\{i : s_i \ge s_p\}|}$$

    which is $\sum_n (R_n - R_{n-1}) P_n$ over the distinct scores: nothing is interpolated. Without
    positives, or without negatives, it is NaN.

    Args:
        labels, scores, mask: as of `roc_auc`.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return mean_over_tasks(_average_precision, labels, scores, mask, "scores")


def _roc_auc(xp: Any, labels: Any, scores: Any, valid: Any) -> tuple[Any, Any]:
    ranked = _Ranked(xp, labels, scores, valid)
    positives, negatives = ranked.positive.sum(), ranked.negative.sum()
    below = counts_before(xp, ranked.negative)
    # In halves of pairs: integers, and shares from 0 to 1 in the sum, so that nothing overflows.
    lower = (below[ranked.left] + below[ranked.right]).astype(ranked.dtype)
    shares = lower / (2 * xp.maximum(negatives, 1)).astype(ranked.dtype)
    total = (shares * ranked.positive.astype(ranked.dtype)).sum()
    value = total / xp.maximum(positives, 1).astype(ranked.dtype)
    return nan_where(xp, value, ranked.undefined), (positives > 0) & (negatives > 0)


def _average_precision(xp: Any, labels: Any, scores: Any, valid: Any) -> tuple[Any, Any]:
    ranked = _Ranked(xp, labels, scores, valid)
    positives, negatives = ranked.positive.sum(), ranked.negative.sum()
    hits = positives - counts_before(xp, ranked.positive)[ranked.left]
    found = hits + negatives - counts_before(xp, ranked.negative)[ranked.left]
    precision = ratio(xp, hits, found, ranked.dtype)
    total = (precision * ranked.positive.astype(ranked.dtype)).sum()
    value = total / xp.maximum(positives, 1).astype(ranked.dtype)
    return nan_where(xp, value, ranked.undefined), (positives > 0) & (negatives > 0)


class _Ranked:
    """Rows by ascending score: positives and negatives as 0 or 1 (rows that do not count are
    neither), and where the scores equal to a row's begin (`left`) and end (`right`)."""

    def __init__(self, xp: Any, labels: Any, scores: Any, valid: Any):
        self.dtype = score_dtype(xp, scores)
        if not jnp.issubdtype(scores.dtype, jnp.integer):  # which a float may round to ties
            scores = scores.astype(self.dtype)
        self.undefined = (valid & xp.isnan(scores)).any()
        scores = xp.where(valid & ~xp.isnan(scores), scores, xp.zeros_like(scores))
        order = xp.argsort(scores)
        ordered = scores[order]
        self.left = xp.searchsorted(ordered, ordered, side="left")
        self.right = xp.searchsorted(ordered, ordered, side="right")
        positive = is_positive(labels)
        self.positive = (positive & valid)[order].astype(integer_dtype(xp))
        self.negative = (~positive & valid)[order].astype(integer_dtype(xp))
