"""Model inspection: attention, learned filters and positions, explanations of predictions, and figures of them.

The functions take a task model or a backbone and normalised images (B, C, H, W). They restore the state of the model.
"""
