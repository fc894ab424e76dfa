"""Edge lists in, sorted arrays on the device out; and whether they are those of a graph."""
