"""Data: from whatever a user has to batches of pictures and targets. Nothing here knows a parameter of a model."""
