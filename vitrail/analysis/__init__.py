"""Model inspection: attention, learned filters and position embeddings, explanations of predictions, and figures.

The functions take a task model or a backbone and normalised images (B, C, H, W). They restore the state of the model.
"""
