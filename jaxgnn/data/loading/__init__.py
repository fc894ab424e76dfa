"""`load`: which reader reads a name or a path, and what is made of its edges."""
