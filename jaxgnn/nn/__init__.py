"""Flax NNX modules: graph convolutions and models of them."""

from jaxgnn.nn.conv import (
    AGNNConv,
    AttentionWeights,
    DynamicEdgeConv,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    SAGEConv,
    TransformerConv,
)
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
    NodeMLP,
    Transformer,
)

__all__ = [
    "AGNN",
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "MLP",
    "MODELS",
    "AGNNConv",
    "AttentionWeights",
    "DynamicEdgeConv",
    "EdgeConv",
    "EdgeConvNet",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GraphSAGE",
    "MaxK",
    "NodeMLP",
    "SAGEConv",
    "Transformer",
    "TransformerConv",
    "annealed_k",
]
