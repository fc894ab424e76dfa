"""The sizes of tiles, as in `cpu/tiles/layout.h`."""

ROWS = 64  # of a window
ROW_GROUPS = 8  # of a window: rows g, g + 8, ..., g + 56
BATCH_ENTRIES = 16
BATCH_WORDS = 32  # of a batch's mask, one a lane of a warp
STAGE_BATCHES = 4
PART_BATCHES = 384  # of a part, at most
