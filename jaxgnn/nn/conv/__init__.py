"""Graph convolutions: one module a file."""

from jaxgnn.nn.conv._heads import AttentionWeights
from jaxgnn.nn.conv.agnn import AGNNConv
from jaxgnn.nn.conv.appnp import APPNP
from jaxgnn.nn.conv.dynamic_edge import DynamicEdgeConv
from jaxgnn.nn.conv.edge import EdgeConv
from jaxgnn.nn.conv.gat import GATConv
from jaxgnn.nn.conv.gatv2 import GATv2Conv
from jaxgnn.nn.conv.gcn import GCNConv
from jaxgnn.nn.conv.gin import GINConv
from jaxgnn.nn.conv.gine import GINEConv
from jaxgnn.nn.conv.gmm import GMMConv
from jaxgnn.nn.conv.pna import PNAConv
from jaxgnn.nn.conv.sage import SAGEConv
from jaxgnn.nn.conv.transformer import TransformerConv

__all__ = [
    "APPNP",
    "AGNNConv",
    "AttentionWeights",
    "DynamicEdgeConv",
    "EdgeConv",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "PNAConv",
    "SAGEConv",
    "TransformerConv",
]
