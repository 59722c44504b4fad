"""What `vitrail data check` writes on labels that may be wrong: a page with thumbnails, and a table with the suggested labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from vitrail.data.sources.contents import Files
from vitrail.data.sources.deep_files import DeepFiles
from vitrail.data.sources.labels import BETWEEN, unify_labels
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.files import ensure_folder, replace_file
from vitrail.runtime.progress import LogFunction
from vitrail.tables import open_table
from vitrail.text import escape_formula, plural
from vitrail.verbs.data.findings import CheckResult, name_image

MOST = 200  # images on the page
COLUMNS = {"path": str, "label": str, "split": str, "given": str, "probability": float}


def write_page(
    out: Path, sources: Mapping[str, Source], result: CheckResult, max_pixels: int, log: LogFunction
) -> None:
    """Writes ``out/labels.html``: the images whose label may be wrong, the least probable first, and the pairs of classes."""
    from vitrail.reports.data_uris import thumbnail
    from vitrail.reports.page import Table, render

    places = {name: (source, row) for source, row, name in _list_images(sources)}
    shown = []
    for suspect in result.suspects[:MOST]:
        source, row = places[suspect.path]
        shown.append((suspect, thumbnail(source.contents[row], max_pixels)))
    page = render(
        "labels.html",
        "vitrail data check",
        "Labels that may be wrong",
        date.today().isoformat(),
        result=result,
        shown=shown,
        notes_lines=result.notes,
        pairs=Table("Pairs of classes", ("given label", "suggested label", "images"), result.confused, 2, headed=False),
    )
    ensure_folder(out)
    replace_file(out / "labels.html", page)
    log(f"written  {out / 'labels.html'}: {plural(len(shown), 'image')} to look at, of {len(result.suspects):,}")


def check_table(out: Path, sources: Mapping[str, Source], data: Any) -> None:
    """Raises `DataError` for images that a table of paths and classes cannot hold, `ConfigError` if it would replace the data."""
    if isinstance(data, str | os.PathLike) and out.exists() and Path(data).exists() and out.samefile(data):
        raise ConfigError(f"{out} is the table that is checked", "give --relabel another name")
    labelled = [source for source in sources.values() if source.single_label]
    if not labelled or any(source.labelled and not source.single_label for source in sources.values()):
        raise DataError("the images do not have one class each", "leave --relabel out")
    if any(_find_root(source) is None for source in labelled):
        raise DataError("the images are no files of their own, so a table cannot name them", "leave --relabel out")
    classes = labelled[0].classes
    for name, read in zip(classes, unify_labels(classes, "label")[0]):
        if name != read or BETWEEN in name or (out.suffix.lower() == ".csv" and name != escape_formula(name)):
            raise DataError(f"the class {name!r} would be read from {out.name} as another one", "rename the class")


def write_table(out: Path, sources: Mapping[str, Source], result: CheckResult, log: LogFunction) -> None:
    """Writes a table of all images that have labels, with the suggested label of suspects.

    ``given`` is the label of the data, and ``probability`` that of a suggested label. Paths are relative to the folder of the
    table, and absolute outside of it.
    """
    suspects, folder = {suspect.path: suspect for suspect in result.suspects}, os.path.abspath(out.parent)
    written, unlabelled = 0, sum(len(source) for source in sources.values() if not source.single_label)
    splits = {id(source): split for split, source in sources.items()}
    ensure_folder(out.parent)
    with open_table(out, columns=COLUMNS) as write:
        for source, row, name in _list_images(sources):
            if not source.single_label:
                continue
            path = Path(os.path.abspath(os.path.join(_find_root(source) or "", source.keys[row])))
            place = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
            given, suspect = source.classes[source.labels[row]], suspects.get(name)
            write(
                {
                    "path": f"./{place}" if place != escape_formula(place) else place,
                    "label": given if suspect is None else suspect.suggested,
                    "split": splits[id(source)],
                    "given": given,
                    "probability": None if suspect is None else suspect.probability,
                }
            )
            written += 1
    left_out = f"; {plural(unlabelled, 'image')} without labels left out" if unlabelled else ""
    log(f"written  {out}: {plural(written, 'image')}, {len(suspects):,} with another label{left_out}; look at these")


def _list_images(sources: Mapping[str, Source]) -> Iterator[tuple[Source, int, str]]:
    """Yields the source of each image, its row there, and its name in a `CheckResult`."""
    for split, source in sources.items():
        for row in range(len(source)):
            yield source, row, name_image(sources, split, row)


def _find_root(source: Source) -> str | None:
    """Returns the folder of the keys, None for images that are no files of their own."""
    contents = source.contents.contents if isinstance(source.contents, DeepFiles) else source.contents
    return contents.root if isinstance(contents, Files) else None
