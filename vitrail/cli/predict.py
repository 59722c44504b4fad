"""`vitrail predict` and `vitrail embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.inference_flags import InferenceFlags


def predict(
    model: str,
    /,
    *inputs: str,
    out: Path | None = None,
    top: int = 5,
    fast: Annotated[bool, Parameter(negative="")] = False,
    format: Literal["csv", "jsonl", "parquet"] | None = None,
    bad_list: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    using: InferenceFlags = InferenceFlags(),
) -> None:
    """Say what is on images: a table of labels and probabilities, row by row.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a .safetensors file, or an .onnx of `vitrail export`.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    out
        The table; its ending chooses CSV, JSON lines or Parquet. Without it, CSV on stdout.
    top
        How many labels an image.
    fast
        Decode large JPEGs at a reduced scale.
    format
        csv, jsonl or parquet, whatever the file is called.
    bad_list
        A CSV of the images that could not be read, with the reason.
    json
        JSON lines on stdout.
    """
    from vitrail.reports.tables import open_table
    from vitrail.workflows.predict import predict as answer
    from vitrail.workflows.predict import rows

    options = using.reading_images(max_bad="100%")
    answers = answer(
        model, inputs or ("-",), top=top, fast=fast, classes=using.classes, options=options, bad_list=bad_list
    )
    with open_table(out, "jsonl" if json else format) as table:
        for row in rows(answers):
            table.write(row)


def embed(
    model: str,
    /,
    *inputs: str,
    out: Path,
    using: InferenceFlags = InferenceFlags(),
) -> None:
    """Write the features of images: .npy (with the paths beside it), .jsonl, .csv or .parquet.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a .safetensors file, or an .onnx of `vitrail export`.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    out
        Where the features go; its ending chooses the format.
    """
    from vitrail.reports.tables import write_features
    from vitrail.workflows.predict import embed as features

    options = using.reading_images(max_bad="1%")
    print(write_features(out, features(model, inputs or ("-",), options=options)))
