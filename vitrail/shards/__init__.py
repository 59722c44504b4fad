"""Tar shards: archives of many images, in the format of webdataset, beside an index of where each image is."""
