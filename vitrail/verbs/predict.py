"""`vitrail predict`: answers for files, folders, globs, manifests or standard input, streamed to a table or to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from vitrail.errors import ConfigError, nearest
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.devices import PartDevices, launch_parts, write_parts_on_ranks
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.inference.parts.write import Division
    from vitrail.inference.results import Results
    from vitrail.tasks.answer import Answer, AnswerFiles
    from vitrail.tasks.task import Task

INDEX = "index.csv"


@verb("out", "top", "threshold", "parts", "batch")
def predict(
    model: options.AnyModel,
    inputs: options.Inputs,
    *,
    out: Annotated[
        options.File | None,
        "The table: .csv, .jsonl or .parquet; of objects also .json (COCO's results) or a folder (YOLO's text files), of "
        "pixels a folder (masks). By default CSV on stdout.",
    ] = None,
    top: Annotated[int, "Number of labels per image."] = 5,
    threshold: Annotated[float | None, "Minimum score of an object; by default that of the detector."] = None,
    zoom: options.Zoom = 1.0,
    tta: options.Tta = None,
    overlay: Annotated[
        options.File | None, "A folder for the pictures with objects or classes drawn on them: NAME.drawn.jpg."
    ] = None,
    fast: Annotated[
        bool,
        "Trade small differences for speed: decode large JPEGs at a reduced scale, and compute the outputs of many images "
        "by the fastest of PyTorch, torch.compile, ONNX Runtime and OpenVINO (also in int8) that gives the answers of fp32.",
    ] = False,
    format: Annotated[
        Literal["csv", "jsonl", "parquet", "coco", "yolo", "ids", "masks"] | None,
        "Format of the result; by default that of the file extension, with --parts parquet.",
    ] = None,
    log: options.Log = to_stderr,
    **given: Unpack[options.ReadingInParts],
) -> Results[Answer] | Any:
    """Predicts what images show, in the order of the inputs: labels, objects, or the class of every pixel.

    The result is a table. Of objects it may also be COCO's results (--out boxes.json) or YOLO's text files (--out labels/), of
    pixels a folder of masks (--out masks/). For many images, --parts DIR writes it in parts, by one or many processes.

    Returns:
        An iterator, which answers batch by batch as it is read; its ``failed`` are the images that could not be read. With
        ``out`` the path of the finished table, which has a row for every image, or of the finished file or folder in a format
        of the model's task. With ``parts`` the path of that folder, in which all parts, or those of the shard, are done.

    Raises:
        ConfigError: with ``parts``, the folder has parts of other images, another model or other options.
        DataError: an input that does not exist; with ``out`` or ``parts``, after all is written, an image that was named by
            its path could not be read, or none could.
    """
    reading = options.parse(given, max_bad=options.ALL, zoom=zoom, tta=tta)
    from vitrail.inference.inputs import find_inputs
    from vitrail.inference.options import tune_options
    from vitrail.inference.outputs import answer_images, check_fast, prepare_drawing
    from vitrail.inference.precision import settle_precision
    from vitrail.inference.results import Results
    from vitrail.tasks.task import choose_decode_options

    if division := choose_division(given, out=out, format=format, overlay=overlay, kinds=("parquet", "jsonl")):
        from vitrail.inference.parts.compute import Job
        from vitrail.inference.parts.write import write_parts

        asked = {"top": top, "threshold": threshold, "fast": fast}
        job = Job(verb="predict", model=model, options=reading, asked=asked)
        return write_parts(job, options.list_inputs(inputs), division, log)
    task = reading.load(model, log)
    wanted = choose_decode_options(task, top=top, threshold=threshold)
    if overlay is not None and not task.draws_answers:
        what = f"pictures of answers of the task {task.name}, which do not lie in the picture"
        raise ConfigError(what, "leave --overlay out; `vitrail explain` shows what an answer rests on")
    check_fast(fast, reading)
    images = find_inputs(options.list_inputs(inputs))
    reading, comparison = settle_precision(reading, task, log, source=images.source)
    reading = tune_options(reading, task, log, images=len(images.source))
    bad = reading.record_bad(images.source, options.to_path(given["bad_list"]))
    pixels = reading.max_pixels
    draw = None if overlay is None else prepare_drawing(images.source, Path(overlay), task.preprocessing, pixels)
    how: Any = {"bad": bad, "fast": fast, "draw": draw}
    if fast:
        from vitrail.inference.runtimes import choose_runtime

        runtime = choose_runtime(task, reading, log, source=images.source)
        reading, how["verb"] = runtime.options, runtime.verb
        comparison = runtime.comparison or comparison
    answers = answer_images(task, images.source, reading, wanted, **how)
    results = Results(answers, images, bad, done="predicted", log=log, task=task, comparison=comparison)
    if out is None:
        return results
    write_answers(results, Path(out), format)
    return Path(out)


def run(
    model: str,
    /,
    *inputs: str,
    devices: PartDevices = None,
    json: Annotated[bool, "JSON lines on stdout."] = False,
    **given: Any,
) -> int:
    if (code := launch_parts(devices, given, inputs)) is not None:
        return code
    answer = partial(predict, model, inputs or ("-",))
    kind = "jsonl" if json else given.pop("format", None)
    if given.get("parts") is not None:
        write_parts_on_ranks(answer, {**given, "format": kind})
        return 0
    out = given.pop("out", None)
    write_answers(answer(**given), out, kind)
    return 0


def choose_division(
    given: Mapping[str, Any], *, format: str | None, kinds: tuple[str, ...], **outputs: object
) -> Division | None:
    """Returns how the work of `predict` or `embed` is divided, from the options of `options.Parts`; None without ``parts``.

    Raises `ConfigError` for options that have no meaning without ``parts``, and with it for other ``outputs``.
    """
    if given["parts"] is None:
        for name in ("part_size", "shard", "engine"):
            if given[name] is not None:
                what = f"--{name.replace('_', '-')} divides parts, and there is no --parts"
                raise ConfigError(what, "give --parts DIR")
        return None
    for name, value in {**outputs, "bad_list": given["bad_list"], "max_bad": given["max_bad"]}.items():
        if value is not None:
            what = f"--{name.replace('_', '-')} and --parts are both given"
            raise ConfigError(what, "leave one out: parts have a row for every image, with the reason if it is bad")
    from vitrail.config.units import parse_share
    from vitrail.inference.parts.write import PART_SIZE, Division

    if (kind := format or "parquet") not in kinds:
        raise ConfigError(f"parts are not written as {kind}", f"--format {' or '.join(kinds)}")
    return Division(
        folder=Path(given["parts"]),
        size=PART_SIZE if given["part_size"] is None else given["part_size"],
        shard=(0, 1) if given["shard"] is None else parse_share(given["shard"], "--shard"),
        engine=given["engine"] or "local",
        format=kind,
    )


def write_answers(results: Results[Answer], out: Path | None = None, kind: str | None = None) -> None:
    """Writes the answers in the format ``kind``, by default that of the ending of ``out``; in none of the task's a table.

    A folder also gets ``index.csv``: the rows of every image, with the name of its file. Raises `ConfigError` for a format that
    the task does not have and a folder in which answers would replace images that were given, and as `write_rows`.
    """
    from vitrail.inference.inputs import name_files
    from vitrail.inference.results import list_rows
    from vitrail.tables import open_table
    from vitrail.text import plural

    task = results.task
    assert task is not None
    chosen = _choose_format(task, out, kind)
    if chosen is None:
        write_rows(results, out, kind)
        return
    if out is None:
        raise ConfigError(f"the format {kind} cannot be written to stdout", "give --out")
    names = name_files(list(map(str, results.images.source.keys)))
    is_folder = not chosen.suffix
    written = {(out / f"{name}{chosen.each}").resolve() for name in names.values()} if is_folder else set()
    if replaced := sorted(written & {Path(key).resolve() for key in names}):
        what = f"{out} has images that the answers would replace, such as {replaced[0].name}"
        raise ConfigError(what, "give another folder")
    files = chosen(out, task.classes)

    def write_each() -> Iterator[tuple[str, Answer | None]]:
        for key, answer in results.pairs():
            files.write(names[key], key, answer)
            yield key, answer

    with open_table(out / INDEX) if is_folder else nullcontext() as write:
        for row in list_rows(write_each(), results.failed):
            if write is not None:
                file = "" if row["error"] else names[row["path"]] + chosen.each
                write({"path": row["path"], "file": file, **row})
    files.close()
    results.log(f"written  {out}: {plural(results.count + len(results.failed), 'image')}")
    for note in files.notes:
        results.log(f"note     {note}")
    results.finish(out)


def _choose_format(task: Task, out: Path | None, kind: str | None) -> type[AnswerFiles] | None:
    """Returns the format that is named, or that of the ending of ``out``; None for a table."""
    from vitrail.tables import TABLES

    if kind is not None:
        if kind in task.formats or kind in TABLES:
            return task.formats.get(kind)
        what = f"there is no format {kind!r} for the task {task.name}"
        raise ConfigError(what, nearest(kind, [*task.formats, *TABLES]))
    if out is None:
        return None
    suffix = "" if out.is_dir() else out.suffix.lower()
    return next((each for each in task.formats.values() if each.suffix == suffix), None)


def write_rows(results: Results[Any], out: Path | None = None, kind: str | None = None) -> None:
    """Writes the rows of every image to the table ``out``, and says so, or to stdout; see `open_table` for the kinds.

    Raises `DataError` as `Results.check`, after the table is complete.
    """
    from vitrail.inference.results import list_rows
    from vitrail.tables import open_table
    from vitrail.text import plural

    with open_table(out, kind) as write:
        for row in list_rows(results.pairs(), results.failed):
            write(row)
    if out is None:
        return results.check()
    results.log(f"written  {out}: {plural(results.count + len(results.failed), 'image')}")
    results.finish(out)
