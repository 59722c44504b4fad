"""`vitrail embed`: the features of images, streamed to a table, an array or an index."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from vitrail.errors import ConfigError
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.devices import PartDevices, launch_parts, write_parts_on_ranks
from vitrail.verbs.predict import choose_division
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.inference.outputs import Embedding
    from vitrail.inference.results import Results


@verb("out", "index", "format", "parts", "batch", "device")
def embed(
    model: options.AnyModel,
    inputs: options.Inputs,
    *,
    out: Annotated[
        options.File | None, "Output file: .npy (with the paths beside it), .csv, .jsonl or .parquet."
    ] = None,
    index: Annotated[
        options.File | None, "A new folder for an index of the images, which `vitrail search` reads."
    ] = None,
    format: Annotated[
        Literal["parquet", "jsonl", "npy"] | None, "With --parts: format of the parts, parquet by default."
    ] = None,
    log: options.Log = to_stderr,
    **given: Unpack[options.ReadingInParts],
) -> Results[Embedding] | Any:
    """Computes the features of images, which the network's pooling gives to its head; of many images in parts.

    Returns:
        An iterator of (path, features (D,) float32), computed batch by batch as it is read; with ``out`` or ``index`` the
        features are written, and a line states what was written where; with ``parts`` the path of that folder, as `predict`
        returns it.

    Raises:
        ConfigError, DataError: as `predict`; and ``out`` with ``index``, or an ``index`` that has other files.
    """
    reading = options.parse(given, max_bad=options.ALL)
    from vitrail.inference.inputs import find_inputs
    from vitrail.inference.options import tune_options
    from vitrail.inference.outputs import embed_images
    from vitrail.inference.precision import settle_precision
    from vitrail.inference.results import Results

    if division := choose_division(given, out=out, index=index, format=format, kinds=("parquet", "jsonl", "npy")):
        from vitrail.inference.parts.compute import Job
        from vitrail.inference.parts.write import write_parts

        job = Job(verb="embed", model=model, options=reading)
        return write_parts(job, options.list_inputs(inputs), division, log)
    if format is not None:
        raise ConfigError("--format needs --parts", "give --parts, or choose the format by the suffix of --out")
    if out is not None and index is not None:
        raise ConfigError("--out and --index are both given", "leave --out out: an index has a features.npy")
    task = reading.load(model, log)
    images = find_inputs(options.list_inputs(inputs), every_split=index is not None)
    reading, comparison = settle_precision(reading, task, log, verb="embed", source=images.source)
    reading = tune_options(reading, task, log, images=len(images.source))
    bad = reading.record_bad(images.source, options.to_path(given["bad_list"]))
    features = embed_images(task, images.source, reading, bad=bad)
    results = Results(features, images, bad, done="embedded", log=log, comparison=comparison)
    if (folder := options.to_path(index)) is not None:
        from vitrail.inference.index import write_index
        from vitrail.weights.resolve import resolve_model

        origin = resolve_model(model).origin if isinstance(model, str | Path) else ""
        kept = {name: given[name] for name in options.PREPROCESSING if given[name] is not None}
        written = write_index(folder, results, task, model=origin, precision=reading.precision, options=kept)
        results.finish(folder)
        return written
    if (file := options.to_path(out)) is None:
        return results
    from vitrail.tables import write_features

    written = write_features(file, results)
    results.finish(file)
    return written


def run(model: str, /, *inputs: str, devices: PartDevices = None, json: options.AsJson = False, **given: Any) -> int:
    from vitrail.verbs.printing import one_line, print_beside

    if (code := launch_parts(devices, given, inputs)) is not None:
        return code
    write = partial(embed, model, inputs or ("-",))
    if all(given.get(name) is None for name in ("out", "index", "parts")):
        raise ConfigError("no output was named", "give --out FILE, --index DIR, or --parts DIR for many images")
    written = write(**given) if given.get("parts") is None else write_parts_on_ranks(write, given)
    if written is not None:
        print_beside(json)(str(written))
        if json:
            print(one_line({"path": str(next(filter(None, map(given.get, ("parts", "index", "out")))))}))
    return 0
