"""Which edges a sample takes, row by row in Python's integers."""

import functools
import math
from typing import NamedTuple

import jax
import numpy as np

from jaxgnn import Graph

_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_WORD = 2**32 - 1


class Sampling(NamedTuple):
    """The arguments of `sampled_spmm` that say which edges are taken."""

    strategy: str = "stride"
    sample_size: int | None = None
    sample_rate: float | None = None
    key: jax.Array | None = None
    replace: bool = False

    def arguments(self) -> dict:
        return self._asdict()


@functools.lru_cache(1 << 18)
def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """Salmon et al., section 3.3, word by word."""
    c, k = list(counter), list(key)
    for _ in range(10):
        product0, product1 = _MULTIPLIERS[0] * c[0], _MULTIPLIERS[1] * c[2]
        c = [
            product1 >> 32 ^ c[1] ^ k[0],
            product1 & _WORD,
            product0 >> 32 ^ c[3] ^ k[1],
            product0 & _WORD,
        ]
        k = [(word + step) & _WORD for word, step in zip(k, _WEYL, strict=True)]
    return c


def draw(key, place: int, number: int, bound: int) -> int:
    """Number `number` of a place's draws, below `bound`."""
    return philox((place, number // 4, 0, 1), key)[number % 4] * bound >> 32


def key_words(sampling: Sampling) -> tuple[int, ...] | None:
    if sampling.key is None:
        return None
    return tuple(np.asarray(jax.random.key_data(sampling.key)).tolist())


def places_of_row(sampling: Sampling, place: int, degree: int) -> list[int]:
    """The numbers within its row of the edges that a place takes."""
    key = key_words(sampling)
    d, size = degree, sampling.sample_size
    if sampling.replace:
        return [draw(key, place, j, d) for j in range(size if d else 0)]
    if sampling.strategy == "dropedge":
        return [p for p in range(d) if draw(key, place, p, 2**32) < sampling.sample_rate * 2**32]
    share = d if sampling.sample_rate is None else math.ceil(sampling.sample_rate * d)
    k = share if size is None else min(size, share)
    if k == d or sampling.strategy == "bucket":
        return list(range(k))
    if sampling.strategy == "random":
        taken: list[int] = []
        for i, j in enumerate(range(d - k, d)):
            t = draw(key, place, i, j + 1)
            taken.append(j if t in taken else t)
        return taken
    if sampling.strategy == "fastrand":
        return [577 * j % d for j in range(k)]
    if key is None:
        first, step = 0, 1 + (40503 * d >> 16)
    else:
        first, step = draw(key, place, 0, d), 1 + draw(key, place, 1, d - 1)
    while math.gcd(step, d) > 1:
        step += 1
    return [(first + step * j) % d for j in range(k)]


def taken_edges(graph: Graph, sampling: Sampling, rows=None, ids=None) -> list[list[int]]:
    """The edges that each place takes, in order; it draws by its id, or by its own number."""
    offsets = np.asarray(graph.row_offsets).tolist()
    taken = []
    for place, row in enumerate(range(graph.num_receivers) if rows is None else rows):
        inside = 0 <= row < graph.num_receivers
        begin, end = offsets[row : row + 2] if inside else (0, 0)
        own = place if ids is None else int(ids[place])
        taken.append([begin + p for p in places_of_row(sampling, own, end - begin)])
    return taken


def brute_force_sampled_spmm(graph, x, weights, sampling, rows=None, normalize=None):
    """(the result, the tolerance) in float64, from the list of the taken edges."""
    senders = np.asarray(graph.senders)
    degrees = np.diff(np.asarray(graph.row_offsets))
    unit, single = float(jax.numpy.finfo(x.dtype).eps), float(np.finfo(np.float32).eps)
    values = np.asarray(x, np.float64)
    w = np.ones(graph.num_edges) if weights is None else np.asarray(weights, np.float64)
    if normalize == "gcn":
        scale = 1 / np.sqrt(np.maximum(degrees, 1))
        receivers = np.repeat(np.arange(graph.num_receivers), degrees)
        normalized = scale[senders] * scale[receivers]
        w = w * normalized.reshape(-1, *[1] * (w.ndim - 1))
    w = w.reshape(w.shape + (1,) * (x.ndim - w.ndim))
    taken = taken_edges(graph, sampling, rows)
    out, magnitude = np.zeros((2, len(taken), *x.shape[1:]))
    for place, edges in enumerate(taken):
        if not edges:
            continue
        messages = w[edges] * values[senders[edges]]
        factor = 1.0
        if normalize == "mean":
            factor = 1 / len(edges)
        elif normalize in ("rescale", "gcn"):
            row = place if rows is None else rows[place]
            factor = degrees[row] / len(edges)
        out[place] = factor * messages.sum(0)
        magnitude[place] = factor * np.abs(messages).sum(0) * (len(edges) + 8)
    tolerance = 2 * unit * np.abs(out) + min(single, max(unit, 1e-7)) * magnitude + 1e-30
    if unit > single:  # the smallest steps of float16
        tolerance = tolerance * 1.01 + 2 * float(np.finfo(np.float16).smallest_subnormal) * 64
    return out, tolerance
