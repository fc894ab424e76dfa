"""Features that are categories, as sums of learned embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from jaxgnn._core import checks
from jaxgnn._core.arguments import unwrap
from jaxgnn.graph._build.ordered_sum import take_in_order
from jaxgnn.nn import _inputs
from jaxgnn.nn._linear import Initializer, check_options, count, width


class CategoryEmbedding(nnx.Module):
    r"""A row of features for several categories: the sum of a learned embedding of each column.

    $$y_i = \sum_c T^{(c)}_{x_{ic}}$$

    with a table $T^{(c)}$ of its own for each column, such as the atomic number and the charge of
    an atom. Sums of the gradient are in a fixed order, on a GPU too.

    Args:
        num_categories: how many values each column takes: 0, 1, ...
        features: width of the rows.
        dtype: of the result; by default `param_dtype`.
        param_dtype: of the tables.
        embedding_init: initial values of each table; by default Xavier's uniform ones.
        rngs: `params` is used.

    Raises:
        TypeError, ValueError: a number, width, dtype or `rngs` that is none, or no columns.

    Source: OGB's `AtomEncoder` and `BondEncoder` (Hu et al., NeurIPS 2020).
    """

    def __init__(
        self,
        num_categories: Sequence[int],
        features: int,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        embedding_init: Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        if not isinstance(num_categories, Iterable):
            got = type(num_categories).__name__
            raise TypeError(f"num_categories: expected a number for each column, got {got}")
        sizes = [count(size, "num_categories", "categories") for size in num_categories]
        if not sizes:
            raise ValueError("num_categories: expected a number for each column, got none")
        self.features = width(features, "features")
        check_options(dtype, param_dtype, rngs)
        self.num_categories = tuple(sizes)
        self.dtype = jnp.dtype(param_dtype if dtype is None else dtype)
        init = embedding_init or jax.nn.initializers.xavier_uniform()
        # One table, the columns' one after the other: one gather, and one sum backward.
        tables = [init(rngs.params(), (size, self.features), param_dtype) for size in sizes]
        self.embedding = nnx.Param(jnp.concatenate(tables))

    def __call__(self, x: Shaped[Array, "rows columns"]) -> Float[Array, "rows features"]:
        """The rows of features.

        Args:
            x: the categories, integers or floats that are whole. What is no category of its column,
                such as 1.5, adds nothing.

        Raises:
            TypeError: a dtype that does not hold all categories.
            ValueError: another number of columns.
        """
        x = checks.as_numbers(_inputs.within_32_bits(unwrap(x)), "x")
        sizes = np.asarray(self.num_categories, np.int64)
        if x.ndim != 2 or x.shape[1] != sizes.size:
            raise ValueError(f"x: expected the shape (rows, {sizes.size}), got {x.shape}")
        _check_dtype(x.dtype, int(sizes.max()))
        starts, total = np.cumsum(sizes) - sizes, int(sizes.sum())
        # The last category is a number of the dtype. One more need not be: 257 is 256 in bfloat16.
        known = (x >= 0) & (x <= jnp.asarray(sizes - 1, x.dtype)[None])
        if jnp.issubdtype(x.dtype, jnp.floating):
            known &= x == jnp.floor(x)
        category = jnp.where(known, x, jnp.zeros_like(x)).astype(jnp.int32)
        places = jnp.where(known, category + jnp.asarray(starts, jnp.int32)[None], total)
        rows = take_in_order(self.embedding[...].astype(self.dtype), places.reshape(-1))
        return rows.reshape(*x.shape, self.features).sum(axis=1)


def _check_dtype(dtype: jnp.dtype, size: int) -> None:
    if jnp.issubdtype(dtype, jnp.integer):
        holds = int(jnp.iinfo(dtype).max) + 1
    elif jnp.issubdtype(dtype, jnp.floating):
        holds = 2 ** (jnp.finfo(dtype).nmant + 1) + 1
    else:
        raise TypeError(f"x: expected integers or floats, got {dtype}")
    if holds < size:
        raise TypeError(f"x: expected a dtype that holds numbers to {size - 1}, got {dtype}")
