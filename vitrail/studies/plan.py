"""The plan of a study: the trials within its time budget, the smallest effect that each claim can detect, and a hash.

A plan is written before the first trial, with the claims, their rules and the seeds in it; another plan has another hash, and the
earlier one is kept. A trial is known by a hash of what decides its result. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitrail.checksums import sha256_of
from vitrail.config.parse import build, flatten, plain
from vitrail.config.schema import Run
from vitrail.errors import ConfigError, nearest
from vitrail.files import disk_errors, document_errors, read_sealed, write_sealed
from vitrail.runtime.progress import duration
from vitrail.studies.design import LIMIT, RATE, SEED, STEPS, Experiment, Rates, Study, parse_study
from vitrail.studies.results import FORMAT, TrialResult, read_result
from vitrail.studies.statistics import expect_difference
from vitrail.training.lr_search import choose_rate

SPREAD = 0.006  # sd of the accuracy of one short training between seeds, until there is a study to take it from
HALVINGS = 3  # of the images that a trial sees, at most
TUNING_SEED = 1_000_000  # of all tuning trials, and of no final one
# settings that do not decide a result; the device has its kind in the key
IGNORED = (
    *("save.", "recipe", "data.source", "data.workers", "data.validation", "data.decoded", "optim.rates"),
    *("compute.device", "compute.threads", "compute.timeout", "compute.parallel", "compute.tune"),
)


class Place(NamedTuple):
    """Where a trial stands in an experiment; ``levels`` are those of the factors by dotted path, sorted."""

    arm: str
    levels: tuple[tuple[str, Any], ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """What a plan knows of the images: their ``fingerprint`` changes with any image or label."""

    name: str
    fingerprint: str
    classes: int
    training: int
    validation: int
    test: int
    test_split: str  # described
    size: tuple[int, int] | None  # (height, width) where all images have one


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training; its rate is that of the settings unless ``search`` decides about it. Equal keys are computed once."""

    key: str
    kind: Literal["final", "tuning"]
    run: Run
    search: RateSearch | None = None


@dataclass(frozen=True, kw_only=True)
class RateSearch:
    """The search for one network's learning rate: its trials follow from each other's results."""

    key: str
    run: Run
    rates: Rates
    pool: str
    device: str
    trials: dict[float, Trial] = field(default_factory=dict, compare=False)

    def trial(self, rate: float) -> Trial:
        """Returns the training at one rate."""
        if rate not in self.trials:
            run = replace(self.run, optim=replace(self.run.optim, lr=rate))
            self.trials[rate] = Trial(
                key=hash_trial("tuning", settings_of(run), self.pool, self.device), kind="tuning", run=run
            )
        return self.trials[rate]

    def tried(self, results: Mapping[str, TrialResult]) -> dict[float, TrialResult]:
        """Returns the results that there are, by rate."""
        found: dict[float, TrialResult] = {}
        while new := {
            rate: results[trial.key] for rate in self._wanted(found) if (trial := self.trial(rate)).key in results
        }:
            found |= new
        return dict(sorted(found.items()))

    def _wanted(self, found: Mapping[float, TrialResult]) -> Sequence[float]:
        return choose_rate(losses_of(found), self.rates.grid).untried

    def missing(self, results: Mapping[str, TrialResult]) -> list[Trial]:
        """Returns the trials that have to be computed before the rate is known; none if it is."""
        return [self.trial(rate) for rate in self._wanted(self.tried(results))]


class BestRate(NamedTuple):
    """The ``best`` rate, None where every rate diverged, and whether it is at the ``edge`` of those that were tried."""

    best: float | None
    edge: bool


def losses_of(tried: Mapping[float, TrialResult]) -> dict[float, float]:
    """Returns the validation NLL of each rate, infinite where training failed."""
    return {rate: result.validation.get("nll", math.inf) for rate, result in tried.items()}


def find_best(tried: Mapping[float, TrialResult]) -> BestRate:
    """Returns the rate with the lowest loss, of equal ones the lowest rate."""
    rates, losses = sorted(tried), losses_of(tried)
    best = min(rates, key=losses.__getitem__, default=None)
    if best is None or math.isinf(losses[best]):
        return BestRate(None, edge=False)
    return BestRate(best, edge=best in (rates[0], rates[-1]))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is computed and judged on some images and a kind of device, and what is not and why.

    ``request`` is what was asked for: the same request continues the same plan. ``detectable`` is the smallest difference
    that 80 % of studies of this size see, by claim.
    """

    study: Study
    pool: PoolFacts
    device: str
    request: str = ""
    reductions: tuple[str, ...] = ()
    not_asked: tuple[dict[str, str], ...] = ()
    detectable: dict[str, float] = field(default_factory=dict)

    @cached_property
    def places(self) -> dict[str, dict[Place, Trial]]:
        """The trials by experiment and place."""
        return {experiment.name: dict(self._place(experiment)) for experiment in self.study.experiments}

    @cached_property
    def trials(self) -> dict[str, Trial]:
        """The final trials by key, seed by seed: of a study that is stopped early the first seeds are complete."""
        ranked: list[tuple[int, Trial]] = []
        for experiment in self.study.experiments:
            placed = list(self.places[experiment.name].values())
            ranked += [(number % experiment.seeds, trial) for number, trial in enumerate(placed)]
        return {trial.key: trial for _, trial in sorted(ranked, key=lambda entry: entry[0])}

    @cached_property
    def searches(self) -> dict[str, RateSearch]:
        """The searches for learning rates by key, in the order of their experiments."""
        placed = (trial.search for trials in self.places.values() for trial in trials.values())
        found: dict[str, RateSearch] = {}
        for search in placed:
            if search is not None:
                found.setdefault(search.key, search)
        return found

    def _place(self, experiment: Experiment) -> Iterator[tuple[Place, Trial]]:
        for arm, settings in experiment.arms.items():
            for levels in experiment.levels():
                run = self.study.run(settings, levels)
                if run.data.limit is not None and run.data.limit >= self.pool.training:
                    run = replace(run, data=replace(run.data, limit=None))  # trials that are equal have equal keys
                decided_by = {**settings_of(run), "measure": self.study.measure}
                search = None if experiment.rates is None else self._search(run, experiment.rates)
                if search is not None:
                    decided_by |= {RATE: {"tuned": search.key}}
                for seed in range(run.seed, run.seed + experiment.seeds):
                    key = hash_trial("final", {**decided_by, SEED: seed}, self.pool.fingerprint, self.device)
                    trial = Trial(key=key, kind="final", run=replace(run, seed=seed), search=search)
                    yield Place(arm, freeze(levels), seed), trial

    def _search(self, run: Run, rates: Rates) -> RateSearch:
        """Returns the search for the network of ``run``: on all images, for a share of the study's own length."""
        steps = max(round(self.study.base[STEPS] * rates.length), 1)
        run = replace(
            run,
            seed=TUNING_SEED,
            data=replace(run.data, limit=None),
            schedule=replace(run.schedule, steps=steps),
            optim=replace(run.optim, lr=rates.grid[0]),
        )
        how = self.pool.fingerprint, self.device
        key = hash_trial("tuning", {**settings_of(run), RATE: list(rates.grid)}, *how)
        return RateSearch(key=key, run=run, rates=rates, pool=how[0], device=how[1])

    def list_ready(self, results: Mapping[str, TrialResult]) -> list[Trial] | None:
        """Returns the trials without a result that can be computed now, in their order; None if every trial has one."""
        waiting = {key: missing for key, search in self.searches.items() if (missing := search.missing(results))}
        tuning = [trial for missing in waiting.values() for trial in missing]
        final = [trial for trial in self.trials.values() if trial.key not in results]
        if not tuning and not final:
            return None
        return [*tuning, *(trial for trial in final if trial.search is None or trial.search.key not in waiting)]

    def foreseen(self) -> Iterator[Trial]:
        """Yields every trial, as far as it is known before the first result: no continued grid of rates."""
        for search in self.searches.values():
            yield from map(search.trial, search.rates.grid)
        yield from self.trials.values()

    def read_results(self, folder: Path, known: Mapping[str, TrialResult] | None = None) -> dict[str, TrialResult]:
        """Reads the results of all trials that there are by key; those that are ``known`` are not read again."""
        found = dict(known or {})

        def look(trials: Sequence[Trial]) -> bool:
            keys = [trial.key for trial in trials if trial.key not in found]
            new = {key: result for key in keys if (result := read_result(folder, key)) is not None}
            found.update(new)
            return bool(new)

        look(list(self.trials.values()))
        for search in self.searches.values():
            while look(search.missing(found)):
                pass
        return found

    @cached_property
    def document(self) -> dict[str, Any]:
        """The plan as JSON, without its hash."""
        return {"format": FORMAT, **plain(self), "trials": sorted(self.trials), "searches": sorted(self.searches)}

    @property
    def sha256(self) -> str:
        """The hash of all that decides figures and verdicts; where the images lie and how the study was called is none of it."""
        named = replace(self.study, pool=replace(self.study.pool, source=Path(self.study.pool.source).name))
        content = {**self.document, "study": plain(named), "request": ""}
        return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def freeze(levels: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Returns levels by dotted path as sorted pairs, lists as tuples."""
    return tuple(sorted((path, tuple(level) if isinstance(level, list) else level) for path, level in levels.items()))


def settings_of(run: Run) -> dict[str, Any]:
    """Returns the settings that decide a result, by dotted path."""
    return {path: value for path, value in flatten(plain(run)).items() if not path.startswith(IGNORED)}


def hash_trial(kind: str, settings: Mapping[str, Any], pool: str, device: str) -> str:
    """Returns the SHA-256 of all that decides a result: settings, seed and precision among them, images, and kind of device."""
    whole = {"format": FORMAT, "kind": kind, "settings": settings, "pool": pool, "device": device}
    return sha256_of(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


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
    """Reads the plan of a folder and the hashes of earlier ones. Raises `ConfigError` if it is missing or damaged."""
    path = folder / "plan.json"
    tree = read_sealed(path)
    if tree is None:
        what = "is damaged" if path.exists() else "is missing"
        raise ConfigError(f"{path} {what}", "give the folder of a study: vitrail study DATA --out DIR")
    with document_errors(path, "give another --out", ConfigError):
        check_format(tree, folder)
        plan = Plan(
            study=parse_study(tree["study"]),
            pool=build(PoolFacts, tree["pool"]),
            device=str(tree["device"]),
            request=str(tree["request"]),
            reductions=tuple(tree["reductions"]),
            not_asked=tuple(tree["not_asked"]),
            detectable=dict(tree["detectable"]),
        )
        if plan.document["trials"] != tree["trials"]:
            what = f"the trials of {folder} have other keys in this version of vitrail"
            raise ConfigError(what, "take the version that began the study, or give another --out")
        return plan, list(tree["earlier"])


def check_format(tree: Mapping[str, Any], folder: Path) -> None:
    """Raises `ConfigError` for the plan of another version of vitrail, whose trials cannot be continued."""
    if tree["format"] != FORMAT:
        what = f"{folder} holds a study of another version of vitrail (format {tree['format']}, this one has {FORMAT})"
        raise ConfigError(what, "take that version to continue it, or give another --out")


def make_plan(
    study: Study,
    pool: PoolFacts,
    *,
    device: str,
    request: str = "",
    price: Callable[[Trial], float],
    budget: float | None = None,
) -> Plan:
    """Returns the plan of a study on these images within ``budget`` seconds of one worker's time; None is no bound.

    Args:
        price: returns the seconds that a trial takes.

    Raises `ConfigError` if not even the smallest form of the study fits.
    """

    def cost(form: Study) -> float:
        return sum(map(price, Plan(study=form, pool=pool, device=device).foreseen()))

    def detect(experiment: Experiment) -> float:
        # a lone arm is compared with one of another experiment
        groups = max(len(experiment.arms) * len(list(experiment.levels())), 2)
        return expect_difference(SPREAD, seeds=experiment.seeds, images=pool.test, groups=groups).detectable()

    asked, notes = fit_to_images(study, pool)
    study, reductions = (asked, []) if budget is None else reduce(asked, cost, budget)
    kept = {claim.name for claim in study.claims}
    whole = duration(cost(asked)) if len(kept) < len(asked.claims) else ""
    why = f"the experiment {{}} does not fit into the budget; the whole study takes {whole} of one core"
    return Plan(
        study=study,
        pool=pool,
        device=device,
        request=request,
        reductions=(*notes, *reductions),
        not_asked=tuple(
            {"name": claim.name, "why": why.format(claim.experiment)}
            for claim in asked.claims
            if claim.name not in kept
        ),
        detectable={claim.name: detect(study.experiment(claim.experiment)) for claim in study.claims},
    )


def choose_claims(study: Study, names: Sequence[str]) -> Study:
    """Returns the study with only the claims of these names, and the experiments that they need; all without names.

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
    return replace(study, claims=claims, experiments=tuple(each for each in study.experiments if each.name in needed))


def fit_to_images(study: Study, pool: PoolFacts) -> tuple[Study, list[str]]:
    """Returns the study with the sizes of training sets that the images have, null as their number, and what changed."""
    notes, fitted = [], []
    for experiment in study.experiments:
        sizes = sorted({pool.training if level is None else int(level) for level in experiment.factors.get(LIMIT, ())})
        kept = tuple(size for size in sizes if size <= pool.training) or (pool.training,)
        if lost := ", ".join(f"{size:,}" for size in sizes if size > pool.training):
            notes.append(f"{experiment.name}: without {LIMIT} {lost}, there are {pool.training:,} training images")
        fitted.append(replace(experiment, factors={**experiment.factors, LIMIT: kept}) if sizes else experiment)
    return replace(study, experiments=tuple(fitted)), notes


def reduce(study: Study, cost: Callable[[Study], float], budget: float) -> tuple[Study, list[str]]:
    """Returns the largest form of ``study`` that takes at most ``budget`` seconds, and the reductions that lead to it.

    In this order: experiments are dropped from the end, then the middle sizes of training sets, then the images that every trial
    sees are halved. Seeds are never dropped. Raises `ConfigError` if that does not suffice.
    """
    changes, smallest = [], 0.0
    for form, change in _smaller_forms(study):
        changes += [change] if change else []
        if (smallest := cost(form)) <= budget:
            return form, changes
    raise ConfigError(
        f"the study {study.name!r} takes {duration(smallest)} of one core at least, and the budget has {duration(budget)}",
        "give a longer --budget, or fewer --claims",
    )


def _smaller_forms(study: Study) -> Iterator[tuple[Study, str]]:
    yield study, ""
    while len(study.experiments) > 1:
        *kept, last = study.experiments
        claims = tuple(claim for claim in study.claims if claim.experiment != last.name)
        study = replace(study, experiments=tuple(kept), claims=claims)
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
    """Returns the study with half the steps, wherever it names them."""

    def half(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**settings, **({STEPS: max(settings[STEPS] // 2, 1)} if STEPS in settings else {})}

    def halved(experiment: Experiment) -> Experiment:
        levels = {
            path: tuple(level // 2 for level in each) if path == STEPS else each
            for path, each in experiment.factors.items()
        }
        return replace(experiment, arms={arm: half(each) for arm, each in experiment.arms.items()}, factors=levels)

    return replace(study, base=half(study.base), experiments=tuple(map(halved, study.experiments)))
