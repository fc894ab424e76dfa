from jaxgnn.graph.batch import *  # noqa: F403
from jaxgnn.graph.batch import __all__ as __all__
from jaxgnn.graph.batch import __doc__ as __doc__
