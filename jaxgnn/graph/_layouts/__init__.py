"""What a GPU's kernels read beside the edges: row schedules, windows, tiles."""
