"""Scores of links among negatives: hits@K and MRR."""

from __future__ import annotations

from jaxtyping import ArrayLike, Float

from jaxgnn._core import checks
from jaxgnn.metrics._arrays import (
    Mask,
    Score,
    alike,
    as_arrays,
    counted,
    mean_of_counted,
    result,
    score_dtype,
)


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
    xp, (links, others) = as_arrays(positives=positives, negatives=negatives)
    for name, values in (("positives", links), ("negatives", others)):
        if values.ndim != 1:
            raise ValueError(f"{name}: expected a vector of scores, got {values.shape}")
    dtype = score_dtype(xp, links)
    links, others = alike(xp, links, others)
    hit = xp.ones(links.shape, bool)
    if others.shape[0] >= k:
        hit = links > xp.sort(others)[-k]
    finite = ~(xp.isnan(links).any() | xp.isnan(others).any())
    mean = hit.sum().astype(dtype) / max(hit.shape[0], 1)
    return result(xp, mean, finite & (hit.shape[0] > 0))


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
    xp, (links, others) = as_arrays(positives=positives, negatives=negatives)
    if links.ndim != 1:
        raise ValueError(f"positives: expected a vector of scores, got {links.shape}")
    shared = others.ndim == 1
    if not shared and (others.ndim != 2 or others.shape[0] != links.shape[0]):
        raise ValueError(
            f"negatives: expected the shape (negatives,) or ({links.shape[0]}, negatives), "
            f"got {others.shape}"
        )
    dtype = score_dtype(xp, links)
    links, others = alike(xp, links, others)
    valid = counted(xp, links, mask)
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
    value, defined = mean_of_counted(xp, 1 / ranks, valid)
    return result(xp, value, defined & ~undefined)
