"""The data of the report and the model card of a run.

A new fact of a run is a field of `RunFacts`, with its row in `RunFacts.details` and, if the model card has it, its line in
templates/card.md; training/provenance.py `run_facts` gives its value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from vitrail.config.parse import plain
from vitrail.data.sources.source import Source
from vitrail.evaluation.evaluate import EvaluationResult
from vitrail.runtime.progress import duration
from vitrail.tasks.task import Task
from vitrail.text import large, listing, shorten

SPLITS = {"val": "validation", "train": "training"}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How the figures of a page came about: by which command, on which machine, with which versions of packages, and when."""

    command: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""

    def details(self, own: Mapping[str, str]) -> dict[str, Any]:
        """Returns what the section of run details shows; ``own`` are rows before those of the machine."""
        rows = {**own, "Machine": self.machine, "Versions": list_versions(self.versions)}
        return {"command": self.command, "rows": rows}


@dataclass(frozen=True, kw_only=True)
class RunFacts(Origin):
    """The data of the report and the model card of any run; only ``title`` is required.

    ``records`` are the lines of ``metrics.jsonl``. ``images`` counts the images of each split. ``base`` names the initial
    weights and ``base_license`` their licence. ``provenance`` holds seed, date, versions, commit and the like; it,
    ``preprocessing`` and ``recipe_settings`` are shown unchanged. ``location`` is the path of the model in the examples.
    ``operations`` are the floating-point operations of all training steps, ``device_hours`` the time of all devices for them.
    """

    title: str
    config: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    layout: str = ""
    images: Mapping[str, int] = field(default_factory=dict)
    model: str = ""
    parameters: int | None = None
    multiply_adds: int | None = None
    image_size: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    recipe_settings: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    base_license: str = ""
    license: str = ""
    records: Sequence[Mapping[str, Any]] = ()
    operations: float | None = None
    device_hours: float | None = None
    seconds: float | None = None
    images_per_second: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    location: str = "path/to/this/folder"
    notes: Sequence[str] = ()

    def details(self, own: Mapping[str, str]) -> dict[str, Any]:
        """Returns what the section of run details shows; ``own`` are rows specific to the task."""
        took = duration(self.seconds) if self.seconds is not None else None
        speed = f"{self.images_per_second:,.0f} images/s" if self.images_per_second else None
        rows = {
            "Model": describe_model(self.model, self.parameters, self.multiply_adds, self.image_size),
            "Recipe": self.recipe,
            "Data": ": ".join(filter(None, (self.data, self.layout))),
            "Images": ", ".join(f"{count:,} {name}" for name, count in self.images.items()),
            **own,
            "Compute": describe_compute(self.operations, self.device_hours),
            "Time": ", ".join(filter(None, (took, speed))),
        }
        return {**super().details(rows), "settings": as_yaml(self.config) if self.config else ""}


@dataclass(frozen=True, kw_only=True)
class EvaluatedRun:
    """A finished run with its evaluation, from which the report and the model card are written.

    ``facts`` are the fields of `RunFacts`; ``source`` holds the images of ``splits`` that ``result`` was computed on.
    """

    facts: Mapping[str, Any]
    model: Task
    splits: Mapping[str, Source]
    source: Source
    result: EvaluationResult


def describe_model(
    about: str, parameters: int | None, multiply_adds: int | None, image_size: tuple[int, int] | None
) -> str:
    """Describes the model in one line, as far as it is known."""
    size = f"images of {' × '.join(map(str, image_size))} pixels" if image_size else None
    sums = f"{large(multiply_adds)} multiply-adds per image" if multiply_adds else None
    return ", ".join(filter(None, (about, f"{large(parameters)} parameters" if parameters else None, sums, size)))


def describe_compute(operations: float | None, device_hours: float | None) -> str:
    """Describes what the training took in one line, as far as it is known."""
    work = f"{large(operations, 'FLOP')} in all training steps" if operations else None
    hours = f"{device_hours:.3g} device-hours" if device_hours else None
    return ", ".join(filter(None, (work, hours)))


def list_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version != "absent")


def list_classes(names: Sequence[str]) -> str:
    """Returns the number of classes and their names, shortened."""
    return f"{len(names):,}: {listing([shorten(name, 40) for name in names])}"


def as_yaml(tree: Mapping[str, Any]) -> str:
    """Formats settings as YAML in their own order; values that YAML cannot represent are converted to strings."""
    simple = json.loads(json.dumps(plain(tree), default=str))
    return yaml.safe_dump(simple, sort_keys=False, allow_unicode=True, width=100)
