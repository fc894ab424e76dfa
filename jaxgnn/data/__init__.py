"""Datasets of nodes, of graphs, and graphs without a task: readers of files, and generators."""

from jaxgnn.data.cache.downloads import download
from jaxgnn.data.files.limits import DataError
from jaxgnn.data.formats.edges import (
    read_edge_list,
    read_edges,
    read_matrix_market,
    read_weighted_matrix_market,
)
from jaxgnn.data.formats.graphml import read_graphml
from jaxgnn.data.formats.graphsaint import read_graphsaint, read_reddit
from jaxgnn.data.formats.label_sets import read_label_sets
from jaxgnn.data.formats.matrices import read_mat, read_scipy
from jaxgnn.data.formats.meshes import read_obj, read_off
from jaxgnn.data.formats.npz import read_heterophilous, read_shchur
from jaxgnn.data.formats.ogb import read_ogb
from jaxgnn.data.formats.ogb_graphs import read_ogb_graphs
from jaxgnn.data.formats.partitioned import partition_arrays, read_partition
from jaxgnn.data.formats.planetoid import read_planetoid
from jaxgnn.data.formats.point_clouds import read_points
from jaxgnn.data.formats.ppi import read_ppi
from jaxgnn.data.formats.tables import read_tables
from jaxgnn.data.formats.tcgnn import read_tcgnn
from jaxgnn.data.formats.tudataset import read_tudataset
from jaxgnn.data.generated.benchmark_graphs import (
    BenchmarkShape,
    benchmark_communities,
    benchmark_graph,
    benchmark_shapes,
)
from jaxgnn.data.generated.digits import digits
from jaxgnn.data.generated.generators import (
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
from jaxgnn.data.generated.neighbors import knn
from jaxgnn.data.loading.registry import load, load_nodes, names
from jaxgnn.data.sets.csr import CSR
from jaxgnn.data.sets.dataset import (
    Metadata,
    Metric,
    NodeDataset,
    Split,
    graph_statistics,
    homophily,
    normalize_features,
)
from jaxgnn.data.sets.graph_set import GraphSet
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.data.sets.splits import (
    fold_splits,
    fraction_splits,
    per_class_splits,
    split_fractions,
    split_per_class,
)

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
