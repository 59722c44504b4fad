"""The plan of a study, written and hashed before the first trial: its trials and their results, and what fits into a budget.

A trial is known by a hash of what decides its result. Nothing here imports torch.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vitrail.checksums import sha256_of
from vitrail.config.parse import build, flatten, plain
from vitrail.config.schema import Run
from vitrail.errors import ConfigError, nearest
from vitrail.files import document_errors, ensure_folder, read_checksummed, write_checksummed
from vitrail.runtime.progress import duration
from vitrail.studies.design import LIMIT, RATE, SEED, STEPS, Experiment, Rates, Study, parse_study
from vitrail.studies.statistics import expect_difference
from vitrail.training.lr_search import RateChoice, choose_rate

FORMAT = 3  # of plans, of trials and of numbers.json
TRIALS, RUNS = "trials", "runs"  # inside the folder of a study: results, and trainings that are under way
HALVINGS = 3  # of the images that a trial sees, at most
TUNING_SEED = 1_000_000  # of all tuning trials, and of no final one
# settings that do not decide a result; the device has its kind in the key
IGNORED = (
    *("save.", "track.", "recipe", "data.source", "data.workers", "data.validation", "data.decoded", "optim.rates"),
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


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What one training leaves: kilobytes, whatever its network. ``test``, ``validation`` and ``train``, 1,000 of its own images
    without augmentation, have ``accuracy`` and ``nll``.

    Args:
        limit: the number of training images.
        right: which of the N test images, or validation images in tuning, are right: (N,) bool; (0,) unless it is done.
        curve: at 8 points ``step``, ``validation_accuracy``, ``validation_nll`` and ``train_accuracy``.
        flops: executed by the whole training; ``macs6`` is 6 x the multiply-adds of a forward pass x images seen.
        error: why it failed, or where it diverged.
        seconds: of the clock; neither it nor a field after it is part of a figure.
    """

    key: str
    kind: Literal["final", "tuning"]
    state: Literal["done", "diverged", "failed"] = "done"
    seed: int
    rate: float
    limit: int = 0
    steps: int = 0
    right: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    test: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    train: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[Mapping[str, float], ...] = ()
    flops: float = 0.0
    macs6: float = 0.0
    parameters: int = 0
    findings: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    host: str = ""
    device: str = ""
    version: str = ""
    attempts: int = 1


Results = Mapping[str, TrialResult]  # by the key of the trial


def write_result(folder: Path, result: TrialResult) -> None:
    """Keeps a result in the study's ``folder``, whole or not at all. Raises `DiskError`."""
    bits = base64.b64encode(np.packbits(result.right).tobytes()).decode()
    tree = plain({**vars(result), "format": FORMAT, "right": [len(result.right), bits]})
    ensure_folder(folder / TRIALS)
    write_checksummed(folder / TRIALS / f"{result.key}.json", tree)


def read_result(folder: Path, key: str) -> TrialResult | None:
    """Reads the result of a trial; None where it is missing, damaged or of another format, and has to be computed."""
    tree = read_checksummed(folder / TRIALS / f"{key}.json")
    if tree is None or tree.pop("format", None) != FORMAT or tree.get("key") != key:
        return None
    with suppress(KeyError, TypeError, ValueError):  # the name of the checksum may be what is damaged
        count, bits = tree["right"]
        right = np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8))[:count].astype(bool)
        kept: dict[str, Any] = {**tree, "right": right, "curve": tuple(tree["curve"])}
        return TrialResult(**kept)
    return None


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
            key = hash_trial("tuning", settings_of(run), self.pool, self.device)
            self.trials[rate] = Trial(key=key, kind="tuning", run=run)
        return self.trials[rate]

    def tried(self, results: Results) -> dict[float, TrialResult]:
        """Returns the results that there are, by rate."""
        found: dict[float, TrialResult] = {}
        untried: Sequence[float] = self.rates.grid
        while new := {rate: results[key] for rate in untried if (key := self.trial(rate).key) in results}:
            found |= new
            untried = choose_rate(losses_of(found), self.rates.grid).untried
        return dict(sorted(found.items()))

    def choose(self, results: Results) -> RateChoice:
        """Returns the rate to take, and those that have to be tried before it is known."""
        return choose_rate(losses_of(self.tried(results)), self.rates.grid)

    def missing(self, results: Results) -> list[Trial]:
        """Returns the trials that have to be computed before the rate is known; none if it is."""
        return [self.trial(rate) for rate in self.choose(results).untried]


def losses_of(tried: Mapping[float, TrialResult]) -> dict[float, float]:
    """Returns the validation NLL of each rate, infinite where training failed."""
    return {rate: result.validation.get("nll", math.inf) for rate, result in tried.items()}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is computed and decided on some images and a kind of device, and what is not and why."""

    study: Study
    pool: PoolFacts
    device: str
    request: str = ""  # the same request continues the same plan
    reductions: tuple[str, ...] = ()
    not_asked: tuple[dict[str, str], ...] = ()
    detectable: dict[str, float] = field(default_factory=dict)  # by claim, what 80 % of studies of this size see

    @cached_property
    def places(self) -> dict[str, dict[Place, Trial]]:
        """The trials by experiment and place."""
        return {experiment.name: dict(self._place(experiment)) for experiment in self.study.experiments}

    @cached_property
    def trials(self) -> dict[str, Trial]:
        """The final trials by key, seed by seed: of a study that is stopped early the first seeds are complete."""
        ranked = [
            (number % experiment.seeds, trial)
            for experiment in self.study.experiments
            for number, trial in enumerate(self.places[experiment.name].values())
        ]
        return {trial.key: trial for _, trial in sorted(ranked, key=itemgetter(0))}

    @cached_property
    def searches(self) -> dict[str, RateSearch]:
        """The searches for learning rates by key, in the order of their experiments."""
        placed = [trial.search for trials in self.places.values() for trial in trials.values()]
        return {search.key: search for search in placed if search is not None}

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
        schedule = replace(run.schedule, steps=max(round(self.study.base[STEPS] * rates.length), 1))
        data, optim = replace(run.data, limit=None), replace(run.optim, lr=rates.grid[0])
        run = replace(run, seed=TUNING_SEED, data=data, schedule=schedule, optim=optim)
        pool = self.pool.fingerprint
        key = hash_trial("tuning", {**settings_of(run), RATE: list(rates.grid)}, pool, self.device)
        return RateSearch(key=key, run=run, rates=rates, pool=pool, device=self.device)

    def list_ready(self, results: Results) -> list[Trial] | None:
        """Returns the trials without a result that can be computed now, in their order; None if every trial has one."""
        missing = {key: search.missing(results) for key, search in self.searches.items()}
        tuning = [trial for trials in missing.values() for trial in trials]
        final = [trial for trial in self.trials.values() if trial.key not in results]
        if not tuning and not final:
            return None
        return [*tuning, *(trial for trial in final if trial.search is None or not missing[trial.search.key])]

    def _list_untried(self, results: Results) -> list[Trial]:
        return [trial for search in self.searches.values() for trial in search.missing(results)]

    def foreseen(self) -> Iterator[Trial]:
        """Yields every trial, as far as it is known before the first result: no continued grid of rates."""
        for search in self.searches.values():
            yield from map(search.trial, search.rates.grid)
        yield from self.trials.values()

    def read_results(self, folder: Path, known: Results | None = None) -> dict[str, TrialResult]:
        """Reads the results of all trials that there are by key; those that are ``known`` are not read again."""
        found = dict(known or {})
        keys = {trial.key for trial in (*self.foreseen(), *self._list_untried(found))}
        while new := {key: each for key in keys if key not in found and (each := read_result(folder, key)) is not None}:
            found |= new
            keys = {trial.key for trial in self._list_untried(found)}
        return found

    @cached_property
    def document(self) -> dict[str, Any]:
        """The plan as JSON, without its hash."""
        return {"format": FORMAT, **plain(self), "trials": sorted(self.trials), "searches": sorted(self.searches)}

    @property
    def sha256(self) -> str:
        """The hash of all that decides figures and verdicts; where the images lie and how the study was called is none of it."""
        named = replace(self.study, pool=replace(self.study.pool, source=Path(self.study.pool.source).name))
        return _hash({**self.document, "study": plain(named), "request": ""})


def freeze(levels: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((path, tuple(level) if isinstance(level, list) else level) for path, level in levels.items()))


def settings_of(run: Run) -> dict[str, Any]:
    """Returns the settings that decide a result, by dotted path."""
    return {path: value for path, value in flatten(plain(run)).items() if not path.startswith(IGNORED)}


def hash_trial(kind: str, settings: Mapping[str, Any], pool: str, device: str) -> str:
    """Returns the SHA-256 of all that decides a result: settings, seed and precision among them, images, and kind of device."""
    return _hash({"format": FORMAT, "kind": kind, "settings": settings, "pool": pool, "device": device})


def hash_request(study: Study, budget: float | None) -> str:
    """Returns the same SHA-256 for equal requests: the same one continues its plan."""
    return _hash([plain(study), budget])


def _hash(content: Any) -> str:
    return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def write_plan(folder: Path, plan: Plan) -> list[str]:
    """Writes ``plan.json``; an earlier plan goes to ``plans``. Returns the hashes of all earlier ones, oldest first."""
    before = read_checksummed(folder / "plan.json")
    earlier = [] if before is None else before["earlier"]
    if before is not None and before["sha256"] != plan.sha256:
        ensure_folder(folder / "plans")
        write_checksummed(folder / "plans" / f"{before['sha256']}.json", before)
        earlier = [*earlier, before["sha256"]]
    write_checksummed(folder / "plan.json", {**plan.document, "sha256": plan.sha256, "earlier": earlier})
    return earlier


def read_plan(folder: Path) -> tuple[Plan, list[str]]:
    """Reads the plan of a folder and the hashes of earlier ones. Raises `ConfigError` if it is missing or damaged."""
    path = folder / "plan.json"
    tree = read_checksummed(path)
    if tree is None:
        what = "is damaged" if path.exists() else "is missing"
        raise ConfigError(f"{path} {what}", "give the folder of a study: vitrail study DATA --out DIR")
    with document_errors(path, "give another --out", ConfigError):
        check_format(tree, folder)
        own = {item.name: tree[item.name] for item in fields(Plan)}
        plan = build(Plan, {**own, "study": parse_study(tree["study"])})
        if plan.document["trials"] != tree["trials"]:
            what = f"the trials of {folder} have other keys in this version of vitrail"
            raise ConfigError(what, "take the version that began the study, or give another --out")
        return plan, list(tree["earlier"])


def check_format(tree: Mapping[str, Any], folder: Path) -> None:
    """Raises `ConfigError` for the plan of another version of vitrail, whose trials cannot be continued."""
    if tree["format"] != FORMAT:
        what = f"{folder} holds a study of another version of vitrail (format {tree['format']}, this one has {FORMAT})"
        raise ConfigError(what, "take that version to continue it, or give another --out")


# --- a new plan ---


def make_plan(
    study: Study, pool: PoolFacts, *, device: str, price: Callable[[Trial], float], budget: float | None, request: str
) -> Plan:
    """Returns the plan of a study on these images within ``budget`` seconds of one worker's time; None is no bound.

    ``price`` returns the seconds that a trial takes. Raises `ConfigError` if not even the smallest form of the study fits.
    """

    def cost(form: Study) -> float:
        return sum(map(price, Plan(study=form, pool=pool, device=device).foreseen()))

    def detect(experiment: Experiment) -> float:
        # a lone arm is compared with one of another experiment
        groups = max(len(experiment.arms) * len(list(experiment.levels())), 2)
        return expect_difference(seeds=experiment.seeds, images=pool.test, groups=groups).detectable()

    asked, notes = fit_to_images(study, pool)
    study, reductions = (asked, []) if budget is None else reduce(asked, cost, budget)
    lost = [claim for claim in asked.claims if claim not in study.claims]
    why = f"does not fit into the budget; the whole study takes {duration(cost(asked))} of one core" if lost else ""
    return Plan(
        study=study,
        pool=pool,
        device=device,
        request=request,
        reductions=(*notes, *reductions),
        not_asked=tuple({"name": claim.name, "why": f"the experiment {claim.experiment} {why}"} for claim in lost),
        detectable={claim.name: detect(study.experiment(claim.experiment)) for claim in study.claims},
    )


def choose_claims(study: Study, names: Sequence[str]) -> Study:
    """Returns the study with only the claims of these names, and the experiments that they need; all without names.

    Raises `ConfigError` for a claim that the study does not have.
    """
    if not names:
        return study
    known = [claim.name for claim in study.claims]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"the study {study.name!r} has no claim {unknown[0]!r}", nearest(unknown[0], known))
    claims = tuple(claim for claim in study.claims if claim.name in names)
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

    Experiments are dropped from the end, then the images that every trial sees are halved. Seeds are never dropped. Raises
    `ConfigError` if that does not suffice.
    """
    changes, halvings = list[str](), 0
    while (least := cost(study)) > budget:
        if len(study.experiments) > 1:
            *kept, last = study.experiments
            claims = tuple(claim for claim in study.claims if claim.experiment != last.name)
            study = replace(study, experiments=tuple(kept), claims=claims)
            changes.append(f"without the experiment {last.name}")
        elif halvings < HALVINGS:
            study, halvings = _halve(study), halvings + 1
            changes.append(f"half the images: {study.base[STEPS]} steps")
        else:
            what = f"takes {duration(least)} of one core at least, and the budget has {duration(budget)}"
            raise ConfigError(f"the study {study.name!r} {what}", "give a longer --budget, or fewer --claims")
    return study, changes


def _halve(study: Study) -> Study:
    """Returns the study with half the steps, wherever it names them."""

    def half(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**settings, STEPS: max(settings[STEPS] // 2, 1)} if STEPS in settings else dict(settings)

    def halved(experiment: Experiment) -> Experiment:
        arms, factors = {arm: half(each) for arm, each in experiment.arms.items()}, dict(experiment.factors)
        if STEPS in factors:
            factors[STEPS] = tuple(max(level // 2, 1) for level in factors[STEPS])
        return replace(experiment, arms=arms, factors=factors)

    return replace(study, base=half(study.base), experiments=tuple(map(halved, study.experiments)))
