"""jaxgnn as the benchmarks run it, by public names alone."""
