"""`draw_weights`: weights by which edges are drawn, made ready once for many calls."""

from __future__ import annotations

import jax
from jaxtyping import ArrayLike, Float

from jaxgnn.graph import Graph
from jaxgnn.ops._core import checks
from jaxgnn.ops._sampling.weighted import DrawWeights, ready_weights


@jax.named_scope("jaxgnn.draw_weights")
def draw_weights(
    graph: Graph, weights: Float[ArrayLike, " num_edges"], *, replace: bool = False
) -> DrawWeights:
    r"""Makes weights of the edges ready for `sample_neighbors`, once for many calls.

    A call that is given an array makes it ready itself, in O(edges), each time. What is drawn with
    the result has the probabilities that `sample_neighbors` states.

    With `replace` it builds an alias table: a row with $d$ edges has $d$ cells, each with a
    threshold $t_c$ and an alias $a_c$, another edge of the row. A draw takes two random words $u$,
    $v$ of 32 bits, and one step, where an array's prefix sums take $\log_2 d$:

    $$c = \lfloor u \, d / 2^{32} \rfloor, \qquad e = c \text{ if } v < t_c \text{ else } a_c$$

    $$P(e) = \frac{1}{d} \Bigl( \frac{t_e}{2^{32}} + \sum_{c : a_c = e} \bigl( 1 -
    \frac{t_c}{2^{32}} \bigr) \Bigr) \approx \frac{w_e}{\sum_{e'} w_{e'}}$$

    to $2^{-31} / d$ and a relative $2^{-32}$, in rows of at most $2^{14}$ edges. An edge of weight
    0 is never drawn, any other with at least $2^{-32} / d$. For the same key a table draws other
    edges than an array does.

    Without `replace` it takes the logarithms of the weights, in steps of $2^{-23}$, which the race
    compares. The edges are those that an array draws.

    Args:
        graph: the graph whose edges are drawn.
        weights: `[num_edges]`, in the graph's edge order (`Graph.sort_edge_data`), finite and at
            least 0. Those of float64 that float32 cannot hold count by their ratios in a row. They
            have no gradient.
        replace: as in the calls of `sample_neighbors` that are to come.

    Returns:
        `DrawWeights`, a pytree, to be an argument of jitted functions: of 8 bytes an edge with
        `replace`, else of 4, and 4 bytes a node. The host builds an alias table. Under `jit`, where
        it cannot, weights that are traced have prefix sums in its place, and those of them that are
        negative or not finite count as 0.

    Raises:
        TypeError: `graph` is no `Graph`, or `weights` are no floating-point numbers.
        ValueError: `weights` have another shape, or one is negative or not finite.

    Source: Walker, "An efficient method for generating discrete random variables with general
    distributions" (ACM TOMS 3, 1977); the construction, in integers: Vose, "A linear algorithm for
    generating random numbers with a given distribution" (IEEE TSE 17, 1991). Without replacement:
    Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (IPL 97, 2006).
    """
    checks.graph_argument(graph)
    checks.boolean(replace, "replace")
    if weights is None:
        raise TypeError("weights: expected floating-point numbers, got None")
    ready = ready_weights(graph, weights, replace, many=True)
    assert ready is not None
    return ready
