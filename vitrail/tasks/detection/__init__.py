"""Detection: a box and a class for every object."""
