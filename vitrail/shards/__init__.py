"""Tar shards: archives of many images, in the format of webdataset, beside an index of where each image is.

Nothing here knows what is in an image, or what a class is for.
"""
