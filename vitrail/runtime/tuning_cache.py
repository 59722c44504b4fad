"""What was measured of a network on this machine: the same command takes the same way each time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from vitrail.errors import DiskError
from vitrail.files import cache_folder, disk_errors, read_sealed, write_sealed
from vitrail.runtime.machine import processor
from vitrail.runtime.process import cores
from vitrail.runtime.tuning import Choice, Way, choose_way


def recall_way(
    network: nn.Module,
    image: Sequence[int],
    ways: Sequence[Way],
    *,
    batch: int,
    config: str,
    about: str,
    gradient: bool = True,
    images: float = math.inf,
) -> Choice | None:
    """The choice that `choose_way` has made before, for the same arguments, processor and version of torch; or makes now.

    Args:
        config: all that decides the shapes of ``network``.
        about: the network in words, for `list_choices`.
        images: that are to come. A choice that was made before holds for any number of them.
    """
    machine = {"processor": processor(), "cores": cores(), "torch": torch.__version__}
    asked = {
        **machine,
        "image": list(image),
        "batch": batch,
        "ways": [asdict(way) for way in ways],
        "gradient": gradient,
    }
    name = hashlib.sha256(json.dumps([asked, config]).encode()).hexdigest()
    place = cache_folder("tuning") / f"{name}.json"
    if (kept := read_sealed(place)) is not None:
        return _read_choice(kept, before=True)
    choice = choose_way(network, image, ways, batch=batch, gradient=gradient, images=images)
    if choice is None:
        return None
    content = {
        **asked,
        "network": about,
        "way": asdict(choice.way),
        "seconds": [[asdict(way), taken] for way, taken in choice.seconds.items()],
        "took": choice.took,
    }
    with suppress(DiskError):  # then it is measured again
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(place, content)
    return choice


def _read_choice(kept: Mapping[str, Any], *, before: bool) -> Choice:
    seconds = {Way(**way): taken for way, taken in kept["seconds"]}
    return Choice(Way(**kept["way"]), seconds, kept["took"], kept.get("gradient", True), before)  # of 0.1 without it


def list_choices() -> dict[str, str]:
    """What is kept for each network, in words."""
    found = {}
    for path in sorted(cache_folder("tuning").glob("*.json")):
        if (kept := read_sealed(path)) is None:
            continue
        channels, height, width = kept["image"]
        choice = _read_choice(kept, before=False)
        size = f"{height} x {width}{f' x {channels}' if channels != 3 else ''}"
        found[f"{kept['network']}, {size}, batch {kept['batch']}, torch {kept['torch']}, {path.stem[:8]}"] = str(choice)
    return found


def forget_choices() -> int:
    """Removes what is kept, and returns how many networks it was of. Raises `DiskError`."""
    paths = list(cache_folder("tuning").glob("*.json"))
    for path in paths:
        with disk_errors(path):
            path.unlink(missing_ok=True)
    return len(paths)
