"""The results of a verb for images, and what became of every input: none is lost without a word."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.inference.comparison import Comparison, write_agreement
from vitrail.inference.inputs import ImageInputs, find_inputs
from vitrail.rows import Rows
from vitrail.runtime.progress import LogFunction
from vitrail.tasks.answer import Answer
from vitrail.tasks.task import Task
from vitrail.text import plural

Result = TypeVar("Result")


class Results(Iterator[Result], Rows, Generic[Result]):
    """An iterator over the results of the images that could be read, in the order of the inputs.

    At the end it raises `DataError` if none could be read, and otherwise logs how many images could not be read and how many
    files were skipped, if there are any.

    Args:
        results: the place in the source and the result of each image that could be read, in the order of the inputs.
        images: what was given.
        task: the model, whose formats the results can be written in.
        bad: records the images that could not be read, while ``results`` is consumed.
        done: a verb in the past participle, for the log: ``predicted``.
        log: called with the line at the end.
        comparison: of what computes the results with fp32, where that is something else.
    """

    def __init__(
        self,
        results: Iterable[tuple[int, Result]],
        images: ImageInputs,
        bad: BadImages,
        *,
        done: str,
        log: LogFunction,
        task: Task | None = None,
        comparison: Comparison | None = None,
    ) -> None:
        self.images, self.done, self.log, self.task = images, done, log, task
        self.comparison = comparison
        self.count = 0  # results so far
        self.unknown = 0  # of them, unlike the training images
        self.failed: dict[str, str] = {}  # the images that could not be read so far, and the reason for each
        self._bad = bad
        self._rows: list[dict[str, Any]] | None = None
        self._pairs = self._pair(results)
        self._ended = False

    def __iter__(self) -> Self:
        """Returns itself, once: results are computed while they are read, and are not kept. Raises `ConfigError` at the end."""
        if self._ended:
            raise ConfigError(
                "these results were read to the end, and are not kept", "keep them: results = list(predict(...))"
            )
        return self

    def __next__(self) -> Result:
        for _, result in self._pairs:
            if result is not None:
                return result
        self._ended = True
        self._check_any()
        raise StopIteration

    def pairs(self) -> Iterator[tuple[str, Result | None]]:
        """Yields the key of every image with its result, None if the image could not be read."""
        return self._pairs

    def to_rows(self) -> list[dict[str, Any]]:
        """Computes all results: the rows of every image, as `list_rows` makes them. They are computed once and kept.

        Raises:
            ConfigError: some results were taken before.
        """
        if self._rows is None:
            if taken := self.count + len(self.failed):
                what = f"{taken:,} of {len(self.images.source):,} images were taken from these results already"
                raise ConfigError(what, "call the function again for a table, or make rows of the results with row()")
            self._rows = list(list_rows(self.pairs(), self.failed))
        return self._rows

    def __repr__(self) -> str:
        """Describes what was given and how far it is; nothing is computed for it."""
        images = f"{self.count + len(self.failed):,} of {len(self.images.source):,} images read"
        return f"<{type(self).__name__}: {images}; iterate over it, or call to_rows(), to_pandas() or to_polars()>"

    def close(self) -> None:
        """Ends the computation; the results that were not taken are lost."""
        self._pairs.close()

    def check(self) -> None:
        """Raises `DataError` if an image that was named by its path, or all of the images, could not be read."""
        named = [key for key in self.failed if key in self.images.named]
        self._check_any()
        if named:
            raise named_unreadable(len(named), named[0], self.failed[named[0]])

    def finish(self, out: Path) -> None:
        """Writes beside ``out``, where all results are, how they agree with those of fp32; raises `DataError` as `check`."""
        write_agreement(out, self.comparison)
        self.check()

    def summarize(self) -> str:
        """Returns a line such as "13 predicted, 3 unreadable, 2 of unknown type (.txt 2)"."""
        listed = f" (listed in {self._bad.path})" if self._bad.path else ""
        return describe_inputs(self.images, self.done, self.count, len(self.failed), listed)

    def _check_any(self) -> None:
        if self.failed and not self.count:
            raise none_readable(len(self.failed), *next(iter(self.failed.items())))

    def _pair(self, results: Iterable[tuple[int, Result]]) -> Generator[tuple[str, Result | None]]:
        following = 0

        def fail(place: int) -> tuple[str, None]:
            key = str(self.images.source.keys[place])
            self.failed[key] = self._bad.reasons[key]
            return key, None

        for place, result in results:
            # the images before it that have no result are those that could not be read
            yield from map(fail, range(following, place))
            self.count += 1
            self.unknown += getattr(result, "unknown", False)
            yield str(self.images.source.keys[place]), result
            following = place + 1
        yield from map(fail, range(following, len(self.images.source)))
        if self.failed or self.images.left_out:
            self.log(f"inputs   {self.summarize()}")
        if self.task is not None and self.task.false_alarms is not None:
            rate = f"{100 * self.task.false_alarms:.3g} % false alarms"
            images = plural(self.count, "image")
            self.log(f"unlike   {self.unknown:,} of {images} are unlike the training images (threshold: {rate})")


def describe_inputs(images: ImageInputs, done: str, count: int, unreadable: int, listed: str = "") -> str:
    """Returns a line on what became of every input: ``count`` images are ``done``, as in "13 predicted, 3 unreadable"."""
    parts = [f"{count:,} {done}"]
    if unreadable:
        parts.append(f"{unreadable:,} unreadable{listed}")
    if images.skipped:
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(images.skipped.items()))
        parts.append(f"{sum(images.skipped.values()):,} of unknown type ({kinds})")
    if images.masks:
        parts.append(f"{images.masks:,} masks of other images")
    if others := images.other_splits:
        why = f"the data have the split {images.split}: give them without splits for all"
        parts.append(f"{sum(others.values()):,} of {' and '.join(others)} left out, as {why}")
    return ", ".join(parts)


def open_inputs(inputs: Sequence[str], done: str, log: LogFunction) -> Source:
    """Returns the images of `find_inputs`. A line in the log says what is left out, as of a table with splits."""
    images = find_inputs(inputs)
    if images.left_out:
        log(f"inputs   {describe_inputs(images, done, len(images.source), 0)}")
    return images.source


def none_readable(count: int, key: str, reason: str) -> DataError:
    """Returns the error for ``count`` images of which none could be read; the first one is named."""
    whole = f"none of {count:,} images could be read; the first" if count > 1 else "the image could not be read"
    return DataError(f"{whole}: {key}: {reason}", "give complete image files")


def named_unreadable(count: int, key: str, reason: str) -> DataError:
    """Returns the error for ``count`` images that were named by their paths and could not be read; the first one is named."""
    what = f"{count:,} of the files that were named could not be read; the first: {key}: {reason}"
    return DataError(what, "repair or remove them; the results of the others are complete")


def list_rows(
    pairs: Iterable[tuple[str, Any]], failed: Mapping[str, str], columns: Iterable[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yields the rows of every image: its path, the values of its result, and the error.

    An `Answer` has one or several ``rows()``, any other result is a row. Without a result there is one row with values of
    None; with a result the error is empty.

    Args:
        pairs: the key of each image with its result, None if it could not be read.
        failed: why images could not be read; looked up when their row is made.
        columns: of the values; by default those of the first result.
    """
    early: list[str] = []  # images before the first result, which determines the columns
    names = dict.fromkeys(columns)
    for key, result in pairs:
        if result is not None:
            rows = result.rows() if isinstance(result, Answer) else [result.row()]
            if not names:
                names = dict.fromkeys(name for name in rows[0] if name != "path")
                yield from ({"path": name, **names, "error": failed[name]} for name in early)
            yield from ({"path": key, **{name: row[name] for name in names}, "error": ""} for row in rows)
        elif not names:
            early.append(key)
        else:
            yield {"path": key, **names, "error": failed[key]}
    if not names:
        yield from ({"path": name, "error": failed[name]} for name in early)
