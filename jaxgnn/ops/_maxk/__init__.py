"""MaxK: the top-k nonlinearity and its sparse aggregation (CBSR)."""
