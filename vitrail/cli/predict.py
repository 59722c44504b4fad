"""`vitrail predict` and `vitrail embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def predict(
    model: str,
    /,
    *inputs: str,
    out: Path | None = None,
    top: int = 5,
    fast: Annotated[bool, Parameter(negative="")] = False,
    classes: Path | None = None,
    format: Literal["csv", "jsonl", "parquet"] | None = None,
    batch: int = 32,
    workers: int = 0,
    device: str | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    max_bad: str = "100%",
    bad_list: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Say what is on images: a table of labels and probabilities, row by row.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, or a .safetensors file.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    out
        The table; its ending chooses CSV, JSON lines or Parquet. Without it, CSV on stdout.
    top
        How many labels an image.
    fast
        Decode large JPEGs at a reduced scale.
    classes
        A text file that names the outputs, one a line.
    format
        csv, jsonl or parquet, whatever the file is called.
    batch
        Images at a time.
    workers
        Processes that read images.
    device
        cuda, mps or cpu.
    precision
        fp32 or bf16.
    max_bad
        Stop when more of the images are bad than this.
    bad_list
        A CSV of the images that could not be read, with the reason.
    json
        JSON lines on stdout.
    quiet
        No progress.
    """
    from vitrail.engine.evaluate import Reading
    from vitrail.engine.predict import predict as answer
    from vitrail.engine.predict import rows
    from vitrail.engine.run import part
    from vitrail.engine.tables import open_table

    reading = Reading(
        batch=batch, workers=workers, device=device, precision=precision, max_bad=part(max_bad), quiet=quiet
    )
    answers = answer(model, inputs or ("-",), top=top, fast=fast, classes=classes, reading=reading, bad_list=bad_list)
    with open_table(out, "jsonl" if json else format) as table:
        for row in rows(answers):
            table.write(row)


def embed(
    model: str,
    /,
    *inputs: str,
    out: Path,
    batch: int = 32,
    workers: int = 0,
    device: str | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write the features of images: .npy (with the paths beside it), .jsonl, .csv or .parquet.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, or a .safetensors file.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    out
        Where the features go; its ending chooses the format.
    batch
        Images at a time.
    workers
        Processes that read images.
    device
        cuda, mps or cpu.
    precision
        fp32 or bf16.
    quiet
        No progress.
    """
    from vitrail.engine.evaluate import Reading
    from vitrail.engine.predict import embed as features
    from vitrail.engine.tables import write_features

    reading = Reading(batch=batch, workers=workers, device=device, precision=precision, quiet=quiet)
    print(write_features(out, features(model, inputs or ("-",), reading=reading)))
