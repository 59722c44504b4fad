"""The options of `vitrail predict` and `vitrail embed`, which answer for any number of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypedDict

from vitrail.config.flags_inference import BadList, Flag, ManyFlags, Zoom


class PartsFlags(TypedDict, total=False):
    """How the work on many images is divided."""

    parts: Annotated[
        str | Path | None,
        Flag(
            "A folder for the results of many images, in parts: the same command resumes, wherever it was killed.",
            word=Path,
        ),
    ]
    part_size: Annotated[int | None, Flag("With --parts: images per part, 4096 by default.")]
    shard: Annotated[
        str | None, Flag("With --parts: compute only the share of one of several processes, 0/8 to 7/8 of eight.")
    ]
    engine: Annotated[
        Literal["local", "ray"] | None,
        Flag(
            "With --parts: local, this process, by default; or ray, actors on a machine or a cluster that Ray manages."
        ),
    ]


class AnswerFlags(ManyFlags, total=False):
    """What `vitrail predict` answers and writes."""

    out: Annotated[
        str | Path | None,
        Flag(
            "The table: .csv, .jsonl or .parquet; of objects also .json (COCO's results) or a folder (YOLO's text files), of "
            "pixels a folder (masks). By default CSV on stdout.",
            word=Path,
        ),
    ]
    top: Annotated[int, Flag("Number of labels per image.", 5)]
    threshold: Annotated[float | None, Flag("Least score of an object; by default that of the detector.")]
    zoom: Zoom
    overlay: Annotated[
        str | Path | None,
        Flag("A folder for the pictures with objects or classes drawn on them: NAME.drawn.jpg.", word=Path),
    ]
    fast: Annotated[bool, Flag("Decode large JPEGs at a reduced scale.", False)]
    format: Annotated[
        Literal["csv", "jsonl", "parquet", "coco", "yolo", "masks"] | None,
        Flag("Format of the result; by default that of the file extension, with --parts parquet."),
    ]
    bad_list: BadList


class PredictFlags(AnswerFlags, PartsFlags, total=False):
    """`vitrail predict`."""


class FeatureFlags(ManyFlags, total=False):
    """What `vitrail embed` writes."""

    out: Annotated[str | Path | None, Flag("Output file: .npy, .csv, .jsonl or .parquet.", word=Path)]
    format: Annotated[
        Literal["parquet", "jsonl", "npy"] | None, Flag("With --parts: format of the parts, parquet by default.")
    ]
    bad_list: BadList


class EmbedFlags(FeatureFlags, PartsFlags, total=False):
    """`vitrail embed`."""
