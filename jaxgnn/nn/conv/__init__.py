"""Graph convolutions: one module a file."""

from jaxgnn.nn.conv.dynamic_edge import DynamicEdgeConv
from jaxgnn.nn.conv.edge import EdgeConv
from jaxgnn.nn.conv.gat import AttentionWeights, GATConv
from jaxgnn.nn.conv.gcn import GCNConv
from jaxgnn.nn.conv.gin import GINConv
from jaxgnn.nn.conv.gmm import GMMConv
from jaxgnn.nn.conv.sage import SAGEConv

__all__ = [
    "AttentionWeights",
    "DynamicEdgeConv",
    "EdgeConv",
    "GATConv",
    "GCNConv",
    "GINConv",
    "GMMConv",
    "SAGEConv",
]
