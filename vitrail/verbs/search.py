"""`vitrail search`: the images of an index that are similar to others, or to each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.rows import Table
from vitrail.runtime.progress import LogFunction, to_stderr
from vitrail.text import plural
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.inference.index import FeatureIndex
    from vitrail.reports.data_uris import Picture
    from vitrail.tasks.task import Task

MOST_PAIRS = 1_000_000
SHOWN = 50  # queries on the page, and images of each
COLUMNS = {"query": str, "rank": float, "path": str, "similarity": float}
COLUMNS_OF_COPIES = {"query": str, "path": str, "similarity": float, "query_split": str, "split": str}
ModelOfIndex = Annotated[
    "str | Path | Task | None", "The model of the index, where it lies elsewhere now; in Python also a `Classifier`."
]


@verb("out", "top", "copies", "least")
def search(
    index: Annotated[str | Path, "A folder that `vitrail embed --index` wrote."],
    queries: Annotated[
        str | Path | Sequence[str | Path] | None,
        "Images as `vitrail embed` takes them, or another index of the same model; by default the images of the index.",
    ] = None,
    *,
    out: Annotated[
        options.File | None, "Output file: a table (.csv, .jsonl or .parquet), or a page with the pictures (.html)."
    ] = None,
    top: Annotated[int, "Neighbours of each query."] = 10,
    copies: Annotated[
        float | None, "Near copies instead: all pairs that are at least so similar, such as 0.97, with their splits."
    ] = None,
    least: Annotated[
        bool, "Queries whose nearest neighbour is the least similar first: those that the index does not cover."
    ] = False,
    model: ModelOfIndex = None,
    device: Annotated[str | None, "cuda, mps or cpu, for the features of queries."] = None,
    log: options.Log = to_stderr,
    **given: Unpack[options.Images],
) -> Table:
    """Finds the images of an index that are most similar to others, by the cosine of their features: exactly, of all images.

    Queries are embedded as the images of the index were. An image is no neighbour of itself, i.e. of the same path.

    Returns:
        Rows of ``query``, ``rank`` from 1, ``path`` and ``similarity`` in [-1, 1], in the order of the queries, and equal
        similarities in that of the index. With ``copies`` rows of ``query``, ``path``, ``similarity``, ``query_split`` and
        ``split``, the most similar first, and each pair of images once.

    Raises:
        ConfigError: numbers out of their range, ``least`` with ``copies``, or more than a million copies.
        DataError: no index, one that is damaged, or a query that was named by its path and cannot be read.
        CheckpointError: another model than that of the index.
    """
    if top < 1:
        raise ConfigError(f"top is {top}", "ask for at least one neighbour")
    if copies is not None and not 0 < copies <= 1:
        raise ConfigError(f"copies is {copies:g}", "give the least similarity of near copies, above 0 and at most 1")
    if copies is not None and least:
        raise ConfigError("--copies and --least are both given", "leave one out: copies are sorted by their similarity")
    from vitrail.inference.index import read_index
    from vitrail.tables import TABLES, open_table

    page = out is not None and Path(out).suffix.lower() == ".html"
    if out is not None and not page and Path(out).suffix.lower()[1:] not in TABLES:
        raise ConfigError(
            f"{out} has an unknown format", f"use a file name that ends in .{', .'.join([*TABLES, 'html'])}"
        )
    found = read_index(Path(index))
    asked = found
    if queries is not None:
        asked = _embed_queries(found, options.list_inputs(queries), model, {**given, "device": device}, log)
    rows = _list_neighbours(found, asked, top, least) if copies is None else _list_copies(found, asked, copies)
    if page:
        _write_page(Path(out), rows, found, asked, given["max_pixels"], log)
    elif out is not None:
        with open_table(Path(out), columns=COLUMNS if copies is None else COLUMNS_OF_COPIES) as write:
            for row in rows:
                write(row)
        log(f"written  {out}: {len(rows):,} rows")
    return rows


def _embed_queries(
    index: FeatureIndex, inputs: list[str], model: str | Path | Task | None, given: Mapping[str, Any], log: LogFunction
) -> FeatureIndex:
    """Returns the features of images as those of the index were computed, or another index. Raises as `search`."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    from vitrail.inference.features import digest_of
    from vitrail.inference.index import check_finite, find_root, is_index, read_index
    from vitrail.verbs.embed import embed

    if len(inputs) == 1 and is_index(Path(inputs[0])):
        if (other := read_index(Path(inputs[0]))).digest != index.digest:
            raise CheckpointError(f"{inputs[0]} is an index of another model", "make both with the same model")
        return other
    if model is None and not index.model:
        raise ConfigError("the index was made by a model in memory", "give the model: model=MODEL, or --model")
    kept = index.options if isinstance(model, str | Path | None) else {}
    given = {**given, "precision": index.precision}
    reading = options.parse({**dict.fromkeys(("classes", *options.PREPROCESSING)), **kept, **given})
    task = reading.load(index.model if model is None else model, log)
    if digest_of(task) != index.digest:
        what = "the model has other weights or preprocessing than the one that made the index"
        raise CheckpointError(what, "give the model of the index, or make the index again with this one")
    results = embed(task, inputs, log=log, **given)
    features = dict(results)
    for key in results.images.named & results.failed.keys():
        raise DataError(f"the query {key} could not be read: {results.failed[key]}", "give a complete image file")
    vectors = np.stack(list(features.values()))
    check_finite(vectors)
    vectors = F.normalize(torch.from_numpy(vectors), dim=1)
    return replace(index, features=vectors, paths=list(features), folder=find_root(results))


def _list_neighbours(index: FeatureIndex, queries: FeatureIndex, top: int, least: bool) -> Table:
    from vitrail.inference.similarity import find_nearest

    places = {index.locate(path): row for row, path in enumerate(index.paths)}
    own = [places.get(queries.locate(path), -1) for path in queries.paths]
    groups = [
        [
            {"query": path, "rank": rank, "path": index.paths[row], "similarity": similarity}
            for rank, (row, similarity) in enumerate(zip(*found), 1)
        ]
        for path, found in zip(queries.paths, find_nearest(index.features, queries.features, top, own=own))
    ]
    if least:
        groups.sort(key=lambda group: [row["similarity"] for row in group[:1]])
    return Table(row for group in groups for row in group)


def _list_copies(index: FeatureIndex, queries: FeatureIndex, least: float) -> Table:
    from vitrail.data.sources.splits import find_folder_split
    from vitrail.inference.similarity import find_pairs

    names, others = (list(map(each.locate, each.paths)) for each in (queries, index))
    pairs: dict[frozenset[str], tuple[int, int, float]] = {}
    for pair in find_pairs(least, queries.features, None if queries is index else index.features):
        ends = frozenset((names[pair[0]], others[pair[1]]))
        if len(ends) == 2:  # no image is a copy of itself; of queries in the index each finds the other
            pairs[ends] = min(pairs.get(ends, pair), pair)
        if len(pairs) > MOST_PAIRS:
            raise ConfigError(f"more than {MOST_PAIRS:,} pairs are as similar as {least:g}", "give a larger --copies")
    shared = len(os.path.commonpath([*names, *others]))  # splits are named below it
    splits = {name: find_folder_split(Path(name[shared:]).as_posix()) or "" for name in (*names, *others)}
    return Table(
        {
            "query": queries.paths[row],
            "path": index.paths[other],
            "similarity": similarity,
            "query_split": splits[names[row]],
            "split": splits[others[other]],
        }
        for row, other, similarity in sorted(pairs.values(), key=lambda pair: (-pair[2], pair))
    )


def _write_page(
    out: Path, rows: Table, index: FeatureIndex, queries: FeatureIndex, max_pixels: int, log: LogFunction
) -> None:
    """Writes the queries and what was found for each, with their pictures where they can be read."""
    from vitrail.files import replace_file
    from vitrail.reports.page import render

    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["query"], []).append(row)
    shown = [
        (
            query,
            _picture(queries.locate(query), max_pixels),
            [(row, _picture(index.locate(row["path"]), max_pixels)) for row in found[:SHOWN]],
            len(found) - SHOWN,
        )
        for query, found in islice(groups.items(), SHOWN)
    ]
    page = render(
        "search.html",
        "vitrail search",
        "Similar images",
        date.today().isoformat(),
        shown=shown,
        count=len(groups),
        images=len(index.paths),
    )
    replace_file(out, page)
    log(f"written  {out}: {plural(len(shown), 'query', 'queries')}, of {len(groups):,}")


def _picture(path: str, max_pixels: int) -> Picture | None:
    """Returns a picture for the page; None for one that cannot be read, or is no file of its own."""
    from vitrail.images.decode import BadImage
    from vitrail.reports.data_uris import thumbnail

    try:
        return thumbnail(Path(path).read_bytes(), max_pixels)
    except (OSError, BadImage):
        return None


def run(
    index: str,
    /,
    *queries: str,
    json: Annotated[bool, "The rows as JSON, one object a line on stdout, instead of CSV."] = False,
    **given: Any,
) -> None:
    from vitrail.tables import open_table

    rows = search(index, queries or None, **given)
    if json or given.get("out") is None:
        with open_table(None, "jsonl" if json else "csv") as write:
            for row in rows:
                write(row)
