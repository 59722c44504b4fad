"""Image files: decoding to pixels, ranges of values, masks as run lengths. Independent of data sets and models."""
