"""The splits of a data set, and the names that folders, files and columns give them."""

from __future__ import annotations

# a name -> the split
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
SPLIT_ORDER = ("train", "val", "test")
