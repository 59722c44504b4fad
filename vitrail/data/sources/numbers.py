"""Numbers of images as targets, and the columns of tables that hold them. n images, K columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.labels import Labels
from vitrail.errors import DataError
from vitrail.untrusted.numbers import to_real

BETWEEN = "+"  # separates the columns of several numbers
LARGEST = float(np.finfo(np.float32).max)
STRATA = 5  # parts of about the same size, by the first number, from which images are held out alike


@dataclass(frozen=True, eq=False)
class Numbers(Annotations):
    """K numbers for each of n images.

    Args:
        values: (n, K) float32; NaN in a column that the data lack.
    """

    task, counted = "regression", "numbers"
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: NDArray[np.integer]) -> Numbers:
        return Numbers(self.values[rows])

    @classmethod
    def join(cls, images: Sequence[Numbers]) -> Numbers:
        return cls(np.concatenate([part.values for part in images]))

    def of(self, row: int) -> NDArray[np.float32]:
        return self.values[row]

    def digest(self, row: int) -> bytes:
        return self.values[row].tobytes()

    def count_classes(self, classes: int) -> NDArray[np.int64]:
        return np.full(classes, len(self))

    def renumber(self, indices: NDArray[np.int64], classes: int) -> Numbers:
        values = np.full((len(self), classes), np.nan, np.float32)
        values[:, indices] = self.values
        return replace(self, values=values)

    def strata(self) -> NDArray[np.int64]:
        if not len(self):
            return np.zeros(0, np.int64)
        first = self.values[:, 0]
        return np.searchsorted(np.quantile(first, np.arange(1, STRATA) / STRATA), first)

    def read_map(self, row: int, size: tuple[int, int]) -> None:
        return None


def list_columns(name: str, columns: Sequence[str]) -> list[str]:
    """Returns the names of columns in ``x+y``; a name that is one of the ``columns`` is not divided."""
    return [name] if name in columns else [part.strip() for part in name.split(BETWEEN)]


def read_numbers(columns: Mapping[str, Sequence[str]], make_error: Callable[[int, str, str], DataError]) -> Labels:
    """Returns the numbers in the texts of ``columns``, n each, as labels whose names are those of the columns.

    Raises the error that ``make_error`` returns for a row, for a text that is no finite number in float32.
    """
    values = np.empty((len(next(iter(columns.values()))), len(columns)), np.float32)
    for place, (name, texts) in enumerate(columns.items()):
        for row, text in enumerate(texts):
            try:
                number = to_real(text, name)
            except ValueError:
                number = np.inf
            if not abs(number) <= LARGEST:
                remedy = "give every row a finite number, or remove the row"
                raise make_error(row, f"{name} is {text!r:.40}, not a number" if text else f"no {name}", remedy)
            values[row, place] = number
    return Labels(tuple(columns), Numbers(values), declared=True)
