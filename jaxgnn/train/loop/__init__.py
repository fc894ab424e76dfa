"""The epochs: programs in turn, stages, resuming, profiles."""
