"""What the families share: rows, vmap folding, checks, padding, dropout masks."""
