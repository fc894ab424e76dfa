"""Trains a two-layer GCN on the handwritten digits with the library's parts and Optax alone."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxgnn import data, nn

dataset = data.load("digits")
split = dataset.split(0)
graph, x = dataset.graph, jnp.asarray(dataset.features)
labels = jnp.asarray(dataset.labels)

model = nn.GCN(
    dataset.num_features, 64, dataset.num_classes, num_layers=2, dropout=0.5, norm="layer",
    rngs=nnx.Rngs(0),
)  # fmt: skip
optimizer = nnx.Optimizer(model, optax.adamw(0.01, weight_decay=5e-3), wrt=nnx.Param)


# The graph is an argument: closed over, it would become a constant of the program.
@nnx.jit
def step(model, optimizer, graph, x, labels, mask):
    def loss_fn(model):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(graph, x), labels)
        return jnp.mean(losses, where=mask)

    loss, gradients = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def accuracy(model, graph, x, labels, mask):
    return jnp.mean(model(graph, x).argmax(axis=-1) == labels, where=mask)


def main(epochs: int = 100) -> float:
    """Trains, prints, and returns the test accuracy of the last epoch."""
    masks = {name: jnp.asarray(getattr(split, name)) for name in ("train", "val", "test")}
    for epoch in range(1, epochs + 1):
        model.train()
        loss = step(model, optimizer, graph, x, labels, masks["train"])
        if epoch % 20 == 0:
            model.eval()
            scores = [float(accuracy(model, graph, x, labels, masks[m])) for m in ("train", "val")]
            print(f"epoch {epoch}: loss {loss:.4f}, train {scores[0]:.3f}, val {scores[1]:.3f}")
    model.eval()
    test = float(accuracy(model, graph, x, labels, masks["test"]))
    print(f"test accuracy {test:.4f} on {jax.devices()[0].platform}")
    return test


if __name__ == "__main__":
    main()
