"""The plan of a study: its cells, what fits into a budget of time, what each claim could detect, and its hash.

A plan is written before the first cell, with the claims, their rules and the seeds in it; another plan has another hash, and the
earlier one is kept. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail.checksums import sha256_of
from vitrail.config.parse import build, plain
from vitrail.errors import ConfigError, nearest
from vitrail.evaluation.contrasts import smallest_detectable
from vitrail.files import disk_errors, document_errors, read_sealed, write_sealed
from vitrail.runtime.progress import duration
from vitrail.workflows.study.cells import Cell, Grid, PoolFacts, fit_to_images
from vitrail.workflows.study.results import CellResult, read_result
from vitrail.workflows.study.study import LIMIT, STEPS, Experiment, Study, parse_study

FORMAT = 1
SPREAD = 0.006  # sd of the accuracy of one short training between seeds, until there is a study to take it from
HALVINGS = 3  # of the images that a cell sees, at most
CONTROLS = ("again", "half")  # experiments that judge the study itself; they go with the first experiment of all
Price = Callable[[Cell], float]  # the seconds that a cell takes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is computed and judged, and what is not and why.

    ``request`` is what was asked for: the same request goes on with the same plan. ``detectable`` is the smallest difference
    that 80 % of studies of this size see, by claim.
    """

    study: Study
    pool: PoolFacts
    device: str
    request: str
    reductions: tuple[str, ...] = ()
    not_asked: tuple[dict[str, str], ...] = ()
    detectable: dict[str, float]

    @cached_property
    def grid(self) -> Grid:
        return Grid(self.study, self.pool, self.device)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The plan as JSON, without its hash."""
        return {"format": FORMAT, **plain(self), "cells": sorted(self.grid.cells), "tunings": sorted(self.grid.tuned)}

    @property
    def sha256(self) -> str:
        """The hash of all that decides figures and verdicts; where the images lie and how the study was called is none of it."""
        named = replace(self.study, pool=replace(self.study.pool, source=Path(self.study.pool.source).name))
        content = {**self.document, "study": plain(named), "request": ""}
        return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())

    def results(self, folder: Path) -> dict[str, CellResult]:
        """The results of final and tuning cells that there are, by key."""
        return read_results(folder, self.grid, {})


def read_results(folder: Path, grid: Grid, known: Mapping[str, CellResult]) -> dict[str, CellResult]:
    """The results of the cells of ``grid`` in a folder by key, with those that are ``known`` and need not be read."""
    found = dict(known)

    def look(keys: Sequence[str]) -> bool:
        new = {key: result for key in keys if key not in found and (result := read_result(folder, key)) is not None}
        found.update(new)
        return bool(new)

    look(list(grid.cells))
    for tuning in grid.tuned.values():
        while look([cell.key for cell in tuning.missing(found)]):
            pass
    return found


def write_plan(folder: Path, plan: Plan) -> list[str]:
    """Writes ``plan.json``; an earlier plan goes to ``plans``. Returns the hashes of all earlier ones, oldest first."""
    before = read_sealed(folder / "plan.json")
    earlier = [] if before is None else before["earlier"]
    if before is not None and before["sha256"] != plan.sha256:
        with disk_errors(folder):
            (folder / "plans").mkdir(exist_ok=True)
        write_sealed(folder / "plans" / f"{before['sha256']}.json", before)
        earlier = [*earlier, before["sha256"]]
    write_sealed(folder / "plan.json", {**plan.document, "sha256": plan.sha256, "earlier": earlier})
    return earlier


def read_plan(folder: Path) -> tuple[Plan, list[str]]:
    """The plan of a folder and the hashes of earlier ones. Raises `ConfigError` for a folder without one, or a damaged one."""
    tree = read_sealed(folder / "plan.json")
    if tree is None:
        what = "is damaged" if (folder / "plan.json").exists() else "is missing"
        raise ConfigError(f"{folder / 'plan.json'} {what}", "give the folder of a study: vitrail study DATA --out DIR")
    return parse_plan(tree, folder)


def parse_plan(tree: Mapping[str, Any], where: Path) -> tuple[Plan, list[str]]:
    """The plan in a document and the hashes of earlier ones. Raises `ConfigError` with ``where`` it is from."""
    with document_errors(where, "give another --out", ConfigError):
        if tree["format"] != FORMAT:
            raise ConfigError(
                f"{where} was planned by another version of vitrail (format {tree['format']})",
                "take that version, or give another --out",
            )
        plan = Plan(
            study=parse_study(tree["study"]),
            pool=build(PoolFacts, tree["pool"]),
            device=str(tree["device"]),
            request=str(tree["request"]),
            reductions=tuple(tree["reductions"]),
            not_asked=tuple(tree["not_asked"]),
            detectable=dict(tree["detectable"]),
        )
        if plan.document["cells"] != tree["cells"]:
            raise ConfigError(
                f"the cells of {where} have other keys in this version of vitrail",
                "take the version that began the study",
            )
        return plan, list(tree["earlier"])


def choose_claims(study: Study, names: Sequence[str]) -> Study:
    """The study with only the claims of these names, and the experiments that they need; all without names.

    Raises `ConfigError` for a claim that the study does not have.
    """
    if not names:
        return study
    known = {claim.name: claim for claim in study.claims}
    for name in names:
        if name not in known:
            raise ConfigError(f"the study {study.name!r} has no claim {name!r}", nearest(name, known))
    claims = tuple(known[name] for name in dict.fromkeys(names))
    needed = {claim.experiment for claim in claims}
    kept = [experiment for experiment in study.experiments if experiment.name in needed]
    if {experiment.name for experiment in study.experiments[:1]} & needed:
        kept = [experiment for experiment in study.experiments if experiment.name in {*needed, *CONTROLS}]
    return replace(study, claims=claims, experiments=tuple(kept or study.experiments[:1]))


def make_plan(study: Study, pool: PoolFacts, *, device: str, request: str, price: Price, budget: float | None) -> Plan:
    """The plan of a study on these images within ``budget`` seconds of one worker's time; None is no bound.

    Raises `ConfigError` if not even the smallest form of the study fits.
    """
    study, notes = fit_to_images(study, pool)
    asked = study
    if budget is not None:
        study, reductions = reduce(study, lambda form: sum(map(price, Grid(form, pool, device).foreseen())), budget)
        notes += reductions
    kept = {experiment.name for experiment in study.experiments}
    missing = [claim for claim in asked.claims if claim.experiment and claim.experiment not in kept]
    whole = sum(map(price, Grid(asked, pool, device).foreseen()))
    why = f"the experiment {{}} does not fit into the budget; the whole study takes {duration(whole)} of one core"
    return Plan(
        study=replace(study, claims=tuple(claim for claim in study.claims if claim not in missing)),
        pool=pool,
        device=device,
        request=request,
        reductions=tuple(notes),
        not_asked=tuple({"name": claim.name, "why": why.format(claim.experiment)} for claim in missing),
        detectable={
            claim.name: detect(study.experiment(claim.experiment), pool)
            for claim in study.claims
            if claim.experiment in kept
        },
    )


def detect(experiment: Experiment, pool: PoolFacts) -> float:
    """The smallest difference of two cells of an experiment that 80 % of studies see, as a fraction of the test images."""
    cells = len(experiment.arms) * len(list(experiment.levels()))
    # a lone cell is compared with one of another experiment
    return smallest_detectable(SPREAD, seeds=experiment.seeds, images=pool.test, cells=max(cells, 2))


def reduce(study: Study, seconds: Callable[[Study], float], budget: float) -> tuple[Study, list[str]]:
    """The largest form of ``study`` that takes at most ``budget`` seconds, and each reduction in words.

    In this order: experiments are dropped from the end, then the middle sizes of training sets, then the images that every cell
    sees are halved. Seeds are never dropped. Raises `ConfigError` if that does not suffice.
    """
    words, smallest = [], 0.0
    for form, change in _smaller_forms(study):
        words += [change] if change else []
        if (smallest := seconds(form)) <= budget:
            return form, words
    raise ConfigError(
        f"the study {study.name!r} takes {duration(smallest)} of one core at least, and the budget has {duration(budget)}",
        "give a longer --budget, or fewer --claims",
    )


def _smaller_forms(study: Study) -> Iterator[tuple[Study, str]]:
    yield study, ""
    while droppable := [each for each in study.experiments[1:] if each.name not in CONTROLS]:
        last = droppable[-1]
        kept = tuple(each for each in study.experiments if each is not last)
        study = replace(study, experiments=kept, claims=tuple(c for c in study.claims if c.experiment != last.name))
        yield study, f"without the experiment {last.name}"
    if any(len(each.factors.get(LIMIT, ())) > 2 for each in study.experiments):
        study = replace(study, experiments=tuple(map(_drop_middle, study.experiments)))
        yield study, f"only the smallest and the largest {LIMIT}"
    for _ in range(HALVINGS):
        study = _halve(study)
        yield study, f"half the images: {study.base[STEPS]} steps"


def _drop_middle(experiment: Experiment) -> Experiment:
    levels = experiment.factors.get(LIMIT, ())
    kept = {LIMIT: (levels[0], levels[-1])} if len(levels) > 2 else {}
    return replace(experiment, factors={**experiment.factors, **kept})


def _halve(study: Study) -> Study:
    """The study with half the steps, wherever it names them."""

    def half(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**settings, **({STEPS: max(settings[STEPS] // 2, 1)} if STEPS in settings else {})}

    def halved(experiment: Experiment) -> Experiment:
        levels = {
            path: tuple(level // 2 for level in each) if path == STEPS else each
            for path, each in experiment.factors.items()
        }
        return replace(experiment, arms={arm: half(each) for arm, each in experiment.arms.items()}, factors=levels)

    return replace(study, base=half(study.base), experiments=tuple(map(halved, study.experiments)))
