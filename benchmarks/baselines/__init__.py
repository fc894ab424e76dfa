"""What jaxgnn is compared with: plain JAX, cuSPARSE, `torch.sparse`, PyG, SciPy."""
