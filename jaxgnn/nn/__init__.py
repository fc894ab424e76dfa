"""Flax NNX modules: graph convolutions and models of them."""

from jaxgnn.nn.conv import (
    AttentionWeights,
    DynamicEdgeConv,
    EdgeConv,
    GATConv,
    GCNConv,
    GINConv,
    SAGEConv,
)
from jaxgnn.nn.maxk import MaxK, annealed_k
from jaxgnn.nn.mlp import MLP
from jaxgnn.nn.models import GAT, GCN, GIN, GNN, MODELS, EdgeConvNet, GraphSAGE, NodeMLP

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "MLP",
    "MODELS",
    "AttentionWeights",
    "DynamicEdgeConv",
    "EdgeConv",
    "EdgeConvNet",
    "GATConv",
    "GCNConv",
    "GINConv",
    "GraphSAGE",
    "MaxK",
    "NodeMLP",
    "SAGEConv",
    "annealed_k",
]
