"""A graph convolutional network in Flax Linen, by the NNX bridge: trained on the digits."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxgnn import data
from jaxgnn.nn import GCN


def evaluating(*args, **options) -> GCN:
    """The model with dropout and batch statistics turned off."""
    model = GCN(*args, **options)
    model.eval()
    return model


def main(epochs: int = 60) -> float:
    """Trains on five labeled images a class and returns the accuracy on the test nodes."""
    digits = data.load("digits")
    split = digits.split()
    graph, x, labels = digits.graph, jnp.asarray(digits.features), jnp.asarray(digits.labels)

    # The bridge: any jaxgnn module becomes a Linen module of the same arguments.
    model = nnx.bridge.to_linen(GCN, x.shape[1], 64, digits.num_classes, num_layers=2, dropout=0.5)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = model.init(keys, graph, x)["params"]

    optimizer = optax.adam(0.01)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, graph, key):
        def loss(params):
            logits = model.apply({"params": params}, graph, x, rngs={"dropout": key})
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(where=jnp.asarray(split.train))

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for epoch in range(epochs):
        params, state = step(params, state, graph, jax.random.key(epoch + 1))

    inference = nnx.bridge.to_linen(evaluating, x.shape[1], 64, digits.num_classes, num_layers=2)
    predictions = inference.apply({"params": params}, graph, x).argmax(axis=1)
    accuracy = float((predictions == labels).mean(where=jnp.asarray(split.test)))
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
