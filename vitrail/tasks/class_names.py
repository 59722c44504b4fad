"""The names of the classes that a model answers with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.errors import ConfigError, find_fault

# key of `Task.provenance`: the weights carry no names of classes, and the outputs are named by their numbers
NUMBERED = "numbered_classes"


def check_classes(classes: Sequence[str], *, outputs: int | None = None) -> tuple[str, ...]:
    """The names as a tuple. Raises `ConfigError` for a text, names that repeat, or another number than there are outputs."""
    if isinstance(classes, str):
        raise ConfigError(
            f"classes is the text {classes!r}", "give a list of names; for a file of names use classes_file"
        )
    names = tuple(map(str, classes))
    for name in names:
        if fault := find_fault(name):
            raise ConfigError(f"the class name {name!r} {fault}", "give another name")
    if outputs is not None and len(names) != outputs:
        raise ConfigError(f"{len(names)} class names for {outputs} outputs", "give one name for each output, in order")
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ConfigError(f"class names repeat: {', '.join(repeated[:5])}", "give each output a name of its own")
    return names


def has_ambiguous_order(classes: Sequence[str], provenance: Mapping[str, Any]) -> bool:
    """Whether the weights carry no names, and numbers as names have another order as text: 0, 1, 10, 11, ..., 2, as with
    torchvision's ImageFolder.
    """
    return bool(provenance.get(NUMBERED)) and sorted(classes) != list(classes)


def list_names(classes: int | Sequence[str]) -> Sequence[str]:
    """The names of classes; of a number of them the numbers from 0."""
    return tuple(map(str, range(classes))) if isinstance(classes, int) else classes
