"""Many graphs as one: their data, and padding to few shapes."""
