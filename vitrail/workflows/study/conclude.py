"""From the results of a study to its figures and its page: ``numbers.json``, ``costs.json``, ``cells.csv``, ``report.html``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from vitrail.config.parse import plain
from vitrail.files import dump_json, read_sealed, replace_file
from vitrail.reports.study.documents import write_study
from vitrail.rows import Rows
from vitrail.runtime.machine import describe, versions
from vitrail.workflows.study.judging import judge_study
from vitrail.workflows.study.plan import Plan, read_plan
from vitrail.workflows.study.results import CellResult, Place


@dataclass(frozen=True, repr=False)
class Studied(Rows):
    """A study that was judged: its ``folder``, its page ``report``, and all figures as in ``numbers.json``."""

    folder: Path
    report: Path
    numbers: dict[str, Any]

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each claim: ``claim``, ``verdict``, ``estimate`` and the ends of its interval, ``unit``, ``why``."""
        return [
            {
                "claim": claim["name"],
                "verdict": claim["verdict"],
                **{name: (claim["effect"] or {}).get(name) for name in ("estimate", "low", "high", "unit")},
                "why": claim["why"],
            }
            for claim in self.numbers["claims"]
        ]


def conclude(folder: Path) -> Studied:
    """Judges the results that there are in the ``folder`` of a study, and writes figures and page.

    Raises `ConfigError` for a folder without a plan, and `DiskError`.
    """
    plan, earlier = read_plan(folder)
    results = plan.results(folder)
    facts = plain(plan.pool)
    numbers = judge_study(
        plan.study,
        select_cells(plan, results),
        select_tunings(plan, results),
        data={name: facts[name] for name in ("name", "classes", "training", "validation", "test")},
        plan={"sha256": plan.sha256, "earlier": earlier, "reductions": list(plan.reductions)},
        not_asked=plan.not_asked,
    )
    costs = collect_costs(folder, plan, results)
    replace_file(folder / "numbers.json", dump_json(numbers))
    replace_file(folder / "costs.json", dump_json(costs))
    report = write_study(folder, numbers, costs, cells=list_cells(plan, results))
    return Studied(folder, report, numbers)


def select_cells(plan: Plan, results: Mapping[str, CellResult]) -> dict[str, dict[Place, CellResult]]:
    """The final results that there are, by experiment and place."""
    return {
        experiment: {place: results[key] for place, key in places.items() if key in results}
        for experiment, places in plan.grid.places.items()
    }


def select_tunings(plan: Plan, results: Mapping[str, CellResult]) -> dict[str, dict[str, dict[float, CellResult]]]:
    """The tuning results that there are, by experiment, arm and rate."""
    found: dict[str, dict[str, dict[float, CellResult]]] = {}
    for experiment, places in plan.grid.places.items():
        found[experiment] = {}
        for place, key in places.items():
            tuned = plan.grid.cells[key].tuning
            if tuned is not None and place.arm not in found[experiment]:
                tuning = plan.grid.tuned[tuned]
                found[experiment][place.arm] = {rate: results[tuning.cell(rate).key] for rate in tuning.losses(results)}
    return found


def _place_all(plan: Plan, results: Mapping[str, CellResult]) -> Iterator[tuple[str, Place, CellResult]]:
    """Every result once, at its first place: tuning cells, then final ones."""
    seen: set[str] = set()
    tuned = [
        (experiment, Place(arm, (), result.seed), result)
        for experiment, arms in select_tunings(plan, results).items()
        for arm, by_rate in arms.items()
        for result in by_rate.values()
    ]
    final = [
        (experiment, place, result)
        for experiment, found in select_cells(plan, results).items()
        for place, result in found.items()
    ]
    for experiment, place, result in (*tuned, *final):
        if result.key not in seen:
            seen.add(result.key)
            yield experiment, place, result


def collect_costs(folder: Path, plan: Plan, results: Mapping[str, CellResult]) -> dict[str, Any]:
    """What the study took: all that depends on machines and clocks, and so is no figure."""
    placed = list(_place_all(plan, results))
    cells = [
        {
            "key": result.key,
            "experiment": experiment,
            "arm": place.arm,
            "levels": dict(place.levels),
            "seed": place.seed,
            "host": result.host,
            "peak_bytes": result.peak_bytes,
            **{name: getattr(result, name) for name in ("kind", "seconds", "attempts", "device", "flops")},
        }
        for experiment, place, result in placed
    ]
    asked = read_sealed(folder / "run.json") or {}
    return {
        "cells": cells,
        "total_seconds": sum(result.seconds for _, _, result in placed),
        "flops": sum(result.flops for _, _, result in placed),
        **{name: asked.get(name) for name in ("predicted_seconds", "budget_seconds", "command")},
        "machine": describe(),
        "versions": versions(),
        "date": date.today().isoformat(),
    }


def list_cells(plan: Plan, results: Mapping[str, CellResult]) -> list[dict[str, Any]]:
    """A row for each training, for ``cells.csv``."""
    figures = ("test", "validation", "train")
    return [
        {
            "experiment": experiment,
            "arm": place.arm,
            "levels": " ".join(f"{path}={level}" for path, level in place.levels),
            "seed": place.seed,
            **{name: getattr(result, name) for name in ("kind", "state", "rate", "limit", "steps", "images")},
            **{f"{part}_{name}": getattr(result, part).get(name) for part in figures for name in ("accuracy", "nll")},
            **{name: getattr(result, name) for name in ("flops", "macs6", "parameters", "seconds", "attempts")},
            **{name: getattr(result, name) for name in ("host", "commit", "key", "error")},
        }
        for experiment, place, result in _place_all(plan, results)
    ]
