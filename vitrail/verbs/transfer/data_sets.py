"""A data set of `vitrail transfer`, evaluated by every protocol; and the tasks of VTAB-1k, each trained on 1,000 images.

Each figure is kept when it is done, for the next call.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from vitrail.config.compose import compose_run
from vitrail.config.schema import Run
from vitrail.data.rng import permutation
from vitrail.data.sources.open import open_data, resolve_name
from vitrail.data.sources.source import Source, Splits, join_sources
from vitrail.errors import CheckpointError, ConfigError, DataError, DivergedError, VitrailError, nearest
from vitrail.evaluation.evaluate import evaluate_model
from vitrail.evaluation.vtab import TASKS, TRAIN, VALIDATION, VtabTask
from vitrail.hub import shorten
from vitrail.inference.features import Features
from vitrail.inference.options import InferenceOptions
from vitrail.reports.transfer import RUN, Cell
from vitrail.runs.cells import Cells
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.progress import LogFunction
from vitrail.tasks import Task
from vitrail.text import plural
from vitrail.training.train import train
from vitrail.verbs.probe.protocols import (
    ProbeProtocol,
    choose_images,
    compute_features,
    compute_figures,
    evaluate_features,
    open_to_probe,
    warn_of_training_images,
)

FINETUNE = "finetune"
ALL = ("knn", "linear", "fewshot", FINETUNE)
OF_ONE_DATA_SET = (ConfigError, DataError, CheckpointError, DivergedError)  # errors that concern one data set only
VTAB_RECIPE = "paper-finetune/vtab"
SAMPLE_SEED = 0  # the same images for every network and every run
SAMPLE = (
    f"at most {TRAIN + VALIDATION:,} of each task: {VALIDATION} of val and {TRAIN} of train, or all of train where there is "
    f"no val; drawn at random, not by class, with the seed {SAMPLE_SEED} for every network and run"
)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the whole network is trained further: the recipe, the length, further ``settings`` as ``--set`` takes them, and from
    how many ``seeds``.
    """

    recipe: str = FINETUNE
    epochs: float | None = None
    steps: int | None = None
    settings: tuple[str, ...] = ()
    seeds: int = 1

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}", "fine-tune once or more")

    def run(self, init: Path, data: str, options: InferenceOptions, *, seed: int, of_data: Sequence[str] = ()) -> Run:
        """The training from one seed; its precision is the training's own choice unless ``options`` has another than fp32.

        ``of_data`` are settings of the data set, which ``settings`` may change.
        """
        precision = None if options.precision == "fp32" else options.precision
        flags = {
            "seed": seed,
            "model": {"init": str(init), "size": options.size, "preprocessing": dict(options.preprocessing)},
            "data": {"source": data, "workers": options.workers or None, "max_bad": options.max_bad},
            "schedule": {"epochs": self.epochs, "steps": self.steps},
            "compute": {"device": options.device, "precision": precision},
        }
        return compose_run(recipe=self.recipe, flags=flags, settings=(*of_data, *self.settings))[0]


def check_protocols(protocols: Sequence[str]) -> None:
    """Raises `ConfigError` for an unknown or repeated protocol, and for none."""
    for protocol, count in Counter(protocols).items():
        if protocol not in ALL:
            raise ConfigError(f"there is no protocol {protocol!r}", nearest(protocol, ALL))
        if count > 1:
            raise ConfigError(f"the protocol {protocol} is named {count} times", "name it once")
    if not protocols:
        raise ConfigError("no protocols were named", f"choose some of {', '.join(ALL)}")


def name_data(data: str | Path | Sequence[str | Path]) -> dict[str, str]:
    """Returns the name of each data set in the tables: the last part of its path, or all of it where that names several."""
    if not data:
        raise ConfigError("no data were named", "vitrail transfer MODEL DATA DATA ... --out FOLDER")
    sources = list(dict.fromkeys(map(str, [data] if isinstance(data, str | Path) else data)))
    short = {source: Path(source).name or source for source in sources}
    count = Counter(short.values())
    return {short[source] if count[short[source]] == 1 else source: source for source in sources}


def describe_settings(probes: Mapping[str, ProbeProtocol], tuning: Tuning | None, *, vtab: bool) -> dict[str, str]:
    """Returns the settings for the page."""
    words = {
        "Training images": SAMPLE if vtab else "",
        "Neighbours": str(probes["knn"].k) if "knn" in probes else "",
        "Shots": ", ".join(map(str, probes["fewshot"].shots)) if "fewshot" in probes else "",
    }
    if tuning is not None:
        length = f"{tuning.epochs:g} epochs" if tuning.epochs else f"{tuning.steps} steps" if tuning.steps else ""
        recipe = "" if tuning.recipe == FINETUNE else f"recipe {tuning.recipe}"
        words["Fine-tuning"] = ", ".join(filter(None, (recipe, length, *tuning.settings, plural(tuning.seeds, "seed"))))
    return words


@dataclass
class DataSet:
    """One data set: opened once, and its features computed once, if any protocol needs them."""

    data: str
    init: Path
    model: Task
    kept: Cells
    options: InferenceOptions
    cache: Path | None
    command: str
    log: LogFunction
    ranks: Ranks
    task: VtabTask | None

    @cached_property
    def slug(self) -> str:
        """The name of its files."""
        whole = hashlib.sha256(resolve_name(self.data).encode()).hexdigest()
        return f"{shorten(self.data)}-{whole[:8]}"

    @cached_property
    def splits(self) -> Splits:
        if self.task is not None:
            return open_task(self.data, channels=self.model.config.in_channels)
        return open_to_probe(self.data, self.model)

    @cached_property
    def images(self) -> tuple[Source, str, Source]:
        """The training images, the name of the evaluated split, and its images."""
        with self.ranks.share_errors():
            return choose_images(self.splits)

    @cached_property
    def departures(self) -> list[str]:
        """What makes the figures differ from published ones of VTAB-1k: one line, or none."""
        if self.task is None:
            return []
        count, limit, classes = len(self.images[0]), TRAIN + VALIDATION, len(self.images[0].classes)
        images = f"{count:,} training images (VTAB-1k has {limit:,})" if count < limit else ""
        other = f"{classes} classes (VTAB-1k has {self.task.classes})" if classes != self.task.classes else ""
        words = ", ".join(filter(None, (images, other)))
        return [f"{self.task.name}: {words}"] if words else []

    @cached_property
    def features(self) -> list[Features]:
        """The features of the training images and of the evaluated split."""
        learnt, split, evaluated = self.images
        both = {"train": learnt, split: evaluated}
        how = {"options": self.options, "cache": self.cache, "log": self.log, "ranks": self.ranks}
        return compute_features(self.model, both, **how)

    def compute(self, probes: Mapping[str, ProbeProtocol | None], tuning: Tuning) -> dict[str, Cell]:
        """Returns the figures by protocol, None for fine-tuning: those that are kept, and new ones; or what went wrong."""
        stored = self.ranks.run_on_rank0(lambda: {name: self.kept.read(f"{self.slug}.{name}") for name in probes})
        kept = {name: Cell(cell["figures"], notes=tuple(cell["notes"])) for name, cell in stored.items() if cell}
        if len(kept) == len(probes):
            return kept
        try:
            learnt, split, evaluated = self.images
        except OF_ONE_DATA_SET as error:
            failure = report_failure(error, self.log)
            return {name: kept.get(name, failure) for name in probes}
        self.log(f"split    learns from train: {len(learnt):,} images; evaluated on {split}: {len(evaluated):,}")
        for words in self.departures:
            self.log(f"warning  {words}")
        warn_of_training_images(self.model, self.data, self.splits, self.log)
        return {name: kept.get(name) or self.compute_cell(name, probe, tuning) for name, probe in probes.items()}

    def compute_cell(self, name: str, probe: ProbeProtocol | None, tuning: Tuning) -> Cell:
        try:
            figures = self.fine_tune(tuning) if probe is None else self.probe(probe)
        except OF_ONE_DATA_SET as error:
            return report_failure(error, self.log, name)
        self.log(f"done     {name} {figures['accuracy']:.4f}")
        content = {"data": self.data, "protocol": name, "figures": figures, "notes": self.departures}
        self.ranks.run_on_rank0(lambda: self.kept.write(f"{self.slug}.{name}", content))
        return Cell(figures, notes=tuple(self.departures))

    def probe(self, protocol: ProbeProtocol) -> dict[str, float]:
        """Returns the figures of a protocol on frozen features."""
        with self.ranks.share_errors():
            protocol.check(self.images[0].labels)
        learnt, evaluated = self.features
        evaluate = partial(evaluate_features, protocol, self.images[1], [learnt], [evaluated], log=self.log)
        return self.ranks.run_on_rank0(evaluate).figures

    def fine_tune(self, tuning: Tuning) -> dict[str, float]:
        """The accuracy after fine-tuning on the images that evaluate the probes: the mean over seeds, and that of each."""
        learnt, split, evaluated = self.images
        of_data = choose_settings(self.task) if self.task is not None else ()
        right = []
        for seed in range(tuning.seeds):
            run = tuning.run(self.init, self.data, self.options, seed=seed, of_data=of_data)
            folder = self.kept.folder / FINETUNE / f"{self.slug}-seed{seed}"
            how = {"quiet": self.options.quiet, "command": self.command, "ranks": self.ranks}
            result = train(run, out=folder, data=self.splits, **how)
            with self.ranks.share_errors():
                tuned = InferenceOptions(device=self.options.device).load(result.folder, self.log)
            options, bad = self.options.of_rank(self.ranks), self.options.record_bad(evaluated)
            samples = evaluate_model(tuned, evaluated, options, split=split, bad=bad, ranks=self.ranks).metric.samples()
            assert samples is not None, "a classifier is evaluated by each image"
            right.append(samples)
        figures = compute_figures(np.stack(right))
        if len(right) > 1:
            figures |= {f"{RUN}{seed}": float(samples.mean()) for seed, samples in enumerate(right)}
        return {**figures, "images": len(right[0]), "train_images": len(learnt)}


def report_failure(error: VitrailError, log: LogFunction, protocol: str = "") -> Cell:
    """Returns the cell of what went wrong, which is printed."""
    log(f"failed   {protocol + ': ' if protocol else ''}{error}")
    return Cell(error=str(error), code=error.code)


def find_tasks(data: str | Path | Sequence[str | Path]) -> dict[str, str]:
    """Returns the path of each task that the one folder in ``data`` has a folder of, in the order of the benchmark.

    Raises `ConfigError` for several, one that is no folder, has a folder that names no task, or has none at all.
    """
    roots = [data] if isinstance(data, str | Path) else data
    if len(roots) != 1:
        raise ConfigError(f"--vtab takes one folder, and {len(roots)} were named", "vitrail transfer MODEL ROOT --vtab")
    root = Path(roots[0]).expanduser()
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

    def draw(source: Source, count: int) -> Source:
        if len(source) <= count:
            return source
        return source.subset(sorted(permutation(SAMPLE_SEED, 0, len(source))[:count]))

    available = 0 if val is None else len(val)
    from_val = min(available, max(VALIDATION, TRAIN + VALIDATION - len(train)))
    drawn = draw(train, TRAIN + VALIDATION - from_val)
    return drawn if val is None or not from_val else join_sources(drawn, draw(val, from_val))


def choose_settings(task: VtabTask) -> tuple[str, ...]:
    """Returns the settings of fine-tuning in which a task differs from the recipe: no flips or crops that change its label."""
    flips = () if task.flips else ("augment.flip=0",)
    return flips if task.crops else (*flips, "augment.crop_area=[1.0, 1.0]")
