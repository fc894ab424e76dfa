"""The oracle of attention: sampled rows of its results and gradients in float64, by NumPy."""

from __future__ import annotations

import concurrent.futures
import os

import numpy as np
from jaxtyping import Float, Int

from tests.support import oracle_rows as oracle

SLOPE = 0.2
_SEED = 22
# A sender's gradient needs the results of all its receivers: so many of these at most.
_RECEIVERS = 512


class Oracle:
    """Additive attention with a LeakyReLU over the neighbors, head by head."""

    def __init__(
        self,
        row_offsets: Int[np.ndarray, " nodes+1"],
        senders: Int[np.ndarray, " edges"],
        transpose_row_offsets: Int[np.ndarray, " nodes+1"],
        transpose_receivers: Int[np.ndarray, " edges"],
        features: Float[np.ndarray, "nodes width"],
        source: Float[np.ndarray, "nodes heads"],
        target: Float[np.ndarray, "nodes heads"],
    ) -> None:
        self._offsets, self._columns = row_offsets, senders
        self._transpose = transpose_row_offsets, transpose_receivers
        self._features = features
        self._source = source.astype(np.float64)
        self._target = target.astype(np.float64)
        self._heads = source.shape[1]

    def forward_error(self, got: Float[np.ndarray, "nodes width"]) -> float:
        """The largest relative error of a sampled row."""
        rows = oracle.sample_rows(self._offsets, seed=_SEED)
        expected = np.stack([self._row(row)[0].reshape(-1) for row in rows])
        return oracle.row_error(got[rows].astype(np.float64), expected)

    def backward_error(
        self,
        cotangent: Float[np.ndarray, "nodes width"],
        features: Float[np.ndarray, "nodes width"],
        source: Float[np.ndarray, "nodes heads"],
        target: Float[np.ndarray, "nodes heads"],
        kept: Float[np.ndarray, "nodes width"] | None = None,
    ) -> float:
        """The largest relative error of a sampled row of the gradients.

        A score's gradient is a sum of terms that cancel, down to 0 where all scores of a row have
        one sign: its error is relative to the sum of their magnitudes. `kept` is 1 where features
        are kept, else 0.
        """
        errors = [self._feature_error(cotangent, features, kept)]
        dense = self._heads_of(cotangent)
        for rows, got, terms in (
            (self._senders(), source, self._sender_terms),
            (oracle.sample_rows(self._offsets, seed=_SEED), target, self._receiver_terms),
        ):
            for row in rows:
                each = terms(int(row), dense)
                size = np.linalg.norm(np.abs(each).sum(axis=0))
                difference = np.linalg.norm(got[row].astype(np.float64) - each.sum(axis=0))
                errors.append(float(difference / size) if size else float(difference))
        return max(errors) if np.isfinite(errors).all() else float("inf")

    def _feature_error(
        self, cotangent: np.ndarray, got: np.ndarray, kept: np.ndarray | None
    ) -> float:
        """Of the gradient of the features, whose terms are cotangents by their weights."""
        offsets, receivers = self._transpose
        totals = self._totals()
        dense = self._heads_of(cotangent)
        rows = oracle.sample_rows(offsets, seed=_SEED)
        expected = np.zeros((rows.size, cotangent.shape[1]))
        for place, sender in enumerate(rows):
            ends = receivers[int(offsets[sender]) : int(offsets[sender + 1])]
            weights = np.exp(_leaky(self._source[sender] + self._target[ends])) / totals[ends]
            terms = weights[:, :, None] * dense[ends].astype(np.float64)
            expected[place] = terms.sum(axis=0).reshape(-1)
        if kept is not None:
            expected *= kept[rows]
        return oracle.row_error(got[rows].astype(np.float64), expected)

    def _heads_of(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(array.shape[0], self._heads, -1)

    def _row(self, receiver: int) -> tuple[np.ndarray, ...]:
        """A receiver's result `[heads, features]`; its senders, weights, slopes and features."""
        offsets = self._offsets
        senders = self._columns[int(offsets[receiver]) : int(offsets[receiver + 1])]
        scores = self._source[senders] + self._target[receiver]
        weights = np.exp(_leaky(scores))
        weights /= weights.sum(axis=0)
        values = self._heads_of(self._features)[senders].astype(np.float64)
        out = (weights[:, :, None] * values).sum(axis=0)
        return out, senders, weights, np.where(scores > 0, 1, SLOPE), values

    def _receiver_terms(self, receiver: int, cotangent: np.ndarray) -> np.ndarray:
        """The gradients of the scores of a receiver's edges, `[edges, heads]`."""
        return self._row_terms(receiver, cotangent)[0]

    def _row_terms(self, receiver: int, cotangent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same with the edges' senders."""
        out, senders, weights, slopes, values = self._row(receiver)
        dense = cotangent[receiver].astype(np.float64)
        return weights * ((values - out) * dense).sum(axis=-1) * slopes, senders

    def _sender_terms(self, sender: int, cotangent: np.ndarray) -> np.ndarray:
        """The gradients of the scores of the edges that a sender begins."""
        offsets, receivers = self._transpose
        terms = []
        for receiver in np.unique(receivers[int(offsets[sender]) : int(offsets[sender + 1])]):
            of_row, senders = self._row_terms(int(receiver), cotangent)
            terms.append(of_row[senders == sender])
        return np.concatenate(terms) if terms else np.zeros((0, self._heads))

    def _senders(self) -> Int[np.ndarray, " sample"]:
        """Of random senders those with the fewest receivers, as long as they are few in all."""
        offsets, _ = self._transpose
        rows = np.random.default_rng(_SEED).permutation(offsets.size - 1)[:256]
        lengths = np.diff(offsets)[rows]
        order = np.argsort(lengths)
        return rows[order][np.cumsum(lengths[order]) <= _RECEIVERS]

    def _totals(self) -> Float[np.ndarray, "nodes heads"]:
        """The sum of the exponentials of each receiver, which are small: no maximum is taken."""
        offsets = np.asarray(self._offsets)
        totals = np.ones((offsets.size - 1, self._heads))

        def run(start: int) -> None:
            stop = min(start + 4096, offsets.size - 1)
            first, last = int(offsets[start]), int(offsets[stop])
            if first == last:
                return
            lengths = np.diff(offsets[start : stop + 1])
            scores = self._source[self._columns[first:last]]
            scores += np.repeat(self._target[start:stop], lengths, axis=0)
            begins = (offsets[start:stop] - first)[lengths > 0]
            sums = np.add.reduceat(np.exp(_leaky(scores)), begins, axis=0)
            totals[start:stop][lengths > 0] = sums

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, range(0, offsets.size - 1, 4096)))
        return totals


def _leaky(scores: np.ndarray) -> np.ndarray:
    return np.where(scores > 0, scores, SLOPE * scores)
