"""Models: stacks of graph convolutions with one signature."""

from jaxgnn.nn.models.attention import AGNN, GAT, GATv2, Transformer
from jaxgnn.nn.models.convolutional import GCN, GIN, EdgeConvNet, GraphSAGE, MoNet, NodeMLP
from jaxgnn.nn.models.embedding import SAGEEmbedding
from jaxgnn.nn.models.gnn import GNN

MODELS: dict[str, type[GNN]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage_embedding": SAGEEmbedding,
    "gin": GIN,
    "gat": GAT,
    "gatv2": GATv2,
    "agnn": AGNN,
    "transformer": Transformer,
    "edgeconv": EdgeConvNet,
    "monet": MoNet,
    "mlp": NodeMLP,
}
"""Models by name; each is called as `MODELS[name](in_features, hidden_features, out_features,
*, num_layers=..., dropout=..., ..., rngs=rngs)`."""

__all__ = [
    "AGNN",
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "MODELS",
    "EdgeConvNet",
    "GATv2",
    "GraphSAGE",
    "MoNet",
    "NodeMLP",
    "SAGEEmbedding",
    "Transformer",
]
