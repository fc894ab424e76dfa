"""Random graphs of exact size: block model, R-MAT, Chung-Lu, given degrees, chains, roads.

The work is done in C++, in parallel; a graph is a function of the arguments and the seed alone,
whatever the number of threads.
"""

from __future__ import annotations

import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Float, Int

from jaxgnn._core.arguments import as_integer
from jaxgnn._core.checks import number
from jaxgnn.data.files.limits import DataError
from jaxgnn.data.files.native import native_module
from jaxgnn.data.sets.csr import CSR, offsets_of


def stochastic_block_model(
    sizes: Int[np.ndarray, " blocks"],
    p: Float[np.ndarray, "blocks blocks"],
    *,
    undirected: bool = True,
    seed: int = 0,
    num_threads: int = 0,
) -> tuple[CSR, Int[np.ndarray, " num_nodes"]]:
    r"""Graph with an edge from a node of block $s$ to one of block $r$ with probability $p_{rs}$.

    Independently for each pair of different nodes (Holland, Laskey and Leinhardt, 1983).

    Args:
        sizes: nodes of each block; nodes are numbered block by block.
        p: probabilities, row the receiver's block; symmetric if `undirected`.
        undirected: draw each pair once and join it both ways.
        seed: of the random numbers.
        num_threads: 0 for the number that the hardware runs; the result does not depend on it.

    Returns:
        The graph and the block of each node, int32.

    Raises:
        DataError: an argument out of range.
    """
    sizes = np.asarray(sizes)
    if sizes.ndim != 1 or not sizes.size or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise DataError(f"sizes: expected at least one count of nodes, got {sizes!r:.80}")
    p = np.ascontiguousarray(p, np.float64)
    if p.shape != (sizes.size, sizes.size) or not ((p >= 0) & (p <= 1)).all():
        raise DataError(f"p: expected {sizes.size} x {sizes.size} probabilities, got {p!r:.80}")
    if undirected and not np.array_equal(p, p.T):
        raise DataError("p: expected a symmetric matrix of an undirected graph")
    offsets = offsets_of(sizes)
    csr = _call("block_model", offsets, p, undirected, as_seed(seed), num_threads=num_threads)
    return csr, np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)


def rmat(
    scale: int,
    edge_factor: float,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    undirected: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    num_threads: int = 0,
) -> CSR:
    """Recursive-matrix graph (Chakrabarti, Zhan and Faloutsos, 2004) of `2**scale` nodes.

    It has exactly `edge_factor * 2**scale` different edges (an even number if undirected) and no
    self-loops: sampling goes on until they are found.

    Args:
        scale: logarithm of the number of nodes.
        edge_factor: edges a node; of an undirected graph both directions count.
        a, b, c: probabilities of the quadrants, sender's half by receiver's half; the defaults
            are Graph500's.
        undirected: with every edge also its reverse.
        shuffle: renumber the nodes at random; otherwise the low ids are the hubs.
        seed, num_threads: as in `stochastic_block_model`.

    Raises:
        DataError: an argument out of range, or more edges than the distribution yields.
    """
    scale = _integer(scale, "scale")
    if not 1 <= scale <= 30:
        raise DataError(f"scale: expected 1 to 30, got {scale}")
    a, b, c = as_number(a, "a"), as_number(b, "b"), as_number(c, "c")
    if min(a, b, c) < 0 or a + b + c > 1 + 1e-9:
        raise DataError(f"a, b, c: expected probabilities of sum at most 1, got {a}, {b}, {c}")
    num_edges = _edge_count(as_number(edge_factor, "edge_factor") * (1 << scale), undirected)
    relabel = permutation(1 << scale, seed=seed) if shuffle else None
    arguments = (scale, a, b, c, num_edges, undirected, as_seed(seed), relabel)
    return _call("rmat", *arguments, num_threads=num_threads)


def chung_lu(
    weights: Int[np.ndarray, " num_nodes"],
    num_edges: int,
    *,
    community_sizes: Int[np.ndarray, " communities"] | None = None,
    intra_share: float = 0.0,
    undirected: bool = True,
    shuffle: bool = False,
    seed: int = 0,
    num_threads: int = 0,
) -> tuple[CSR, Int[np.ndarray, " num_nodes"]]:
    r"""Graph whose expected degrees follow `weights`, with planted communities.

    Both ends of an edge are drawn with probability $w_i / \sum_k w_k$ (Chung and Lu, 2002), the
    second, with probability `intra_share`, among the community of the first. There are exactly
    `num_edges` different edges (both directions of an undirected graph count) and no self-loops.

    Args:
        weights: non-negative integers, as of `power_law_weights`.
        num_edges: number of edges.
        community_sizes: nodes of each community, in order of the nodes; one community if None.
        intra_share: probability that an edge is drawn within a community (by chance, others
            fall into one as well).
        undirected: with every edge also its reverse.
        shuffle: renumber the nodes at random.
        seed, num_threads: as in `stochastic_block_model`.

    Returns:
        The graph and the community of each node, int32.

    Raises:
        DataError: an argument out of range, or more edges than the distribution yields.
    """
    weights = np.ascontiguousarray(weights)
    if weights.ndim != 1 or weights.dtype.kind not in "iu" or not (weights >= 0).all():
        raise DataError(f"weights: expected non-negative integers, got {weights!r:.80}")
    n = weights.size
    sizes = np.array([n]) if community_sizes is None else np.asarray(community_sizes)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any() or sizes.sum() != n:
        raise DataError(f"community_sizes: expected counts of sum {n}, got {sizes!r:.80}")
    if not 0 <= as_number(intra_share, "intra_share") <= 1:
        raise DataError(f"intra_share: expected 0 to 1, got {intra_share}")
    relabel = permutation(n, seed=seed) if shuffle else None
    csr = _call(
        "chung_lu",
        weights.astype(np.int64),
        offsets_of(sizes),
        float(intra_share),
        _edge_count(num_edges, undirected),
        undirected,
        as_seed(seed),
        relabel,
        num_threads=num_threads,
    )
    community = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)
    if relabel is not None:
        shuffled = np.empty_like(community)
        shuffled[relabel] = community
        community = shuffled
    return csr, community


def chains(
    chain_sizes: Int[np.ndarray, " chains"],
    num_edges: int,
    *,
    seed: int = 0,
    num_threads: int = 0,
) -> tuple[CSR, Int[np.ndarray, " num_nodes"]]:
    """Many small graphs, each a chain with contacts mostly at short distance, like proteins.

    Of ten edges nine join nodes $d$ apart, with probability proportional to $exp(-d/12)/d$ for
    $d$ up to 40, and one any two nodes of a chain. Undirected.

    Args:
        chain_sizes: nodes of each.
        num_edges: both directions count.
        seed, num_threads: as in `stochastic_block_model`.

    Returns:
        The graph and the chain of each node, int32.

    Raises:
        DataError: no chains, a negative size, or an option out of range.
    """
    sizes = np.asarray(chain_sizes)
    if sizes.ndim != 1 or not sizes.size or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise DataError(f"chain_sizes: expected at least one count of nodes, got {sizes!r:.80}")
    csr = _call(
        "chains",
        offsets_of(sizes),
        _edge_count(num_edges, True),
        as_seed(seed),
        num_threads=num_threads,
    )
    return csr, np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)


def molecules(
    molecule_sizes: Int[np.ndarray, " molecules"], num_edges: int, *, seed: int = 0
) -> tuple[CSR, Int[np.ndarray, " num_nodes"]]:
    """Many small graphs, each a tree with a few rings, like molecules.

    A node is bound to one of the four before it, mostly to the last; rings close over the fifth or,
    if these are all closed, the sixth before it. Undirected, and each graph is connected.

    Args:
        molecule_sizes: nodes of each.
        num_edges: both directions count; what the trees leave is rings.
        seed: as in `stochastic_block_model`.

    Returns:
        The graph and the molecule of each node, int32.

    Raises:
        DataError: an argument out of range, or fewer edges than trees or more than rings need.
    """
    sizes = np.asarray(molecule_sizes)
    if sizes.ndim != 1 or not sizes.size or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise DataError(f"molecule_sizes: expected counts of nodes, got {sizes!r:.80}")
    bonds = _edge_count(num_edges, True) // 2
    offsets = offsets_of(sizes)
    n = int(offsets[-1])
    before = np.arange(n) - np.repeat(offsets[:-1], sizes)  # nodes of the same molecule
    rng = np.random.default_rng(as_seed(seed))
    back = 1 + np.searchsorted([0.7, 0.85, 0.95], rng.random(n), side="right")
    bound = np.flatnonzero(before)
    ends = [bound]
    others = [bound - np.minimum(back, before)[bound]]
    missing = bonds - bound.size
    for distance in (5, 6):
        closable = np.flatnonzero(before >= distance)
        closed = rng.permutation(closable)[: max(missing, 0)]
        ends.append(closed)
        others.append(closed - distance)
        missing -= closed.size
    if missing:
        most = 2 * (bonds - missing) if missing > 0 else 2 * bound.size
        raise DataError(
            f"num_edges: expected at {'most' if missing > 0 else 'least'} {most} of these "
            f"molecules, got {num_edges}"
        )
    pair = np.concatenate(ends), np.concatenate(others)
    rows, columns = np.concatenate(pair), np.concatenate(pair[::-1])
    csr = scipy.sparse.csr_array((np.ones(rows.size, bool), (rows, columns)), shape=(n, n))
    csr.sort_indices()
    molecule = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)
    return CSR(csr.indptr.astype(np.int64), csr.indices.astype(np.int32)), molecule


def configuration(
    degrees: Int[np.ndarray, " num_nodes"],
    *,
    shuffle: bool = False,
    seed: int = 0,
    num_threads: int = 0,
) -> CSR:
    """Undirected graph of given degrees: the ends of edges are joined at random (Bollobás, 1980).

    There are exactly `degrees.sum()` edges, both directions counted. Self-loops and duplicates, few
    where the degrees are small beside the number of nodes, are replaced by edges between nodes
    drawn by degree: these nodes' degrees differ from the given ones.

    Args:
        degrees: non-negative integers of even sum.
        shuffle: renumber the nodes at random.
        seed, num_threads: as in `stochastic_block_model`.

    Raises:
        DataError: an argument out of range, or more edges than the distribution yields.
    """
    degrees = np.ascontiguousarray(degrees)
    if degrees.ndim != 1 or degrees.dtype.kind not in "iu" or not (degrees >= 0).all():
        raise DataError(f"degrees: expected non-negative integers, got {degrees!r:.80}")
    total = int(degrees.sum())
    if total % 2:
        raise DataError(f"degrees: expected an even sum, got {total}")
    relabel = permutation(degrees.size, seed=seed) if shuffle else None
    return _call(
        "configuration",
        degrees.astype(np.int64),
        total,
        as_seed(seed),
        relabel,
        num_threads=num_threads,
    )


def roads(
    num_nodes: int,
    num_edges: int,
    *,
    junction_share: float = 0.1,
    seed: int = 0,
    num_threads: int = 0,
) -> CSR:
    """Undirected graph like a network of roads: most nodes have two neighbors, nearby ones.

    Nodes are numbered along roads of at least two, which end with probability `junction_share`
    after each node. The other edges join an end of a road with a node $d < 2^{16}$ places away,
    with probability proportional to $1/d$.

    Args:
        num_nodes: number of nodes.
        num_edges: number of edges, both directions counted.
        junction_share: probability that a road ends at a node.
        seed, num_threads: as in `stochastic_block_model`.

    Raises:
        DataError: an argument out of range, or more edges than the distribution yields.
    """
    arguments = (_integer(num_nodes, "num_nodes"), as_number(junction_share, "junction_share"))
    return _call(
        "roads", *arguments, _edge_count(num_edges, True), as_seed(seed), num_threads=num_threads
    )


def power_law_weights(
    num_nodes: int, *, exponent: float, low_exponent: float, max_to_mean: float
) -> Int[np.ndarray, " num_nodes"]:
    r"""Expected degrees, descending: a power-law head, cut at the low end.

    $w(u) = (u + u_0)^{-a} (1 - u)^b$ at ranks $u$ in (0, 1), a the `exponent`, b the
    `low_exponent` and $u_0$ such that the largest is `max_to_mean` times the mean (or as near as
    $10^{-12} <= u_0 <= 1$ allows). As integers whose mean is about 4,096, at least 1.

    Raises:
        DataError: no nodes.
    """
    if num_nodes < 1:
        raise DataError(f"num_nodes: expected at least 1, got {num_nodes}")
    rank = (np.arange(num_nodes) + 0.5) / num_nodes

    def weights(shift: float) -> np.ndarray:
        return (rank + shift) ** -exponent * (1 - rank) ** low_exponent

    def excess(log_shift: float) -> float:
        w = weights(np.exp(log_shift))
        return float(np.log(w[0] / w.mean() / max_to_mean))

    low, high = np.log(1e-12), 0.0
    if excess(low) <= 0:
        log_shift = low
    elif excess(high) >= 0:
        log_shift = high
    else:
        log_shift = scipy.optimize.root_scalar(excess, bracket=(low, high)).root
    w = weights(np.exp(log_shift))
    return np.maximum(1, np.rint(w / w.mean() * 4096)).astype(np.int64)


def random_sizes(
    total: int, count: int, rng: np.random.Generator, *, low: float = 0.25, high: float = np.inf
) -> Int[np.ndarray, " count"]:
    """Sizes that sum to `total`: lognormal, clipped from `low` to `high` times the median."""
    spread = np.clip(np.exp(0.7 * rng.standard_normal(count)), low, high)
    ends = np.rint(np.cumsum(spread) / spread.sum() * total).astype(np.int64)
    return np.diff(ends, prepend=0)


def permutation(size: int, *, seed: int) -> Int[np.ndarray, " size"]:
    """A random permutation, int32, the same on every platform and NumPy."""
    return native_module("the generators").permutation(size, as_seed(seed))


def _integer(value: int, name: str) -> int:
    integer = as_integer(value)
    if integer is None:
        raise DataError(f"{name}: expected an integer, got {value!r}")
    return integer


def as_seed(seed: int) -> int:
    """`seed` as an integer that every generator takes, or a `DataError`."""
    seed = _integer(seed, "seed")
    if not 0 <= seed < 1 << 64:
        raise DataError(f"seed: expected 0 to 2**64 - 1, got {seed}")
    return seed


def as_number(value: float, name: str) -> float:
    """`value` as a finite number, or a `DataError`."""
    try:
        return number(value, name, -np.inf, np.inf)
    except (TypeError, ValueError) as error:
        raise DataError(str(error)) from None


def _edge_count(num_edges: float, undirected: bool) -> int:
    count = round(as_number(num_edges, "num_edges"))
    if count < 0:
        raise DataError(f"num_edges: expected 0 or more, got {count}")
    return count // 2 * 2 if undirected else count


def _call(generator: str, *arguments: object, num_threads: int) -> CSR:
    threads = _integer(num_threads, "num_threads")
    if threads < 0:
        raise DataError(f"num_threads: expected 0 or more, got {threads}")
    try:
        return CSR(*getattr(native_module("the generators"), generator)(*arguments, threads))
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{generator}: {error}") from error
