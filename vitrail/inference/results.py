"""The results of a verb for images, and what became of every input: none is lost without a word."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from vitrail.data.sources.bad_images import BadImages
from vitrail.errors import ConfigError, DataError
from vitrail.inference.inputs import ImageInputs
from vitrail.rows import Rows
from vitrail.runtime.progress import Say
from vitrail.tasks.answer import Answer
from vitrail.tasks.task import Task

Result = TypeVar("Result")


class Results(Iterator[Result], Rows, Generic[Result]):
    """An iterator over the results of the images that could be read, in the order of the inputs.

    At the end it raises `DataError` if none could be read, and otherwise logs how many images could not be read and how many
    files were skipped, if there are any.

    Args:
        batches: the keys and the results of the images that could be read, batch by batch.
        images: what was given.
        task: the model, whose formats the results can be written in.
        bad: records the images that could not be read, while ``batches`` is consumed.
        done: a verb in the past participle, for the log: ``predicted``.
        say: called with the line at the end.
    """

    def __init__(
        self,
        batches: Iterable[tuple[Sequence[str], Sequence[Result]]],
        images: ImageInputs,
        bad: BadImages,
        *,
        done: str,
        say: Say,
        task: Task | None = None,
    ) -> None:
        self.images, self.done, self.say, self.task = images, done, say, task
        self.count = 0  # results so far
        self.failed: dict[str, str] = {}  # the images that could not be read so far, and the reason for each
        self._bad = bad
        self._rows: list[dict[str, Any]] | None = None
        self._pairs = self._pair(batches)

    def __next__(self) -> Result:
        for _, result in self._pairs:
            if result is not None:
                return result
        self._check_any()
        raise StopIteration

    def pairs(self) -> Iterator[tuple[str, Result | None]]:
        """The key of every image with its result, None if the image could not be read."""
        return self._pairs

    def to_rows(self) -> list[dict[str, Any]]:
        """Computes all results: the rows of every image, as `build_rows` makes them. They are computed once and kept.

        Raises:
            ConfigError: some results were taken before.
        """
        if self._rows is None:
            if taken := self.count + len(self.failed):
                what = f"{taken:,} of {len(self.images.source):,} images were taken from these results already"
                raise ConfigError(what, "call the function again for a table, or make rows of the results with row()")
            self._rows = list(build_rows(self))
        return self._rows

    def __repr__(self) -> str:
        """What was given and how far it is; nothing is computed for it."""
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
            what = f"{len(named):,} of the files that were named could not be read"
            remedy = "repair or remove them; the results of the others are complete"
            raise DataError(f"{what}; the first: {named[0]}: {self.failed[named[0]]}", remedy)

    def summarize(self) -> str:
        """A line such as "13 predicted, 3 unreadable, 2 of unknown type (.txt 2)"."""
        parts = [f"{self.count:,} {self.done}"]
        if self.failed:
            listed = f" (listed in {self._bad.path})" if self._bad.path else ""
            parts.append(f"{len(self.failed):,} unreadable{listed}")
        if self.images.skipped:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.images.skipped.items()))
            parts.append(f"{sum(self.images.skipped.values()):,} of unknown type ({kinds})")
        return ", ".join(parts)

    def _check_any(self) -> None:
        if self.failed and not self.count:
            key, reason = next(iter(self.failed.items()))
            whole = f"none of {len(self.failed):,} images could be read; the first"
            raise DataError(
                f"{whole if len(self.failed) > 1 else 'the image could not be read'}: {key}: {reason}",
                "give complete image files",
            )

    def _fail(self, key: str) -> str:
        self.failed[key] = self._bad.reasons[key]
        return key

    def _pair(self, batches: Iterable[tuple[Sequence[str], Sequence[Result]]]) -> Generator[tuple[str, Result | None]]:
        keys = iter(map(str, self.images.source.keys))
        for names, results in batches:
            for name, result in zip(names, results, strict=True):
                # the images before it that are missing from the batches are those that could not be read
                for key in keys:
                    if key == name:
                        break
                    yield self._fail(key), None
                self.count += 1
                yield name, result
        for key in keys:
            yield self._fail(key), None
        if self.failed or self.images.skipped:
            self.say(f"inputs   {self.summarize()}")


def build_rows(results: Results[Any], pairs: Iterable[tuple[str, Any]] | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of every image: its path, the values of its result, and the error.

    An `Answer` has one or several ``rows()``, any other result is a row. Without a result there is one row with values of
    None; with a result the error is empty. ``pairs`` are those of the results on their way through something else.
    """
    failed = results.failed
    early: list[str] = []  # images before the first result, which determines the columns
    columns: dict[str, None] | None = None
    for key, result in results.pairs() if pairs is None else pairs:
        if result is not None:
            rows = result.rows() if isinstance(result, Answer) else [result.row()]
            if columns is None:
                columns = dict.fromkeys(name for name in rows[0] if name != "path")
                yield from ({"path": name, **columns, "error": failed[name]} for name in early)
            yield from ({"path": key, **{name: row[name] for name in columns}, "error": ""} for row in rows)
        elif columns is None:
            early.append(key)
        else:
            yield {"path": key, **columns, "error": failed[key]}
    if columns is None:
        yield from ({"path": name, "error": failed[name]} for name in early)
