"""The cells of a study, each known by a hash of what decides its result. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from vitrail.checksums import sha256_of
from vitrail.config.parse import flatten, plain
from vitrail.config.schema import Run
from vitrail.workflows.study.rates import Rates, Tuned, choose, list_missing
from vitrail.workflows.study.results import FORMAT, CellResult, Place
from vitrail.workflows.study.study import LIMIT, RATE, SEED, STEPS, Experiment, Study

TUNING_SEED = 1_000_000  # of all tuning cells, and of no final one
# settings that do not decide a result; the device has its kind in the key
IGNORED = (
    *("save.", "recipe", "data.source", "data.workers", "data.validation", "data.decoded", "optim.rates"),
    *("compute.device", "compute.threads", "compute.timeout", "compute.parallel", "compute.tune"),
)
Kind = Literal["final", "tuning"]


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """What a plan knows of the images: their ``fingerprint`` changes with any image or label."""

    name: str
    fingerprint: str
    classes: int
    training: int
    validation: int
    test: int
    judged_on: str  # the split in words
    size: tuple[int, int] | None  # (height, width) where all images have one


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training.

    ``run`` has the rate of the settings where ``tuning``, the key of a `Tuning`, decides about it. ``key`` is a hash of what
    decides the result: cells that several experiments share are computed once.
    """

    key: str
    kind: Kind
    run: Run
    measure: tuple[str, ...] = ()
    tuning: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The tuning of one network's rate: its cells follow from each other's results."""

    key: str
    run: Run
    rates: Rates
    pool: str
    device: str
    known: dict[float, Cell] = field(default_factory=dict, compare=False)

    def cell(self, rate: float) -> Cell:
        """The training at one rate."""
        if rate not in self.known:
            run = replace(self.run, optim=replace(self.run.optim, lr=rate))
            key = hash_cell("tuning", settings_of(run), self.pool, self.device)
            self.known[rate] = Cell(key=key, kind="tuning", run=run)
        return self.known[rate]

    def losses(self, results: Mapping[str, CellResult]) -> dict[float, float]:
        """The validation NLL of every rate that was tried so far, infinite where training failed."""
        found: dict[float, float] = {}
        while missing := list_missing(self.rates, found):
            there = {rate: results.get(self.cell(rate).key) for rate in missing}
            known = {
                rate: result.validation.get("nll", float("inf")) for rate, result in there.items() if result is not None
            }
            if not known:
                break
            found |= known
        return found

    def missing(self, results: Mapping[str, CellResult]) -> list[Cell]:
        """The cells that have to be computed before the rate is known; none if it is."""
        return [self.cell(rate) for rate in list_missing(self.rates, self.losses(results))]

    def choose(self, results: Mapping[str, CellResult]) -> Tuned:
        return choose(self.losses(results))


@dataclass(frozen=True)
class Grid:
    """All cells of a study on its images and a kind of device: by key, by place, and in the order of their turn."""

    study: Study
    pool: PoolFacts
    device: str = "cpu"
    tunings: dict[str, Tuning] = field(default_factory=dict, init=False)  # in the order of their experiments

    @cached_property
    def places(self) -> dict[str, dict[Place, str]]:
        """experiment -> place -> key."""
        return {name: {place: cell.key for place, cell in found.items()} for name, found in self._found.items()}

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The final cells by key, seed by seed: of a study that is stopped early the first seeds are complete."""
        ranked = sorted(
            (
                (place.seed - self.study.experiment(name).first_seed, rank, cell)
                for name, found in self._found.items()
                for rank, (place, cell) in enumerate(found.items())
            ),
            key=lambda entry: entry[0],
        )
        return {cell.key: cell for _, _, cell in ranked}

    @cached_property
    def _found(self) -> dict[str, dict[Place, Cell]]:
        planned = {experiment.name: self._plan(experiment) for experiment in self.study.experiments}
        measures: dict[str, set[str]] = {}
        for experiment in self.study.experiments:
            for cell in planned[experiment.name].values():
                measures.setdefault(cell.key, set()).update(experiment.measure)
        return {
            name: {place: self._with_measures(cell, measures[cell.key]) for place, cell in found.items()}
            for name, found in planned.items()
        }

    def _plan(self, experiment: Experiment) -> dict[Place, Cell]:
        """The cells of an experiment; seeds of an arm differ in nothing else."""
        planned: dict[Place, Cell] = {}
        arms: dict[tuple[str, Any], tuple[Run, dict[str, Any], str | None]] = {}
        for place in places_of(experiment):
            if place[:2] not in arms:
                run = self._fit(self.study.run(experiment.arms[place.arm], dict(place.levels)))
                settings, tuning = settings_of(run), None
                if experiment.rates is not None:
                    tuning = self._tuning(run, experiment.rates).key
                    settings |= {RATE: {"tuned": tuning}}
                arms[place[:2]] = run, settings, tuning
            run, settings, tuning = arms[place[:2]]
            key = hash_cell("final", {**settings, SEED: place.seed}, self.pool.fingerprint, self.device)
            planned[place] = Cell(key=key, kind="final", run=replace(run, seed=place.seed), tuning=tuning)
        return planned

    def _with_measures(self, cell: Cell, measures: set[str]) -> Cell:
        if not measures:
            return cell
        names = tuple(sorted(measures))
        return replace(cell, measure=names, key=sha256_of(json.dumps([cell.key, names]).encode()))

    def _fit(self, run: Run) -> Run:
        """``run`` with all images where it asks for as many: cells that are equal have equal keys."""
        if run.data.limit is None or run.data.limit < self.pool.training:
            return run
        return replace(run, data=replace(run.data, limit=None))

    def _tuning(self, run: Run, rates: Rates) -> Tuning:
        """That of the network of ``run``: on all images, for a share of the study's own length, whatever the cell has."""
        steps = max(round(self.study.base[STEPS] * rates.length), 1)
        run = replace(
            run,
            seed=TUNING_SEED,
            data=replace(run.data, limit=None),
            schedule=replace(run.schedule, steps=steps),
            optim=replace(run.optim, lr=rates.grid[0]),
        )
        asked = {**settings_of(run), RATE: list(rates.grid)}
        key = hash_cell("tuning", asked, self.pool.fingerprint, self.device)
        return self.tunings.setdefault(
            key, Tuning(key=key, run=run, rates=rates, pool=self.pool.fingerprint, device=self.device)
        )

    def list_ready(self, results: Mapping[str, CellResult]) -> list[Cell] | None:
        """The cells without a result that can be computed now, in the order of their turn; None if every cell has one."""
        waiting = {key: missing for key, tuning in self.tuned.items() if (missing := tuning.missing(results))}
        tuning = [cell for missing in waiting.values() for cell in missing if cell.key not in results]
        final = [cell for cell in self.cells.values() if cell.key not in results]
        if not tuning and not final:
            return None
        return [*tuning, *(cell for cell in final if cell.tuning not in waiting)]

    @property
    def tuned(self) -> dict[str, Tuning]:
        """The tunings by key, in the order of their experiments."""
        assert self.cells  # planning the cells finds them
        return self.tunings

    def foreseen(self) -> Iterator[Cell]:
        """Every cell, as far as it is known before the first result: no continued grid of rates."""
        for tuning in self.tuned.values():
            yield from map(tuning.cell, tuning.rates.grid)
        yield from self.cells.values()


def places_of(experiment: Experiment) -> Iterator[Place]:
    """The places of an experiment, seed by seed."""
    for seed in range(experiment.first_seed, experiment.first_seed + experiment.seeds):
        for arm in experiment.arms:
            for levels in experiment.levels():
                yield Place(arm, tuple(sorted((path, _freeze(level)) for path, level in levels.items())), seed)


def _freeze(level: Any) -> Any:
    return tuple(map(_freeze, level)) if isinstance(level, list) else level


def settings_of(run: Run) -> dict[str, Any]:
    """The settings that decide a result, by dotted path."""
    return {path: value for path, value in flatten(plain(run)).items() if not path.startswith(IGNORED)}


def hash_cell(kind: Kind, settings: Mapping[str, Any], pool: str, device: str) -> str:
    """The SHA-256 of all that decides a result: settings, seed and precision among them, images, and kind of device."""
    whole = {"format": FORMAT, "kind": kind, "settings": settings, "pool": pool, "device": device}
    return sha256_of(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


def fit_to_images(study: Study, pool: PoolFacts) -> tuple[Study, list[str]]:
    """The study with the sizes of training sets that the images have, all images as their number, and what changed in words."""
    notes: list[str] = []

    def fit(experiment: Experiment) -> Experiment:
        levels = experiment.factors.get(LIMIT)
        if levels is None:
            return experiment
        sizes = sorted({pool.training if level is None else int(level) for level in levels})
        kept = tuple(size for size in sizes if size <= pool.training) or (pool.training,)
        if lost := [size for size in sizes if size > pool.training]:
            words = ", ".join(f"{size:,}" for size in lost)
            notes.append(f"{experiment.name}: without {LIMIT} {words}, there are {pool.training:,} training images")
        return replace(experiment, factors={**experiment.factors, LIMIT: kept})

    return replace(study, experiments=tuple(map(fit, study.experiments))), notes
