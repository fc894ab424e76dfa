"""Files that nobody vouches for, read within limits: arrays, tables, JSON, pickles."""
