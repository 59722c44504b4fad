"""Classification: one class of several, or each a yes or no."""
