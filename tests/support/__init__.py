"""What the tests share: drawn graphs, oracles, parity with PyG."""
