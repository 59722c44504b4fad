"""Looking inside a model: what it attends to, what it has learned, and what its answer rests on.

Every function takes a classifier or a backbone and normalised images (B, C, H, W), and leaves the model as it found it.
"""
