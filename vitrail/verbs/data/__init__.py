"""`vitrail data check`, `vitrail data shard` and `vitrail data index`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vitrail.config.schema import TASK_ALIASES, TaskAlias
from vitrail.errors import ConfigError, DataError
from vitrail.rows import Records
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.data.sources.source import Source
    from vitrail.tasks.task import Task
    from vitrail.verbs.data.findings import CheckResult
    from vitrail.verbs.data.shards import Shards

CopyFinder = Annotated[
    "str | Path | Task | None",
    "A model whose features find more copies between splits, such as mirrored and recoloured ones, and labels that may be wrong.",
]


@verb("task", "out")
def check_data(
    data: options.Data,
    *,
    task: Annotated[
        TaskAlias | None,
        "What is to be trained; by default what the data are annotated with.",
    ] = None,
    out: Annotated[
        options.File | None,
        "A folder for pictures with their boxes or masks, SPLIT/NAME.jpg, or with --model for labels.html.",
    ] = None,
    columns: options.Columns = None,
    samples: Annotated[int, "With --out: pictures of each split, spread evenly over it."] = 16,
    model: CopyFinder = None,
    cache: options.Cache = True,
    relabel: Annotated[
        options.File | None,
        "With --model: a table of all images, with the suggested labels, for `vitrail train`: .csv, .jsonl or .parquet.",
    ] = None,
    fix_list: Annotated[
        options.File | None, "A table of the images to remove, path,reason: .csv, .jsonl or .parquet."
    ] = None,
    max_pixels: Annotated[
        int | None, "Maximum width x height of an image file; a larger one counts as unreadable. By default 64 million."
    ] = None,
    log: options.Log = to_stderr,
) -> CheckResult:
    """Reads every image of a data set and reports on it: layout, counts, sizes, bad files, duplicates, leaks, near copies.

    Labels may be missing. The exit code of the command is 3 if `vitrail train` would refuse the data. With ``model`` images with
    one class each are searched for labels that may be wrong (confident learning, Northcutt et al. 2021): candidates to look at.

    Raises:
        ConfigError: ``relabel`` without ``model``, or the data themselves as ``relabel``.
        DataError: data that cannot be opened; with ``out`` data without boxes and masks, unless ``model`` is given and images
            have one class each; with ``relabel`` images that are no files or do not have one class each.
    """
    from vitrail.config.units import columns_of_table
    from vitrail.data.sources.open import find_data
    from vitrail.data.sources.source import list_splits
    from vitrail.tables import open_table
    from vitrail.untrusted.limits import PIXELS
    from vitrail.verbs.data.findings import check, open_to_check
    from vitrail.verbs.data.labels import check_table, write_page, write_table

    if columns:
        data = find_data(data, columns_of_table(columns))
    wanted = TASK_ALIASES[task] if task else None
    limit = max_pixels or PIXELS
    sources: dict[str, Source] = {}
    if relabel is not None and model is None:
        raise ConfigError("--relabel without a model to find labels that may be wrong", "add --model MODEL")
    if model is not None and (out is not None or relabel is not None):
        sources = list_splits(open_to_check(data, wanted, limit)[0])
    if relabel is not None:
        check_table(Path(relabel), sources, data)
    is_classified = any(source.single_label for source in sources.values())
    if out is not None and not is_classified:
        from vitrail.verbs.data.drawings import draw_data

        draw_data(data, Path(out), samples, log, wanted)
    loaded = kept = None
    if model is not None:
        from vitrail.inference.options import InferenceOptions

        loaded, kept = InferenceOptions().load(model, log), options.choose_cache(cache)
    result = check(data, task=wanted, model=loaded, cache=kept, max_pixels=limit)
    if out is not None and is_classified:
        write_page(Path(out), sources, result, limit, log)
    if relabel is not None:
        write_table(Path(relabel), sources, result, log)
    if fix_list is not None:
        rows = result.list_removals()
        with open_table(Path(fix_list), columns={"path": str, "reason": str}) as write:
            for row in rows:
                write(row)
        log(f"written  {fix_list}: {len(rows):,} images to remove")
    return result


def run_check(data: str, /, *, json: options.FindingsAsJson = False, **given: Any) -> None:
    from vitrail.verbs.printing import one_line

    result = check_data(data, **given)
    print(one_line(result.to_dict()) if json else result.to_text())
    if result.refused:
        raise DataError(f"`vitrail train` refuses these data: {result.refused}", "see the report above")


@verb("out", "images")
def shard_data(
    data: Annotated[Any, "What `vitrail train` takes; labels may be missing."],
    out: Annotated[str | Path, "A new folder. Of several splits each gets a folder in it."],
    *,
    images: Annotated[int, "Images of a shard; the last one has fewer."] = 10_000,
    seed: Annotated[int, "Seed of the random order in which images are dealt to shards."] = 0,
    split: Annotated[Literal["train", "val", "test"] | None, "Only this split."] = None,
    quiet: options.Quiet = False,
) -> Records[Shards]:
    """Copies the images of a data set to tar shards in the format of webdataset, with an index.

    Files are copied as they are, and equal data give equal shards. A training on the shards is, bit for bit, the training on the
    original.

    Returns:
        The shards of each split by its name.

    Raises:
        ConfigError: ``out`` is not empty, or ``images`` is less than 1.
        DataError: the data have no files of images or more than classes of images, or an image cannot be read.
        DiskError: the disk is full or cannot be written.
    """
    from vitrail.verbs.data.shards import write_shards

    return write_shards(data, Path(out), images=images, seed=seed, split=split, quiet=quiet)


def run_shard(data: str, out: Path, /, *, json: options.AsJson = False, **given: Any) -> None:
    _print_shards(shard_data(data, out, **given), json=json)


@verb()
def index_data(
    folder: Annotated[
        str | Path,
        "A folder with .tar archives, or with folders of them named train, val and test; or the URL of one.",
    ],
    out: Annotated[
        str | Path | None,
        "A new folder for the index, where it cannot be written beside the archives. It is then what `vitrail train` takes.",
    ] = None,
    *,
    classes: Annotated[
        options.File | Sequence[str] | None,
        "Where labels are numbers: a text file with the names of the classes, one a line; in Python also their names.",
    ] = None,
    quiet: options.Quiet = False,
    log: options.Log = to_stderr,
) -> Records[Shards]:
    """Reads tar archives of others, in the format of webdataset, and writes the index with which they can be trained on.

    Every archive is read once, in full. Labels are those of .cls, .json or .txt members.

    Raises:
        ConfigError: there is an index already, or the archives are at a URL and ``out`` is not given.
        DataError: an archive is damaged or has other members than files, or only some images have labels.
    """
    from vitrail.verbs.data.shards import index_shards
    from vitrail.weights.adapt import read_classes

    names = read_classes(Path(classes)) if isinstance(classes, str | Path) else classes
    return index_shards(str(folder), options.to_path(out), classes=names, quiet=quiet, log=log)


def run_index(folder: str, out: Path | None = None, /, *, json: options.AsJson = False, **given: Any) -> None:
    _print_shards(index_data(folder, out, **given), json=json)


def _print_shards(written: Records[Shards], *, json: bool) -> None:
    from vitrail.verbs.printing import columns, one_line

    rows = written.to_rows()
    if json:
        print(one_line({row.pop("split"): row for row in rows}))
        return
    cells = [[f"{value:,}" if isinstance(value, int) else value for value in row.values()] for row in rows]
    print(columns(cells, head=list(rows[0])))
