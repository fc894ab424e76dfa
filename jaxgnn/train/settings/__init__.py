"""The options of a run: their values, checks, presets, and how a checkpoint keeps them."""
