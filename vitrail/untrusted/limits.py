"""How much is read of a file from an untrusted source, by format."""

from __future__ import annotations

# of any file
FILE_BYTES = 2**29  # a raw TIFF of 64 million pixels with 16 bits per channel has 2**28.5
# of documents: JSON, YAML and XML
DEPTH = 100  # of nested lists, objects and elements; the recursion limit of Python is ten times as high
DIGITS = 40  # of a whole number; every one converts to a finite float
YAML_BYTES = 2**20
YAML_NODES = 50_000  # with those that aliases and merge keys repeat; 20,000 names of classes have 40,000
HEADER_BYTES = 16 * 2**20  # of JSON that describes weights
HEADER_PIECES = 500_000  # keys, values and brackets of it, which need far more memory than their text
# of tables and lists
LINE_CHARACTERS = 2**20
LIST_BYTES = 2**24  # of names of classes, or what maps them
LABEL_BYTES = 2**20  # of a member of an archive that holds the label of an image
# of archives
MEMBER_BYTES = 2**29
EXTENDED_HEADER_BYTES = 2**20  # of a tar archive: a long name, or pax records
EXPANSION = 20  # of archives of weights: bytes of content by bytes of the file
DATA_EXPANSION, DATA_SPARED_BYTES = 200, 2**28  # of archives of images, which compress better, beyond these bytes
# of weights
TENSORS = 10_000
CLASSES = 1_000_000  # that are numbers without names
# of pictures
PIXELS = 64_000_000  # width x height
FARTHEST = 100_000  # pixels of a polygon's corner from the origin, which is walked to
BOUNDARY = 400_000  # pixels that the boundary of a polygon is long, which is walked along
IDS = 2**16  # different values of a map of ids
RUNS = 2**23  # of equal pixels in the columns of a map of ids
