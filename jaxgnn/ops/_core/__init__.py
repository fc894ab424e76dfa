"""What the families share: rows, vmap folding, checks, padding, dropout masks.

`jaxgnn.nn` and `jaxgnn.algebra` use what is named here, and no module of this package.
"""

from jaxgnn.ops._core.degree import divide_by_degree
from jaxgnn.ops._core.dropout_mask import arguments as dropout_arguments
from jaxgnn.ops._core.dropout_mask import keep_factors
from jaxgnn.ops._core.parts import over_parts

__all__ = ["divide_by_degree", "dropout_arguments", "keep_factors", "over_parts"]
