from jaxgnn.graph.tiles import *  # noqa: F403
from jaxgnn.graph.tiles import __all__ as __all__
from jaxgnn.graph.tiles import __doc__ as __doc__
