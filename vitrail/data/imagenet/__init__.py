"""The classes of ImageNet: their WordNet ids in the order of a model's outputs, and a name for each that people can read.

LICENSE-WordNet.txt states the origin of the two lists and how names that several classes share are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# of the 21,843 classes of Google's ImageNet-21k; the release of autumn 2011, which others use, has 21,841
NOT_IN_FALL_2011 = frozenset({"n03931044", "n09859684"})


@dataclass(frozen=True)
class ImageNet:
    """A set of ImageNet's classes; ``ids`` and ``names`` (K,) each are in the order of the outputs."""

    name: str
    ids: tuple[str, ...]
    names: tuple[str, ...]


@cache
def find_imagenet(outputs: int) -> ImageNet | None:
    """The classes of ImageNet that models with this number of outputs usually have; None for other numbers."""
    if outputs not in (1_000, 21_841, 21_843):
        return None
    name = "1k" if outputs == 1_000 else "21k"
    text = files("vitrail.data.imagenet").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    rows = [line.split(" ", 1) for line in text.splitlines()]
    ids, names = zip(*(row for row in rows if outputs != 21_841 or row[0] not in NOT_IN_FALL_2011))
    return ImageNet(f"ImageNet-{name}", ids, names)


def index_classes(classes: Sequence[str]) -> dict[str, int]:
    """The index of each class by its name. If ``classes`` are ImageNet's in the order of the outputs, whether as ids, as names
    or as synonyms ("leopard, Panthera pardus"), they are also found by id, by name and by number.
    """
    spellings, known = [classes], find_imagenet(len(classes))
    if known and (tuple(classes) == known.ids or _first_words(classes) == _first_words(known.names)):
        spellings = [map(str, range(len(classes))), known.ids, known.names, classes]
    return {name: index for names in spellings for index, name in enumerate(names)}


def _first_words(names: Sequence[str]) -> list[str]:
    """ "crane" for "crane (wading bird)", "crane (134)" and "crane, Grus grus"."""
    return [name.partition(",")[0].partition(" (")[0] for name in names]
