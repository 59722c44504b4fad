"""Looking inside a model: what it attends to, what it has learned, and what its answers rest on; and the pictures of it.

What measures takes a classifier or a backbone and normalised images (B, C, H, W), and leaves the model as it found it.
"""
