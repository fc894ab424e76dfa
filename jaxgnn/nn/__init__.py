"""Flax NNX modules: graph convolutions and models of them."""

from jaxgnn.nn._dropout import Dropout
from jaxgnn.nn.attention_readout import AttentionReadout
from jaxgnn.nn.batch_norm import BatchNorm
from jaxgnn.nn.category_embedding import CategoryEmbedding
from jaxgnn.nn.conv import (
    APPNP,
    AGNNConv,
    AttentionWeights,
    DynamicEdgeConv,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GMMConv,
    PNAConv,
    SAGEConv,
    TransformerConv,
)
from jaxgnn.nn.graph_norm import GraphNorm
from jaxgnn.nn.layer_norm import LayerNorm
from jaxgnn.nn.links import DotDecoder, MLPDecoder, NodeEmbedding
from jaxgnn.nn.maxk import MaxK, annealed_k
from jaxgnn.nn.mlp import MLP
from jaxgnn.nn.models import (
    AGNN,
    GAT,
    GCN,
    GIN,
    GNN,
    MODELS,
    EdgeConvNet,
    GATv2,
    GraphSAGE,
    MoNet,
    NodeMLP,
    SAGEEmbedding,
    Transformer,
)

__all__ = [
    "AGNN",
    "APPNP",
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "MLP",
    "MODELS",
    "AGNNConv",
    "AttentionReadout",
    "AttentionWeights",
    "BatchNorm",
    "CategoryEmbedding",
    "DotDecoder",
    "Dropout",
    "DynamicEdgeConv",
    "EdgeConv",
    "EdgeConvNet",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "GraphNorm",
    "GraphSAGE",
    "LayerNorm",
    "MLPDecoder",
    "MaxK",
    "MoNet",
    "NodeEmbedding",
    "NodeMLP",
    "PNAConv",
    "SAGEConv",
    "SAGEEmbedding",
    "Transformer",
    "TransformerConv",
    "annealed_k",
]
