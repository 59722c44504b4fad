"""Regression: one or several numbers of an image."""
