"""The formats that `load` reads, a reader each."""
