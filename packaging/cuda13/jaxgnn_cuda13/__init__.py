"""jaxgnn's CUDA kernels for CUDA 13, which `import jaxgnn` finds."""

from importlib.metadata import version

__version__ = version("jaxgnn-cuda13")
