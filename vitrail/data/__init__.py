"""Data: sources, augmentation, preprocessing and batches. Independent of models."""
