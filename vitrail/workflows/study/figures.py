"""The tables and curves beside the verdicts of a study: arms, accuracy by data and by compute, axes, findings, and table 6."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.evaluation.claim import Compute
from vitrail.evaluation.intervals import bound_percentiles
from vitrail.evaluation.laws import FARTHEST, fit_curve, logit
from vitrail.workflows.study.effects import finite, with_interval
from vitrail.workflows.study.groups import Group, Trained, UnsureError
from vitrail.workflows.study.published import METRICS, TABLE_6, compare_published
from vitrail.workflows.study.study import LIMIT, Experiment

RESAMPLES = 200  # of a curve that is drawn
POINTS = 25  # on it
TITLES = {"imagenet": "ImageNet", "mean of five": "mean of five sets", "real": "ImageNet ReaL"}
AXES = {"depth": "depth", "width": "width", "mlp_width": "MLP", "patch_size": "patch"}


def list_arms(trained: Trained) -> list[dict[str, Any]]:
    """A row for each arm at each level; accuracies on test images, with an interval over seeds and images."""
    return [
        {
            "experiment": experiment,
            "arm": group.arm,
            "levels": dict(group.levels),
            "limit": group.limit,
            "seeds": len(group.values),
            "steps": group.results[0].steps,
            "accuracy": with_interval(trained.combine([group], [1.0], "points")),
            "train": finite(group.mean("train", "accuracy")),
            "validation": finite(group.mean("validation", "accuracy")),
            "nll": finite(group.mean("test", "nll")),
            "regime": group.regime,
            "flops": max(result.flops for result in group.results),
            "macs6": group.macs6,
            "parameters": max(result.parameters for result in group.results),
            "rate": group.results[0].rate,
        }
        for experiment, groups in trained.groups.items()
        for group in groups
        if len(group.values)
    ]


def list_curves(trained: Trained, ratios: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What figures need beside arms: differences and fits by training images, frontiers by compute, and axes of a network."""
    data = [
        curve
        for experiment in trained.study.experiments
        if len(experiment.factors.get(LIMIT, ())) > 1 and (curve := _curve_of_data(trained, experiment))
    ]
    axes = [row for experiment in trained.study.experiments for row in _list_axes(trained, experiment)]
    return {"data": data, "compute": _curve_of_compute(trained, ratios), "axes": axes}


def _curve_of_data(trained: Trained, experiment: Experiment) -> dict[str, Any] | None:
    sizes = sorted(experiment.factors[LIMIT])
    lines: dict[str, list[Group]] = {}
    for arm in experiment.arms:
        try:
            lines[arm] = [trained.pick(experiment.name, arm, {LIMIT: size})[0] for size in sizes]
        except UnsureError:
            continue
    if not lines:
        return None
    first, *others = lines
    pairs = [(first, other) for other in others]
    return {
        "experiment": experiment.name,
        "differences": [
            {
                "plus": plus,
                "minus": minus,
                "unit": "points",
                "points": [
                    {"x": one.limit, **with_interval(trained.subtract([one], [other], "points"))}
                    for one, other in zip(lines[plus], lines[minus])
                ],
            }
            for plus, minus in pairs
        ],
        "needed": [
            {"arm": plus, "against": minus, "points": points}
            for plus, minus in pairs
            if (points := _list_needed(trained, lines[plus], lines[minus]))
        ],
        "fits": [fit for arm, groups in lines.items() if (fit := _fit(trained, arm, groups))],
    }


def _list_needed(trained: Trained, arm: Sequence[Group], against: Sequence[Group]) -> list[dict[str, Any]]:
    """How many times the images of ``against`` an arm needs for the same accuracy, where that was measured: R(n)."""
    draws = logit(trained.draw([*arm, *against]))  # (R, 2 L)
    middle = logit(np.clip([group.accuracy for group in (*arm, *against)], 1e-6, 1 - 1e-6))
    sizes, count = np.log([group.limit for group in arm]), len(arm)
    points = []
    for place, group in enumerate(against):
        found = [
            np.exp(_invert(sizes, row[:count], row[count + place])) / group.limit for row in (middle, *draws)
        ]  # fmt: skip
        inside = np.isfinite(found[1:])
        low, high = bound_percentiles(np.array(found[1:])) if inside.mean() > 0.5 else (math.nan, math.nan)
        if math.isfinite(found[0]):
            points.append({"x": group.limit, "estimate": finite(found[0]), "low": finite(low), "high": finite(high)})
    return points


def _invert(x: np.ndarray, heights: np.ndarray, height: float) -> float:
    """Where a rising line through points reaches a height; NaN outside of the points."""
    rising = np.maximum.accumulate(heights)
    return float(np.interp(height, rising, x, left=math.nan, right=math.nan))


def _fit(trained: Trained, arm: str, groups: Sequence[Group]) -> dict[str, Any] | None:
    x = np.array([group.limit for group in groups], dtype=np.float64)
    accuracy = np.array([group.accuracy for group in groups])
    curve = fit_curve(x, accuracy, trained.draw(groups, resamples=RESAMPLES), classes=trained.classes)
    if curve is None:
        return None
    at = np.geomspace(x.min(), FARTHEST * x.max() * (1 - 1e-9), POINTS)
    points = [
        {"x": float(n), "estimate": finite(middle), "low": finite(low), "high": finite(high)}
        for n, middle, low, high in zip(at, *curve.band(at))
    ]
    return {"arm": arm, "points": points, "measured_to": float(x.max()), "why": curve.why}


def _curve_of_compute(trained: Trained, ratios: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The families of a claim on compute and their frontiers: the best accuracy for FLOPs, by validation."""
    asked = next((claim for claim in trained.study.claims if isinstance(claim.contrast, Compute)), None)
    if asked is None or not trained.groups.get(asked.experiment):
        return {}
    assert isinstance(asked.contrast, Compute)
    groups = trained.groups[asked.experiment]
    families = {arm: arm.split("-")[0] for arm in trained.study.experiment(asked.experiment).arms}
    frontier = []
    for family in dict.fromkeys(families.values()):
        own = sorted((g for g in groups if families[g.arm] == family and len(g.values)), key=lambda group: group.macs6)
        best, points = -math.inf, []
        for group in own:
            if (validation := group.mean("validation", "accuracy")) > best:
                best = validation
                points.append({"x": group.macs6, **with_interval(trained.combine([group], [1.0], "points"))})
        frontier.append({"family": family, "points": points})
    return {"experiments": [asked.experiment], "families": families, "frontier": frontier, "ratios": list(ratios)}


def _list_axes(trained: Trained, experiment: Experiment) -> list[dict[str, Any]]:
    """The logit accuracy by doublings of one axis of the arm ``base``, of the arms that differ from it in that axis alone."""
    if "base" not in experiment.arms or experiment.name == "again":
        return []
    base = experiment.arms["base"].get("model.changes", {})
    found: dict[str, list[dict[str, Any]]] = {}
    for group in trained.groups[experiment.name]:
        own = experiment.arms[group.arm].get("model.changes", {})
        axis = "" if group.arm == "base" else _find_axis(base, own)
        if not len(group.values) or (not axis and group.arm != "base"):
            continue
        point = with_interval(trained.combine([group], [1.0], "logit"))
        for name in [axis] if axis else AXES.values():
            key = next(key for key, title in AXES.items() if title == name)
            if key in base:
                found.setdefault(name, []).append({"doublings": _doublings(base, own, key), **point})
    return [
        {"axis": axis, "points": sorted(points, key=lambda point: point["doublings"])}
        for axis, points in found.items()
        if len(points) > 1
    ]


def _find_axis(base: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The axis in which two networks differ; width takes its heads and MLP with it. Empty for none or several."""
    changed = {key for key in {*base, *own} if base.get(key) != own.get(key)}
    if "width" in changed and changed <= {"width", "heads", "mlp_width"}:
        return AXES["width"]
    return AXES.get(changed.pop(), "") if len(changed) == 1 else ""


def _doublings(base: Mapping[str, Any], own: Mapping[str, Any], key: str) -> float:
    """Doublings of an axis from one network to another; for patches, halvings: more of them cost more."""
    size = [float(each[key][0] if isinstance(each[key], (list, tuple)) else each[key]) for each in (base, own)]
    return math.log2(size[0] / size[1] if key == "patch_size" else size[1] / size[0])


def list_findings(trained: Trained) -> dict[str, Any]:
    """Attention distances of the first training of each network that has them, and figures of positions over its trainings."""
    heads, positions = [], []
    names = ("neighbour_rate", "row_column_excess", "untrained_neighbour_rate")
    for experiment, groups in trained.groups.items():
        for group in groups:
            found = [result.findings for result in group.results]
            model = f"{experiment}: {group}"
            if layers := found[0].get("heads", {}).get("layers"):
                heads.append({"model": model, "layers": layers})
            known = [each["positions"] for each in found if "positions" in each]
            if known:
                means = {name: float(np.mean([each[name] for each in known])) for name in names}
                positions.append({"model": model, **means})
    return {"heads": heads, "positions": positions}


def list_published() -> dict[str, Any]:
    """Table 6 of the paper: the ratio of compute by metric, and the points and lines of ImageNet."""
    rows = []
    for metric in METRICS:
        found = compare_published(metric)
        slopes = dict(zip(("vit", "resnet"), found.slopes))
        rows.append(
            {"name": TITLES[metric], **with_interval(found.ratio), "slopes": slopes, "equal_slopes": found.same_slope}
        )
    points = [
        {
            "family": model.family,
            "model": model.name,
            "flops": 1e18 * model.exaflops,
            "accuracy": model.accuracies[0] / 100,
        }
        for model in TABLE_6
    ]
    return {"source": "table 6", "models": len(TABLE_6), "metric": TITLES["imagenet"], "rows": rows, "points": points}
