"""The verbs of data sets for Python: `check_data`, `shard_data` and `index_data` are ``vitrail data check`` and so on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.rows import Records
from vitrail.runtime.progress import Say, to_stderr
from vitrail.workflows.api_options import to_path

if TYPE_CHECKING:
    from vitrail.tasks.task import Task
    from vitrail.workflows.check_data import CheckResult
    from vitrail.workflows.shard_data import Shards


def check_data(
    data: Any,
    *,
    task: Literal["classify", "segment", "detect"] | None = None,
    out: str | Path | None = None,
    samples: int = 16,
    model: str | Path | Task | None = None,
    fix_list: str | Path | None = None,
    max_pixels: int | None = None,
    log: Say = to_stderr,
) -> CheckResult:
    """Reads every image of a data set and says what was found: layout, counts, sizes, bad files, duplicates, leaks.

    Args:
        data: anything that `train` takes; labels may be missing.
        task: that is to be trained; by default what the data are annotated with.
        out: a folder for pictures with their boxes or masks, ``SPLIT/NAME.jpg``.
        samples: pictures of each split in that folder, spread evenly over it.
        model: a model whose features find more copies between splits, such as mirrored and recoloured ones.
        fix_list: a table of the images to remove, ``path,reason``, as CSV, JSON lines or Parquet by its name.
        max_pixels: of an image file; a larger one is bad. By default 64 million.
        log: takes lines on what is written.

    Raises `DataError` for data that cannot be opened, and with ``out`` for data without boxes or masks.
    """
    from vitrail.config.schema import TASK_VERBS
    from vitrail.tables import open_table
    from vitrail.untrusted.limits import PIXELS
    from vitrail.workflows.check_data import check

    if place := to_path(out):
        from vitrail.workflows.draw_data import draw_data

        draw_data(data, place, samples, log)
    loaded = None if model is None else _load(model, log)
    result = check(data, task=TASK_VERBS[task] if task else None, model=loaded, max_pixels=max_pixels or PIXELS)
    if place := to_path(fix_list):
        rows = result.list_removals()
        with open_table(place, columns={"path": str, "reason": str}) as table:
            for row in rows:
                table.write(row)
        log(f"written  {place}: {len(rows):,} images to remove")
    return result


def _load(model: str | Path | Task, log: Say) -> Task:
    from vitrail.inference.options import InferenceOptions

    return InferenceOptions().load(model, None, log)


def shard_data(
    data: Any, out: str | Path, *, images: int = 10_000, seed: int = 0, split: str | None = None, quiet: bool = False
) -> Records[Shards]:
    """Copies the images of a data set to tar shards in the format of webdataset, with an index, and returns those of each split.

    A training on the shards is, bit for bit, the training on the original.

    Args:
        data: anything that `train` takes, with or without labels.
        out: a new folder; of several splits each gets a folder in it.
        images: of a shard; the last one has fewer.
        seed: of the random order in which images are dealt to shards.
        split: train, val or test: only this one.
        quiet: no progress.

    Raises `DataError` for data without files of images or with more than classes of images, and for an image that cannot be read.
    """
    from vitrail.workflows.shard_data import shard_data as write

    return write(data, Path(out), images=images, seed=seed, split=split, quiet=quiet)


def index_data(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    classes: str | Path | Sequence[str] | None = None,
    quiet: bool = False,
    log: Say = to_stderr,
) -> Records[Shards]:
    """Reads tar archives of others, in the format of webdataset, and writes the index with which they can be trained on.

    Args:
        folder: with archives, or with folders of them named train, val and test; or the URL of one.
        out: a new folder for the index, where it cannot be written beside the archives; it is then what `train` takes.
        classes: where labels are numbers: names, or a text file with one a line.
        quiet: no progress.

    Raises `DataError` for an archive that is damaged or has other members than files, and where only some images have labels.
    """
    from vitrail.weights.adapt import read_classes
    from vitrail.workflows.index_shards import index_shards

    names = read_classes(Path(classes)) if isinstance(classes, str | Path) else classes
    return index_shards(str(folder), to_path(out), classes=names, quiet=quiet, say=log)
