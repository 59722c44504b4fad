"""Instance segmentation: a mask and a class for every object."""
