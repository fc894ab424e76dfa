"""Edge lists in, sorted arrays on the device out."""
