"""The figures of MaxK-GNN's tables (Peng et al., ASPLOS 2024), measured there on one A100 80 GB.

Ratios can be compared, milliseconds cannot: its "epoch" of Table 5 has the time of one aggregation.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A cell of Table 5.

    Attributes:
        score: in percent, of yelp and ogbn-proteins a share.
        ms: of an epoch.
        speedup: over the cuSPARSE model with ReLU.
        over_gnnadvisor: over GNNAdvisor's with ReLU.
    """

    score: float
    ms: float
    speedup: float = 1.0
    over_gnnadvisor: float | None = None


# By data set and model; k None is ReLU.
TABLE_5: dict[tuple[str, str], dict[int | None, Entry]] = {
    ("reddit", "sage"): {
        None: Entry(96.51, 54.9),
        32: Entry(96.65, 25.5, 2.16, 2.84),
        16: Entry(96.37, 17.0, 3.22, 4.24),
    },
    ("reddit", "gcn"): {
        None: Entry(95.02, 54.5),
        16: Entry(95.42, 16.7, 3.27, 4.30),
        8: Entry(95.46, 15.7, 3.48, 4.58),
    },
    ("reddit", "gin"): {
        None: Entry(95.07, 54.6),
        16: Entry(95.11, 16.7, 3.27, 4.32),
        8: Entry(95.05, 15.8, 3.47, 4.57),
    },
    ("ogbn-proteins", "sage"): {
        None: Entry(0.7976, 23.4),
        64: Entry(0.7928, 18.6, 1.25, 1.71),
        32: Entry(0.7812, 12.9, 1.81, 2.47),
    },
    ("ogbn-proteins", "gcn"): {
        None: Entry(0.646, 23.2),
        16: Entry(0.6236, 8.43, 2.75, 3.77),
        2: Entry(0.6958, 7.94, 2.92, 4.00),
    },
    ("ogbn-proteins", "gin"): {
        None: Entry(0.583, 23.3),
        4: Entry(0.6277, 7.81, 2.98, 4.07),
        2: Entry(0.6812, 7.97, 2.92, 3.99),
    },
    ("ogbn-products", "sage"): {
        None: Entry(80.39, 133.6),
        32: Entry(80.59, 87.1, 1.53, 1.61),
        16: Entry(80.0, 77.9, 1.72, 1.80),
    },
    ("ogbn-products", "gcn"): {
        None: Entry(76.58, 129.6),
        32: Entry(76.34, 83.2, 1.56, 1.64),
        8: Entry(76.21, 71.6, 1.81, 1.91),
    },
    ("ogbn-products", "gin"): {
        None: Entry(77.79, 130.7),
        8: Entry(77.69, 72.7, 1.80, 1.89),
        4: Entry(77.98, 69.8, 1.87, 1.97),
    },
    ("yelp", "sage"): {
        None: Entry(0.6376, 36.5),
        96: Entry(0.6339, 34.2, 1.07, 1.19),
        32: Entry(0.61, 29.6, 1.23, 1.37),
    },
    ("yelp", "gcn"): {
        None: Entry(0.4718, 34.3),
        96: Entry(0.4819, 32.0, 1.07, 1.20),
        32: Entry(0.4628, 27.5, 1.25, 1.40),
    },
    ("yelp", "gin"): {
        None: Entry(0.4578, 34.9),
        96: Entry(0.464, 32.7, 1.07, 1.20),
        32: Entry(0.4422, 28.1, 1.24, 1.39),
    },
    ("flickr", "sage"): {
        None: Entry(53.31, 3.52),
        32: Entry(53.6, 3.35, 1.05, 1.12),
        8: Entry(53.35, 3.26, 1.08, 1.15),
    },
    ("flickr", "gcn"): {
        None: Entry(49.78, 3.42),
        8: Entry(53.45, 3.17, 1.08, 1.15),
        4: Entry(53.25, 3.16, 1.08, 1.15),
    },
    ("flickr", "gin"): {
        None: Entry(50.78, 3.35),
        8: Entry(53.11, 3.10, 1.08, 1.15),
        4: Entry(52.99, 3.09, 1.08, 1.15),
    },
}


class Training(NamedTuple):
    """A row of Table 3."""

    layers: int
    hidden: int
    epochs: int
    learning_rate: float
    dropout: float


TABLE_3 = {
    "flickr": Training(3, 256, 400, 0.001, 0.2),
    "yelp": Training(4, 384, 3000, 0.001, 0.1),
    "reddit": Training(4, 256, 3000, 0.01, 0.5),
    "ogbn-products": Training(3, 256, 500, 0.003, 0.5),
    "ogbn-proteins": Training(3, 256, 1000, 0.01, 0.5),
}

# Figure 8, means over graphs of mean degree above 50: speed-up over cuSPARSE by k, of width 256.
FIGURE_8 = {
    "forward": {8: 4.63, 16: 4.15, 32: 2.54, 64: 1.46},
    "backward": {8: 6.93, 16: 5.39, 32: 2.55, 64: 1.46},
}
FASTER_UP_TO_128 = {"forward": 92.2, "backward": 87.5}  # percent of the cases with k <= 128

# Table 4: milliseconds, Reddit, width 256, k = 32.
TABLE_4 = {"dense": 44.98, "forward": 15.49, "backward": 15.07, "select": 0.261}


class Traffic(NamedTuple):
    """A column of Table 2: gigabytes, and hits in percent."""

    gigabytes: float
    l1_hits: float
    l2_hits: float


TABLE_2 = {
    "dense": Traffic(138.05, 1.53, 51.75),
    "forward": Traffic(13.13, 22.16, 75.44),
    "backward": Traffic(14.02, 28.27, 89.43),
}
