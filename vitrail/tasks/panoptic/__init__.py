"""Panoptic segmentation: every pixel belongs to one thing, or to the stuff of a class."""
