"""Flax NNX modules: graph convolutions and models of them."""

from jaxgnn.nn.conv import (
    AttentionWeights,
    DynamicEdgeConv,
    EdgeConv,
    GATConv,
    GCNConv,
    GINConv,
    GMMConv,
    SAGEConv,
)
from jaxgnn.nn.maxk import MaxK, annealed_k
from jaxgnn.nn.mlp import MLP
from jaxgnn.nn.models import GAT, GCN, GIN, GNN, MODELS, EdgeConvNet, GraphSAGE, MoNet, NodeMLP

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
    "GMMConv",
    "GraphSAGE",
    "MaxK",
    "MoNet",
    "NodeMLP",
    "SAGEConv",
    "annealed_k",
]
