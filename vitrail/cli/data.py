"""`vitrail data check`, `vitrail data shard` and `vitrail data index`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.output import AsJson
from vitrail.errors import DataError

if TYPE_CHECKING:
    from vitrail.rows import Records
    from vitrail.workflows.shard_data import Shards

Quiet = Annotated[bool, Parameter(negative="", help="No progress.")]


def check(
    data: str,
    /,
    *,
    task: Annotated[
        Literal["classify", "segment", "detect"] | None,
        Parameter(help="What is to be trained; by default what the data are annotated with."),
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="A folder for pictures with their boxes or masks: SPLIT/NAME.jpg.")
    ] = None,
    samples: Annotated[int, Parameter(help="With --out: pictures of each split, spread evenly over it.")] = 16,
    model: Annotated[
        str | None,
        Parameter(help="A model whose features find more copies between splits, such as mirrored and recoloured ones."),
    ] = None,
    fix_list: Annotated[
        Path | None, Parameter(help="A table of the images to remove, path,reason: .csv, .jsonl or .parquet.")
    ] = None,
    max_pixels: Annotated[
        int | None, Parameter(help="Largest width x height of an image file; a larger one is bad.")
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", help="The findings as one JSON object on the last line of stdout.")
    ] = False,
) -> None:
    """Read every image of a data set and report on it: layout, counts, sizes, bad files, duplicates, leaks, near copies.

    The exit code is 3 if `vitrail train` would refuse the data.

    Parameters
    ----------
    data
        What `vitrail train` takes.
    """
    from json import dumps

    from vitrail.workflows.api_data import check_data

    result = check_data(
        data, task=task, out=out, samples=samples, model=model, fix_list=fix_list, max_pixels=max_pixels
    )
    print(dumps(result.to_dict()) if json else result.to_text())
    if result.refused:
        raise DataError(f"`vitrail train` refuses these data: {result.refused}", "see the report above")


def shard(
    data: str,
    out: Path,
    /,
    *,
    images: Annotated[int, Parameter(help="Images of a shard; the last one has fewer.")] = 10_000,
    seed: Annotated[int, Parameter(help="Of the random order in which images are dealt to shards.")] = 0,
    split: Annotated[Literal["train", "val", "test"] | None, Parameter(help="Only this split.")] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Copy the images of a data set to tar shards in the format of webdataset, with an index.

    Files are copied as they are, and equal data give equal shards. A training on the shards is, bit for bit, the training on the
    original.

    Parameters
    ----------
    data
        What `vitrail train` takes; labels may be missing.
    out
        A new folder. Of several splits each gets a folder in it.
    """
    from vitrail.workflows.api_data import shard_data

    _print_shards(shard_data(data, out, images=images, seed=seed, split=split, quiet=quiet), json=json)


def index(
    folder: str,
    out: Path | None = None,
    /,
    *,
    classes: Annotated[
        Path | None, Parameter(help="Where labels are numbers: a text file with the names of the classes, one a line.")
    ] = None,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Read tar archives of others, in the format of webdataset, and write the index with which they can be trained on.

    Every archive is read once, in full. Labels are those of .cls, .json or .txt members.

    Parameters
    ----------
    folder
        A folder with .tar archives, or with folders of them named train, val and test; or the URL of one.
    out
        A new folder for the index, where it cannot be written beside the archives. It is then what `vitrail train` takes.
    """
    from vitrail.workflows.api_data import index_data

    _print_shards(index_data(folder, out, classes=classes, quiet=quiet), json=json)


def _print_shards(written: Records[Shards], *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line

    rows = written.to_rows()
    if json:
        print(one_line({row.pop("split"): row for row in rows}))
        return
    cells = [[f"{value:,}" if isinstance(value, int) else value for value in row.values()] for row in rows]
    print(columns(cells, head=list(rows[0])))
