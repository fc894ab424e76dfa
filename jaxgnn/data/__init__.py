"""Datasets of nodes, of graphs, and graphs without a task: readers of files, and generators."""

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
from jaxgnn.data.downloads import download
from jaxgnn.data.edges import (
    read_edge_list,
    read_edges,
    read_matrix_market,
    read_weighted_matrix_market,
)
from jaxgnn.data.generators import (
    chains,
    chung_lu,
    configuration,
    molecules,
    power_law_weights,
    random_sizes,
    rmat,
    roads,
    stochastic_block_model,
)
from jaxgnn.data.graph_set import GraphSet
from jaxgnn.data.graphml import read_graphml
from jaxgnn.data.graphsaint import read_graphsaint, read_reddit
from jaxgnn.data.label_sets import read_label_sets
from jaxgnn.data.limits import DataError
from jaxgnn.data.matrices import read_mat, read_scipy
from jaxgnn.data.meshes import read_obj, read_off
from jaxgnn.data.neighbors import knn
from jaxgnn.data.npz import read_heterophilous, read_shchur
from jaxgnn.data.ogb import read_ogb
from jaxgnn.data.ogb_graphs import read_ogb_graphs
from jaxgnn.data.partitioned import partition_arrays, read_partition
from jaxgnn.data.plain_graph import PlainGraph
from jaxgnn.data.planetoid import read_planetoid
from jaxgnn.data.point_clouds import read_points
from jaxgnn.data.ppi import read_ppi
from jaxgnn.data.registry import load, load_nodes, names
from jaxgnn.data.splits import (
    fold_splits,
    fraction_splits,
    per_class_splits,
    split_fractions,
    split_per_class,
)
from jaxgnn.data.tables import read_tables
from jaxgnn.data.tcgnn import read_tcgnn
from jaxgnn.data.tudataset import read_tudataset

__all__ = [
    "CSR",
    "BenchmarkShape",
    "DataError",
    "GraphSet",
    "Metadata",
    "Metric",
    "NodeDataset",
    "PlainGraph",
    "Split",
    "benchmark_communities",
    "benchmark_graph",
    "benchmark_shapes",
    "chains",
    "chung_lu",
    "configuration",
    "digits",
    "download",
    "fold_splits",
    "fraction_splits",
    "graph_statistics",
    "homophily",
    "knn",
    "load",
    "load_nodes",
    "molecules",
    "names",
    "normalize_features",
    "partition_arrays",
    "per_class_splits",
    "power_law_weights",
    "random_sizes",
    "read_edge_list",
    "read_edges",
    "read_graphml",
    "read_graphsaint",
    "read_heterophilous",
    "read_label_sets",
    "read_mat",
    "read_matrix_market",
    "read_obj",
    "read_off",
    "read_ogb",
    "read_ogb_graphs",
    "read_partition",
    "read_planetoid",
    "read_points",
    "read_ppi",
    "read_reddit",
    "read_scipy",
    "read_shchur",
    "read_tables",
    "read_tcgnn",
    "read_tudataset",
    "read_weighted_matrix_market",
    "rmat",
    "roads",
    "split_fractions",
    "split_per_class",
    "stochastic_block_model",
]
