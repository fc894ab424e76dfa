r"""Scores of predictions: accuracy, ROC AUC, AP, F1, hits@K, MRR, RMSE and MAE.

By the definitions of OGB's evaluators and of scikit-learn. Arrays of NumPy give a Python float,
computed in float64 on the host; arrays of JAX, traced ones too, give a JAX scalar of float32 (of
float64 operands: float64), so that a score can be part of a jitted step.

Labels and predictions have one shape: `[rows]`, or `[rows, tasks]` with a score for each task, of
which the mean over the tasks that have one is returned, as OGB does. A NaN among floating labels
is a label that is not known: it counts nowhere. `mask`, `[rows]`, leaves rows out, such as padding.
A score that is not defined (no rows, or one class alone for ROC AUC and AP) is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Num

from jaxgnn._core import checks
from jaxgnn._core.arguments import unwrap

__all__ = [
    "accuracy",
    "average_precision",
    "hits_at_k",
    "macro_f1",
    "mae",
    "micro_f1",
    "mrr",
    "rmse",
    "roc_auc",
]

Score = float | Float[Array, ""]
Rows = Num[ArrayLike, "rows *tasks"]
Mask = Bool[ArrayLike, " rows"] | None


def accuracy(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    """Share of the labels that are predicted.

    Args:
        labels: classes `[rows]`, or `[rows, tasks]`.
        predictions: predicted classes, not logits.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return _mean_over_tasks(_accuracy, labels, predictions, mask)


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
    return _mean_over_tasks(_roc_auc, labels, scores, mask, "scores")


def average_precision(labels: Rows, scores: Rows, mask: Mask = None) -> Score:
    r"""Average precision: the mean, over the positives, of the precision at their score.

    $$\frac1P \sum_p \frac{|\{p' : s_{p'} \ge s_p\}|}{|\{i : s_i \ge s_p\}|}$$

    which is $\sum_n (R_n - R_{n-1}) P_n$ over the distinct scores: nothing is interpolated.

    Args:
        labels, scores, mask: as of `roc_auc`.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return _mean_over_tasks(_average_precision, labels, scores, mask, "scores")


def rmse(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    """Root of the mean squared error.

    Args:
        labels, predictions: numbers.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return _mean_over_tasks(_rmse, labels, predictions, mask)


def mae(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    """Mean absolute error.

    Args:
        labels, predictions: numbers.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    return _mean_over_tasks(_mae, labels, predictions, mask)


def micro_f1(labels: Rows, predictions: Rows, mask: Mask = None) -> Score:
    r"""F1 of all labels together: $2TP / (2TP + FP + FN)$.

    Args:
        labels: classes `[rows]`, for which it is the accuracy, or `[rows, classes]`, a label that
            a row has where above 0.
        predictions: the same, predicted; not logits.
        mask: the rows that count; all if not given.

    Raises:
        TypeError, ValueError: no arrays of numbers, or of other shapes.
    """
    xp, true, predicted, valid = _arguments(labels, predictions, mask)
    if true.ndim == 1:
        return _result(xp, *_accuracy(xp, true, predicted, valid))
    hits, misses = _confusion(xp, true, predicted, valid)
    hits, misses = hits.sum(), misses.sum()
    return _result(xp, _ratio(xp, 2 * hits, 2 * hits + misses), hits + misses > 0)


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
    xp, true, predicted, valid = _arguments(labels, predictions, mask)
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
    values = _ratio(xp, 2 * hits, 2 * hits + misses)
    total = xp.where(counted, values, xp.zeros_like(values)).sum()
    return _result(xp, total / xp.maximum(counted.sum(), 1).astype(values.dtype), counted.any())


def hits_at_k(
    positives: Float[ArrayLike, " positives"], negatives: Float[ArrayLike, " negatives"], k: int
) -> Score:
    """Share of the positives whose score is above that of the `k`-th highest negative.

    1 with fewer than `k` negatives. OGB's definition, of ogbl-ppa, ogbl-collab and ogbl-ddi.

    Args:
        positives, negatives: scores of links.
        k: at least 1.

    Raises:
        TypeError, ValueError: no vectors of numbers, or `k` out of range.
    """
    k = checks.integer(k, "k", 1, 2**31 - 1)
    xp, (links, others) = _arrays(positives=positives, negatives=negatives)
    for name, values in (("positives", links), ("negatives", others)):
        if values.ndim != 1:
            raise ValueError(f"{name}: expected a vector of scores, got {values.shape}")
    dtype = _dtype(xp, links)
    links, others = _alike(xp, links, others)
    hit = xp.ones(links.shape, bool)
    if others.shape[0] >= k:
        hit = links > xp.sort(others)[-k]
    finite = ~(xp.isnan(links).any() | xp.isnan(others).any())
    mean = hit.sum().astype(dtype) / max(hit.shape[0], 1)
    return _result(xp, mean, finite & (hit.shape[0] > 0))


def mrr(
    positives: Float[ArrayLike, " positives"],
    negatives: Float[ArrayLike, "positives negatives"],
    mask: Mask = None,
) -> Score:
    r"""Mean reciprocal rank of each positive among its negatives.

    The rank is the mean of the optimistic and of the pessimistic one, where scores are equal:

    $$r = 1 + \tfrac12 |\{n : s_n > s\}| + \tfrac12 |\{n : s_n \ge s\}|$$

    OGB's definition, of ogbl-citation2 and ogbl-wikikg2.

    Args:
        positives: scores of links.
        negatives: scores of each one's negatives, or `[negatives]`, the same for all.
        mask: the positives that count; all if not given.

    Raises:
        TypeError, ValueError: no numbers, or shapes that do not fit.
    """
    xp, (links, others) = _arrays(positives=positives, negatives=negatives)
    if links.ndim != 1:
        raise ValueError(f"positives: expected a vector of scores, got {links.shape}")
    shared = others.ndim == 1
    if not shared and (others.ndim != 2 or others.shape[0] != links.shape[0]):
        raise ValueError(
            f"negatives: expected the shape (negatives,) or ({links.shape[0]}, negatives), "
            f"got {others.shape}"
        )
    dtype = _dtype(xp, links)
    links, others = _alike(xp, links, others)
    valid = _valid(xp, links, mask)
    if shared:
        ordered, size = xp.sort(others), others.shape[0]
        above = size - xp.searchsorted(ordered, links, side="right")
        not_below = size - xp.searchsorted(ordered, links, side="left")
        undefined = xp.isnan(others).any() | (valid & xp.isnan(links)).any()
    else:
        above = (others > links[:, None]).sum(axis=1)
        not_below = (others >= links[:, None]).sum(axis=1)
        undefined = (valid & (xp.isnan(others).any(axis=1) | xp.isnan(links))).any()
    ranks = (above + not_below).astype(dtype) / 2 + 1
    value, defined = _mean(xp, 1 / ranks, valid)
    return _result(xp, value, defined & ~undefined)


# Scores of one task: the value, and whether it is defined.


def _accuracy(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    dtype = _dtype(xp, labels, predictions)
    return _mean(xp, xp.equal(*_alike(xp, labels, predictions)).astype(dtype), valid)


def _rmse(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    error = _difference(xp, labels, predictions, valid)
    value, defined = _mean(xp, error * error, valid)
    return xp.sqrt(value), defined


def _mae(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    return _mean(xp, abs(_difference(xp, labels, predictions, valid)), valid)


def _roc_auc(xp: Any, labels: Any, scores: Any, valid: Any) -> tuple[Any, Any]:
    ranked = _Ranked(xp, labels, scores, valid)
    positives, negatives = ranked.positive.sum(), ranked.negative.sum()
    below = _running(xp, ranked.negative)
    # In halves of pairs: integers, and shares from 0 to 1 in the sum, so that nothing overflows.
    lower = (below[ranked.left] + below[ranked.right]).astype(ranked.dtype)
    shares = lower / (2 * xp.maximum(negatives, 1)).astype(ranked.dtype)
    total = (shares * ranked.positive.astype(ranked.dtype)).sum()
    value = total / xp.maximum(positives, 1).astype(ranked.dtype)
    return _nan_where(xp, value, ranked.undefined), (positives > 0) & (negatives > 0)


def _average_precision(xp: Any, labels: Any, scores: Any, valid: Any) -> tuple[Any, Any]:
    ranked = _Ranked(xp, labels, scores, valid)
    positives, negatives = ranked.positive.sum(), ranked.negative.sum()
    hits = positives - _running(xp, ranked.positive)[ranked.left]
    found = hits + negatives - _running(xp, ranked.negative)[ranked.left]
    precision = _ratio(xp, hits, found, ranked.dtype)
    total = (precision * ranked.positive.astype(ranked.dtype)).sum()
    value = total / xp.maximum(positives, 1).astype(ranked.dtype)
    return _nan_where(xp, value, ranked.undefined), (positives > 0) & (negatives > 0)


class _Ranked:
    """Rows by ascending score: positives and negatives as 0 or 1 (rows that do not count are
    neither), and where the scores equal to a row's begin (`left`) and end (`right`)."""

    def __init__(self, xp: Any, labels: Any, scores: Any, valid: Any):
        self.dtype = _dtype(xp, scores)
        scores = scores.astype(self.dtype)
        self.undefined = (valid & xp.isnan(scores)).any()
        scores = xp.where(valid & ~xp.isnan(scores), scores, xp.zeros_like(scores))
        order = xp.argsort(scores)
        ordered = scores[order]
        self.left = xp.searchsorted(ordered, ordered, side="left")
        self.right = xp.searchsorted(ordered, ordered, side="right")
        positive = _positive(labels)
        self.positive = (positive & valid)[order].astype(_integer(xp))
        self.negative = (~positive & valid)[order].astype(_integer(xp))


def _confusion(xp: Any, labels: Any, predictions: Any, valid: Any) -> tuple[Any, Any]:
    """True positives, and false positives and negatives together, of each column."""
    true, predicted = _positive(labels), _positive(predictions)
    hits = (true & predicted & valid).sum(axis=0, dtype=_integer(xp))
    return hits, ((true ^ predicted) & valid).sum(axis=0, dtype=_integer(xp))


def _counted_classes(labels: Any, predictions: Any, valid: np.ndarray) -> np.ndarray:
    """Those of the rows that count, with repeats; NaN is no class."""
    rows = [np.asarray(classes)[valid].astype(np.float64) for classes in (labels, predictions)]
    classes = np.concatenate(rows)
    return classes[~np.isnan(classes)]


def _distinct(classes: np.ndarray) -> np.ndarray:
    """In integers where they are whole: float32 would round large ones."""
    distinct = np.unique(classes)
    return distinct.astype(np.int64) if (distinct == np.floor(distinct)).all() else distinct


def _check_classes(classes: np.ndarray, num_classes: int) -> None:
    for value in classes[(classes < 0) | (classes >= num_classes)][:1]:
        got = np.format_float_positional(value, trim="-")
        raise ValueError(f"labels: expected classes from 0 to {num_classes - 1}, got {got}")


def _one_hot(xp: Any, rows: Any, classes: Any) -> Any:
    """Whether each row is of each class."""
    if xp.issubdtype(rows.dtype, xp.floating):
        classes = classes.astype(_dtype(xp, rows))  # 16 bits would round them
    return xp.equal(*_alike(xp, rows[:, None], classes[None, :]))


# What NumPy and JAX share.


def _mean_over_tasks(
    score: Callable[..., tuple[Any, Any]],
    labels: Any,
    predictions: Any,
    mask: Any,
    name: str = "predictions",
) -> Score:
    xp, labels, predictions, valid = _arguments(labels, predictions, mask, name)
    if labels.ndim == 1:
        return _result(xp, *score(xp, labels, predictions, valid))
    if xp is np:
        columns = zip(labels.T, predictions.T, valid.T, strict=True)
        found = [score(np, *column) for column in columns]
        values, defined = (np.asarray(part) for part in zip(*found, strict=True))
    else:
        values, defined = jax.vmap(lambda *column: score(jnp, *column), in_axes=1)(
            labels, predictions, valid
        )
    return _result(xp, *_mean(xp, values, defined))


def _arguments(
    labels: Any, predictions: Any, mask: Any, name: str = "predictions"
) -> tuple[Any, Any, Any, Any]:
    """The module of the arrays, both of them, and which labels count; `name`, of the second."""
    xp, (labels, predictions) = _arrays(**{"labels": labels, name: predictions})
    if labels.shape != predictions.shape or labels.ndim not in (1, 2):
        raise ValueError(
            f"labels, {name}: expected one shape, (rows,) or (rows, tasks), got "
            f"{labels.shape} and {predictions.shape}"
        )
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise ValueError(f"labels: expected at least one task, got the shape {labels.shape}")
    valid = _valid(xp, labels, mask)
    if labels.ndim == 2:
        valid = xp.broadcast_to(valid[:, None], labels.shape)
    if xp.issubdtype(labels.dtype, xp.floating):
        valid = valid & ~xp.isnan(labels)
    return xp, labels, predictions, valid


def _arrays(**values: Any) -> tuple[Any, list[Any]]:
    """NumPy or JAX, and the values as its arrays."""
    given = [unwrap(value) for value in values.values()]
    xp = jnp if any(isinstance(value, jax.Array) for value in given) else np
    arrays = [xp.asarray(value) for value in given]
    for name, array in zip(values, arrays, strict=True):
        numeric = array.dtype == bool or jnp.issubdtype(array.dtype, jnp.number)
        if not numeric or jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise TypeError(f"{name}: expected an array of numbers, got {array.dtype}")
    if xp is np:  # NumPy's own do not know bfloat16
        wide = [np.float32 if a.dtype.kind == "V" else a.dtype for a in arrays]
        arrays = [array.astype(dtype) for array, dtype in zip(arrays, wide, strict=True)]
    return xp, arrays


def _valid(xp: Any, rows: Any, mask: Any) -> Any:
    if mask is None:
        return xp.ones(rows.shape[:1], bool)
    mask = unwrap(mask)
    if xp is np and isinstance(mask, Tracer):
        raise TypeError("mask: expected an array of NumPy beside others, got a traced one")
    mask = xp.asarray(mask)
    if mask.dtype != bool or mask.shape != rows.shape[:1]:
        raise ValueError(
            f"mask: expected bool[{rows.shape[0]}], got {mask.dtype}{list(mask.shape)}"
        )
    return mask


def _dtype(xp: Any, *arrays: Any) -> Any:
    """The dtype of a score."""
    if xp is np:
        return np.float64
    wide = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.float64 if wide else jnp.float32


def _positive(labels: Any) -> Any:
    """Which labels are above 0; under strict promotion JAX does not compare a boolean with 0."""
    return labels if labels.dtype == bool else labels > 0


def _is_narrow(array: Any) -> bool:
    """Whether it is of 16-bit floats."""
    return array.dtype.itemsize == 2 and jnp.issubdtype(array.dtype, jnp.floating)


def _alike(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays in one dtype that holds them all, under `jax_numpy_dtype_promotion="strict"`
    too; 16-bit floats in one that holds the numbers of classes beside them."""
    wide = [array.astype(_dtype(xp, array)) if _is_narrow(array) else array for array in arrays]
    with jax.numpy_dtype_promotion("standard"):
        dtype = xp.result_type(*wide)
    return [array.astype(dtype) for array in wide]


def _integer(xp: Any) -> Any:
    return np.int64 if xp is np else jnp.int32


def _difference(xp: Any, labels: Any, predictions: Any, valid: Any) -> Any:
    dtype = _dtype(xp, labels, predictions)
    error = predictions.astype(dtype) - labels.astype(dtype)
    return xp.where(valid, error, xp.zeros_like(error))


def _mean(xp: Any, values: Any, valid: Any) -> tuple[Any, Any]:
    count = valid.sum()
    total = xp.where(valid, values, xp.zeros_like(values)).sum()
    return total / xp.maximum(count, 1).astype(values.dtype), count > 0


def _running(xp: Any, counts: Any) -> Any:
    """The sums of the counts before each place, and of all."""
    return xp.concatenate([xp.zeros(1, counts.dtype), xp.cumsum(counts, dtype=counts.dtype)])


def _ratio(xp: Any, part: Any, whole: Any, dtype: Any = None) -> Any:
    """`part / whole`, 0 where there is no whole."""
    dtype = _dtype(xp) if dtype is None else dtype
    return part.astype(dtype) / xp.maximum(whole, 1).astype(dtype)


def _nan_where(xp: Any, value: Any, undefined: Any) -> Any:
    return xp.where(undefined, xp.full_like(value, xp.nan), value)


def _result(xp: Any, value: Any, defined: Any) -> Score:
    value = _nan_where(xp, value, ~xp.asarray(defined))
    return float(value) if xp is np else value
