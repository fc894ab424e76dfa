from jaxgnn.graph.transform import *  # noqa: F403
from jaxgnn.graph.transform import __all__ as __all__
from jaxgnn.graph.transform import __doc__ as __doc__
