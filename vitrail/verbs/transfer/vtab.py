"""VTAB-1k for `vitrail transfer`: the tasks that a folder has, and the 1,000 images that each is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitrail.data.rng import permutation
from vitrail.data.sources.joined import join_sources
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.evaluation.vtab import TASKS, TRAIN, VALIDATION, VtabTask

RECIPE = "paper-finetune/vtab"
SAMPLE_SEED = 0  # the same images for every network and every run
SAMPLE = (
    f"at most {TRAIN + VALIDATION:,} of each task: {VALIDATION} of val and {TRAIN} of train, or all of train where there is "
    f"no val; drawn at random, not by class, with the seed {SAMPLE_SEED} for every network and run"
)


def find_tasks(root: Path) -> dict[str, str]:
    """Returns the path of each task that ``root`` has a folder of, in the order of the benchmark; files in ``root`` are ignored.

    Raises `ConfigError` if ``root`` is no folder, has a folder that names no task, or has none at all.
    """
    if not root.is_dir():
        raise ConfigError(f"{root} is not a folder", "give the folder that has one folder for each task of VTAB-1k")
    found = {path.name: str(path) for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    for name in sorted(found):
        if name not in TASKS:
            raise ConfigError(f"{root} has the folder {name!r}, which is no task of VTAB-1k", nearest(name, TASKS))
    if not found:
        raise ConfigError(f"{root} has no folders", f"name the folders as the tasks: {', '.join(TASKS)}")
    return {name: found[name] for name in TASKS if name in found}


def open_task(data: str, *, channels: int) -> Splits:
    """Returns a task as VTAB-1k has it: up to 1,000 images to train on, and all test images.

    Of a split val 200 images are taken and 800 of train; without one, or where a split has fewer, the rest comes from the other.
    They are drawn at random, not by class, and are the same every time. Test images are never among them.

    Raises `DataError` where a split train or test is missing.
    """
    splits = open_data(data, validation=0, channels=channels)
    for name, part in (("train", splits.train), ("test", splits.test)):
        if part is None or not len(part):
            raise DataError(f"{data} has no split {name}", "give each task the folders train and test, and maybe val")
    assert splits.train is not None
    return replace(splits, train=draw_training(splits.train, splits.val), val=None)


def draw_training(train: Source, val: Source | None) -> Source:
    """Returns the images that a task is trained on, the same for the same data."""
    available = 0 if val is None else len(val)
    from_val = min(available, max(VALIDATION, TRAIN + VALIDATION - len(train)))
    drawn = draw(train, TRAIN + VALIDATION - from_val)
    return drawn if val is None or not from_val else join_sources(drawn, draw(val, from_val))


def draw(source: Source, count: int) -> Source:
    """Returns up to ``count`` images at random, in the order of the source."""
    if len(source) <= count:
        return source
    return source.subset(sorted(permutation(SAMPLE_SEED, 0, len(source))[:count]))


def find_departures(task: VtabTask, train: Source) -> list[str]:
    """Returns what differs from VTAB-1k, so that the figures cannot be compared with published ones: one line, or none."""
    limit, classes = TRAIN + VALIDATION, len(train.classes)
    images = f"{len(train):,} training images (VTAB-1k has {limit:,})" if len(train) < limit else ""
    other = f"{classes} classes (VTAB-1k has {task.classes})" if classes != task.classes else ""
    words = ", ".join(filter(None, (images, other)))
    return [f"{task.name}: {words}"] if words else []


def choose_settings(task: VtabTask) -> tuple[str, ...]:
    """Returns the settings of fine-tuning in which a task differs from the recipe: no flips or crops that change its label."""
    flips = () if task.flips else ("augment.flip=0",)
    return flips if task.crops else (*flips, "augment.crop_area=[1.0, 1.0]")
