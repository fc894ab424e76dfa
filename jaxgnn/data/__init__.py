"""Node data: one dataset shape, readers of the usual files, generators of graphs."""

from jaxgnn.data.benchmark_graphs import (
    BenchmarkShape,
    benchmark_communities,
    benchmark_graph,
    benchmark_shapes,
)
from jaxgnn.data.csr import CSR
from jaxgnn.data.dataset import (
    Metadata,
    Metric,
    NodeDataset,
    Split,
    graph_statistics,
    homophily,
    normalize_features,
)
from jaxgnn.data.digits import digits
from jaxgnn.data.edges import read_edge_list, read_matrix_market
from jaxgnn.data.generators import (
    chains,
    chung_lu,
    configuration,
    power_law_weights,
    random_sizes,
    rmat,
    roads,
    stochastic_block_model,
)
from jaxgnn.data.graphsaint import read_graphsaint, read_reddit
from jaxgnn.data.limits import DataError
from jaxgnn.data.neighbors import knn
from jaxgnn.data.npz import read_heterophilous, read_shchur
from jaxgnn.data.ogb import read_ogb
from jaxgnn.data.planetoid import read_planetoid
from jaxgnn.data.registry import load, names
from jaxgnn.data.splits import fraction_splits, per_class_splits, split_fractions, split_per_class

__all__ = [
    "CSR",
    "BenchmarkShape",
    "DataError",
    "Metadata",
    "Metric",
    "NodeDataset",
    "Split",
    "benchmark_communities",
    "benchmark_graph",
    "benchmark_shapes",
    "chains",
    "chung_lu",
    "configuration",
    "digits",
    "fraction_splits",
    "graph_statistics",
    "homophily",
    "knn",
    "load",
    "names",
    "normalize_features",
    "per_class_splits",
    "power_law_weights",
    "random_sizes",
    "read_edge_list",
    "read_graphsaint",
    "read_heterophilous",
    "read_matrix_market",
    "read_ogb",
    "read_planetoid",
    "read_reddit",
    "read_shchur",
    "rmat",
    "roads",
    "split_fractions",
    "split_per_class",
    "stochastic_block_model",
]
