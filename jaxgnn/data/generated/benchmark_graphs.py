"""Graphs with the sizes and the degrees of the usual benchmark sets, for timing kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int

from jaxgnn.data.files.limits import DataError
from jaxgnn.data.generated.generators import (
    as_number,
    as_seed,
    chains,
    chung_lu,
    configuration,
    molecules,
    power_law_weights,
    random_sizes,
    roads,
)
from jaxgnn.data.sets.csr import CSR


@dataclasses.dataclass(frozen=True)
class BenchmarkShape:
    """What a set's stand-in has in common with it.

    Attributes:
        num_nodes, num_edges: exact; edges count in both directions.
        exponent, low_exponent, max_to_mean: of the degrees; see `power_law_weights`.
        communities, intra_share: number of communities, share of the edges drawn inside one.
        shuffle: whether ids are in random order (else sorted by community).
        undirected: whether the graph is symmetric.
        chains: number of graphs, of a set of many small ones (the other fields have no meaning).
        degree_shares: shares of the nodes with degree 1, 2 to 3, 4 to 7 and so on, in place of the
            fields on degrees and communities.
        roads: whether it is a network of roads, in place of the same fields.
        molecules: number of graphs, of a set of molecules (the other fields have no meaning).
        features, classes: of the set's nodes; 0 where nothing of ours needs them.
    """

    num_nodes: int
    num_edges: int
    exponent: float = 0.0
    low_exponent: float = 0.0
    max_to_mean: float = 1.0
    communities: int = 1
    intra_share: float = 0.0
    shuffle: bool = True
    undirected: bool = True
    chains: int = 0
    degree_shares: tuple[float, ...] = ()
    roads: bool = False
    molecules: int = 0
    features: int = 0
    classes: int = 0


_SHAPES = {
    "reddit": BenchmarkShape(232_965, 114_615_892, 0.55, 0.90, 60, 41, 0.70),
    "proteins": BenchmarkShape(132_534, 79_122_504, 0.35, 0.60, 15, 40, 0.80),
    "products": BenchmarkShape(2_449_029, 123_718_280, 0.55, 0.60, 350, 2000, 0.70),
    "arxiv": BenchmarkShape(169_343, 2_315_598, 0.65, 0.40, 2200, 400, 0.60),
    "amazon0601": BenchmarkShape(
        403_394,
        3_387_388,
        0.55,
        0.50,
        1100,
        20_000,
        0.80,
        shuffle=False,
        undirected=False,
        features=96,
        classes=22,
    ),
    "artist": BenchmarkShape(
        50_515, 1_638_396, 0.55, 0.70, 45, 100, 0.50, features=100, classes=12
    ),
    "dd": BenchmarkShape(334_925, 1_686_092, chains=1178, features=89, classes=2),
    "pokec": BenchmarkShape(
        1_632_803,
        44_603_928,
        degree_shares=(10.0, 12.3, 14.6, 16.7, 18.3, 16.2, 9.1, 2.4, 0.3),
    ),
    "europe_osm": BenchmarkShape(50_912_018, 108_109_320, shuffle=False, roads=True),
    # The other sets of TC-GNN's Table 4. An odd number of edges is of a directed graph.
    "citeseer": BenchmarkShape(3_327, 9_464, 0.55, 0.50, 35, 60, 0.80, features=3703, classes=6),
    "cora": BenchmarkShape(2_708, 10_858, 0.55, 0.50, 42, 50, 0.80, features=1433, classes=7),
    "pubmed": BenchmarkShape(19_717, 88_676, 0.55, 0.50, 38, 200, 0.70, features=500, classes=3),
    "ppi": BenchmarkShape(
        56_944, 818_716, 0.55, 0.70, 50, 24, 1.0, shuffle=False, features=50, classes=121
    ),
    "proteins_full": BenchmarkShape(43_471, 162_088, chains=1113, features=29, classes=2),
    "ovcar_8h": BenchmarkShape(1_890_931, 3_946_402, molecules=40_516, features=66, classes=2),
    "yeast": BenchmarkShape(1_714_644, 3_636_546, molecules=79_601, features=74, classes=2),
    "yeast_h": BenchmarkShape(3_139_988, 6_487_230, molecules=79_601, features=75, classes=2),
    "amazon0505": BenchmarkShape(
        410_236,
        4_878_875,
        0.55,
        0.50,
        230,
        20_000,
        0.80,
        shuffle=False,
        undirected=False,
        features=96,
        classes=22,
    ),
    "com_amazon": BenchmarkShape(
        334_863, 1_851_744, 0.55, 0.50, 100, 16_000, 0.80, features=96, classes=22
    ),
    "soc_blogcatalog": BenchmarkShape(
        88_784, 2_093_195, 0.55, 0.70, 200, 39, 0.40, undirected=False, features=128, classes=39
    ),
    # Other sets of MaxK-GNN. Of yelp's 13,954,819 edges one is left out: an even number is
    # symmetric. ddi and ppa have OGB's training edges, in both directions.
    "flickr": BenchmarkShape(89_250, 899_756, 0.60, 0.40, 540, 195, 0.50),
    "yelp": BenchmarkShape(716_847, 13_954_818, 0.60, 0.55, 200, 500, 0.60),
    "ddi": BenchmarkShape(4_267, 2_135_822, 0.30, 0.50, 4.5, 8, 0.30),
    "ppa": BenchmarkShape(576_289, 42_463_862, 0.55, 0.60, 44, 58, 0.80),
}


def benchmark_shapes() -> dict[str, BenchmarkShape]:
    """The shapes that `benchmark_graph` knows, by name."""
    return dict(_SHAPES)


def benchmark_graph(name: str, scale: float = 1.0, seed: int = 1, *, num_threads: int = 0) -> CSR:
    """The stand-in of a benchmark set: `(row_offsets, senders)`, without self-loops or duplicates.

    Args:
        name: one of `benchmark_shapes`.
        scale: of the numbers of nodes and of edges alike.
        seed: of the random numbers.
        num_threads: 0 for the number that the hardware runs; the result does not depend on it.

    Raises:
        DataError: no such name, or a scale or seed out of range.
    """
    return benchmark_communities(name, scale, seed, num_threads=num_threads)[0]


def benchmark_communities(
    name: str, scale: float = 1.0, seed: int = 1, *, num_threads: int = 0
) -> tuple[CSR, np.ndarray]:
    """`benchmark_graph` and the community of each node, int32.

    Args:
        name, scale, seed, num_threads: as in `benchmark_graph`.

    Raises:
        DataError: as `benchmark_graph` does.
    """
    if name not in _SHAPES:
        raise DataError(f"name: expected one of {', '.join(_SHAPES)}, got {name!r}")
    if not 0 < as_number(scale, "scale") <= 10:
        raise DataError(f"scale: expected more than 0, at most 10, got {scale!r}")
    seed = as_seed(seed)
    shape = _SHAPES[name]
    n = max(64, int(shape.num_nodes * scale))
    # At most half of all pairs, where a small scale makes the graph dense.
    num_edges = min(int(shape.num_edges * scale), n * (n - 1) // 2)
    rng = np.random.default_rng(seed)
    if shape.chains:
        count = max(1, round(shape.chains * n / shape.num_nodes))
        sizes = random_sizes(n, count, rng, low=0.15, high=12)
        return chains(sizes, num_edges, seed=seed, num_threads=num_threads)
    if shape.molecules:
        count = max(1, round(shape.molecules * n / shape.num_nodes))
        return molecules(random_sizes(n, count, rng, high=4), num_edges, seed=seed)
    if shape.roads or shape.degree_shares:
        one = np.zeros(n, np.int32)
        if shape.roads:
            return roads(n, num_edges, seed=seed, num_threads=num_threads), one
        degrees = degrees_of_shares(n, num_edges, shape.degree_shares)
        # In random order: a permutation of the degrees is one of the nodes.
        degrees = degrees[rng.permutation(n)]
        return configuration(degrees, seed=seed, num_threads=num_threads), one
    weights = power_law_weights(
        n,
        exponent=shape.exponent,
        low_exponent=shape.low_exponent,
        max_to_mean=shape.max_to_mean,
    )
    sizes = random_sizes(n, max(1, min(shape.communities, n // 8)), rng)
    return chung_lu(
        # Nodes of any degree in any community.
        weights[rng.permutation(n)],
        num_edges,
        community_sizes=sizes,
        intra_share=shape.intra_share,
        undirected=shape.undirected,
        shuffle=shape.shuffle,
        seed=seed,
        num_threads=num_threads,
    )


def degrees_of_shares(
    num_nodes: int, num_edges: int, shares: tuple[float, ...]
) -> Int[np.ndarray, " num_nodes"]:
    """Ascending degrees, of even sum `num_edges`, of which `shares` are in [2^i, 2^(i + 1)).

    Within a class their logarithms follow one power law, whose exponent makes the sum.
    """
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * num_nodes).astype(np.int64)
    counts = np.diff(ends, prepend=0)
    classes = np.repeat(np.arange(len(shares)), counts)
    ranks = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])

    def degrees(log_exponent: float) -> np.ndarray:
        return np.floor(np.exp2(classes + ranks ** np.exp(log_exponent))).astype(np.int64)

    wanted = num_edges // 2 * 2
    low, high = 5.0, -5.0  # exponents for few edges and for many
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if degrees(middle).sum() <= wanted else (low, middle)
    found = degrees(low)
    # What is missing, few edges, goes to the largest degrees that have room in their class.
    room = np.flatnonzero(found + 1 < np.exp2(classes + 1))[::-1]
    missing = max(wanted - int(found.sum()), 0)
    found[room[:missing]] += 1
    return found
