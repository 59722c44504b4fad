"""The numbers and costs of a study as it could have gone on CIFAR-10: made up, but of the size of real ones."""

from __future__ import annotations

import math
from typing import Any

LIMITS = (500, 2_000, 8_000, 45_000)
VIT, BIT, HYBRID = (0.321, 0.402, 0.488, 0.561), (0.352, 0.451, 0.553, 0.618), (0.338, 0.431, 0.529, 0.604)
UNLIKE = {"vit-s": 1.0, "vit-m": 2.1, "vit-l": 4.4, "bit-s": 0.9, "bit-m": 2.0, "bit-l": 4.2}


def about(value: float, half: float = 0.006) -> dict[str, float]:
    return {"estimate": value, "low": value - half, "high": value + half}


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def arm(experiment: str, name: str, accuracy: float, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "experiment": experiment,
        "arm": name,
        "levels": {},
        "limit": 45_000,
        "seeds": 3,
        "steps": 512,
        "accuracy": about(accuracy),
        "train": accuracy + 0.03,
        "validation": accuracy + 0.004,
        "nll": 1.4,
        "regime": "compute-limited",
        "flops": 2.9e12,
        "macs6": 3.16e12,
        "parameters": 469_000,
        "rate": 2e-3,
    }
    return row | changes


def effect(estimate: float, half: float, unit: str = "points") -> dict[str, Any]:
    return about(estimate, half) | {"unit": unit, "level": 0.95, "df": 22.4, "seeds": 3}


def claim(name: str, verdict: str, measured: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "quote": "",
        "source": "",
        "question": f"What is asked by {name}",
        "experiment": "families",
        "verdict": verdict,
        "effect": measured,
        "rule": {"kind": "greater", "low": 0.01, "high": None},
        "verdict_level": 0.995,
        "detectable": 0.012,
        "why": "the interval lies above zero and reaches 1 point",
        "to_tell": "",
        "rate_robust": "yes",
        "regime": "data-limited",
        "caveat": "",
        "beside": [],
    }
    return row | changes


def claims() -> list[dict[str, Any]]:
    return [
        claim(
            "data-hungry", "held", effect(0.172, 0.071, "logit"),
            quote="Vision Transformers overfit more than ResNets with comparable computational cost on smaller datasets",
            source="section 4.3, figure 4",
            question="BiT minus ViT at the smallest third of the training sizes, in logits of test accuracy",
            rule={"kind": "greater", "low": 0.05, "high": None}, detectable=0.08, rate_robust="no",
            caveat="Both networks are a thousand times smaller than the paper's.",
            beside=[about(0.031, 0.012) | {"name": "gap of ViT minus gap of BiT", "unit": "points"}],
        ),
        claim(
            "crossover", "out of range", effect(-0.057, 0.011),
            quote="with the larger datasets, ViT overtakes", source="figure 3",
            question="ViT minus BiT with all training images",
            why="45,000 images cannot contradict a claim about 300 million", regime="compute-limited",
            rule={"kind": "greater", "low": 0.0, "high": None}, to_tell="a data set of 14 million images",
        ),
        claim(
            "smaller-patches", "held", effect(0.094, 0.014), experiment="patches",
            quote="surprisingly robust improvements without introducing parameters", source="appendix D.2, figure 8",
            question="The smaller of the two gains from 16 to 8 and from 8 to 4 pixels, at equal images",
            beside=[about(-0.021, 0.013) | {"name": "8 to 4 pixels at equal FLOPs", "unit": "points"}],
            caveat="A patch of half the side costs four times the FLOPs; at equal FLOPs the order is the other way round.",
        ),
        claim(
            "cls-equals-gap", "cannot tell", effect(0.008, 0.013), experiment="pooling",
            quote="fully explained by the requirement for a different learning-rate", source="appendix D.3, figure 9",
            question="Global average pooling minus class token, each at its own best rate",
            rule={"kind": "equal", "low": -0.01, "high": 0.01}, why="the interval reaches beyond 1 point on one side",
            to_tell="5 more seeds would show whether the difference is within 1.0 points", rate_robust="not known",
        ),
        claim(
            "compute", "did not hold", effect(1.31, 0.22, "ratio"), experiment="compute",
            quote="ViT uses approximately 2−4× less compute to attain the same performance", source="section 4.4, figure 5",
            question="FLOPs of ViT by FLOPs of BiT at equal accuracy", detectable=None, regime="compute-limited",
            rule={"kind": "ratio", "low": 0.25, "high": 0.5}, why="the interval lies above 1: ViT needs more compute here",
            caveat="NFNets pre-trained on JFT-4B matched ViTs at equal compute (2310.16764).",
        ),
        claim(
            "depth-over-width", "cannot tell", effect(0.004, 0.017), experiment="shape",
            quote="scaling the depth results in the biggest improvements", source="appendix D.2, figure 8",
            question="Depth 9 and width 64 minus depth 2 and width 136, at equal FLOPs",
            why="the interval contains both no effect and 1 point",
            to_tell="3 more seeds would show a difference of 1.0 points",
        ),
    ]  # fmt: skip


def controls() -> list[dict[str, Any]]:
    return [
        claim("A/A", "did not hold", effect(0.002, 0.006), question="The base arm with seeds 3 to 5 minus seeds 0 to 2",
              why="the interval ends below 1 point, as it should", passed=True, rate_robust=""),
        claim("half the images", "held", effect(0.041, 0.012), question="All training images minus half of them", passed=True),
    ]  # fmt: skip


def arms() -> list[dict[str, Any]]:
    rows = []
    for name, accuracies, flops, parameters in (
        ("vit", VIT, 3.16e12, 469_000), ("bit", BIT, 2.80e12, 402_000), ("hybrid", HYBRID, 3.6e12, 520_000)
    ):  # fmt: skip
        for limit, accuracy in zip(LIMITS, accuracies):
            gap, regime = (0.16, "data-limited") if limit < 8_000 else (0.03, "compute-limited")
            rows.append(arm("families", name, accuracy, levels={"data.limit": limit}, limit=limit, train=accuracy + gap,
                            regime=regime, macs6=flops, flops=0.9 * flops, parameters=parameters))  # fmt: skip
    patches = (
        ("patch-16", 0.467, 0.3),
        ("patch-8", 0.561, 1),
        ("patch-4", 0.655, 4),
        ("patch-4-equal-compute", 0.540, 1),
    )
    rows += [arm("patches", name, accuracy, macs6=3.16e12 * times) for name, accuracy, times in patches]
    rows += [arm("pooling", name, accuracy) for name, accuracy in (("cls", 0.561), ("gap", 0.569))]
    shapes = (("shallow-wide", 0.558), ("base", 0.561), ("deep-narrow", 0.562), ("MLP twice as wide", 0.573))
    rows += [arm("shape", name, accuracy) for name, accuracy in shapes]
    for name, times in UNLIKE.items():
        for steps in (256, 512, 1_024):
            cost = 1.6e12 * times * steps / 512
            accuracy = 0.50 + 0.062 * math.log2(cost / 1e12) + (0.03 if name.startswith("bit") else 0)
            rows.append(arm("compute", name, accuracy, levels={"schedule.steps": steps}, steps=steps, macs6=cost,
                            flops=0.93 * cost, parameters=int(3e5 * times), seeds=2))  # fmt: skip
    return rows


def rates() -> list[dict[str, Any]]:
    names = ("vit", "bit", "hybrid", "patch-16", "patch-8", "patch-4", "cls", "gap", "shallow-wide", "deep-narrow")
    rows = []
    for at, name in enumerate(names):
        top = 1e-3 * 2 ** (0.6 + 0.1 * at)
        grid = [5e-4, 1e-3, 2e-3, 4e-3]
        points = [{"lr": lr, "nll": 1.5, "accuracy": 0.5 - 0.02 * math.log2(lr / top) ** 2 + 0.004 * at} for lr in grid]
        rows.append({"arm": name, "points": points, "best": top, "edge": False})
    rows[-1] |= {"best": 4e-3, "edge": True, "experiment": "shape"}
    return rows


def curves() -> dict[str, Any]:
    differences = [
        {"plus": "bit", "minus": "vit", "unit": "points",
         "points": [about(bit - vit, 0.012) | {"x": n} for n, bit, vit in zip(LIMITS, BIT, VIT)]},
        {"plus": "hybrid", "minus": "vit", "unit": "points",
         "points": [about(hybrid - vit, 0.012) | {"x": n} for n, hybrid, vit in zip(LIMITS, HYBRID, VIT)]},
    ]  # fmt: skip
    needed = [
        {
            "arm": "vit",
            "against": "bit",
            "points": [about(1.9 + 0.3 * at, 0.5) | {"x": n} for at, n in enumerate(LIMITS[:3])],
        }
    ]
    fitted = [
        {"x": n, "estimate": 0.28 + 0.05 * math.log10(n / 100), "low": 0.2, "high": 0.6}
        for n in (*LIMITS, 60_000, 90_000)
    ]
    fits = [{"arm": "vit", "points": fitted, "measured_to": 45_000}]
    frontier = [
        {"family": family, "points": [about(0.50 + 0.062 * math.log2(x) + more, 0.008) | {"x": x * 1e12}
                                      for x in (0.9, 1.5, 2.5, 4.0, 7.0, 12.0)]}
        for family, more in (("ViT", 0.0), ("BiT", 0.03))
    ]  # fmt: skip
    axes = [
        {
            "axis": axis,
            "points": [about(logit(0.561) + slope * turns, 0.05) | {"doublings": turns} for turns in (-1, 0, 1)],
        }
        for axis, slope in (("depth", 0.14), ("width", 0.19), ("MLP", 0.06), ("1 / patch", 0.39))
    ]
    return {
        "data": [{"experiment": "families", "differences": differences, "needed": needed, "fits": fits}],
        "compute": {
            "experiments": ["compute"],
            "families": {name: {"vit": "ViT", "bit": "BiT"}[name[:3]] for name in UNLIKE},
            "frontier": frontier,
            "ratios": [about(1.31, 0.22) | {"name": "FLOPs of ViT by those of BiT at equal accuracy"}],
        },
        "axes": axes,
    }


def published() -> dict[str, Any]:
    rows = [("ImageNet", 2.09, 1.59, 2.77), ("ImageNet ReaL", 1.2, 0.7, 2.1), ("mean of five sets", 4.07, 2.95, 5.95)]
    points, lines = [], []
    for family, level, slope in (("ViT", 0.0, 0.127), ("ResNet", -0.09, 0.155), ("Hybrid", 0.1, 0.067)):
        costs = [4e19 * 2**at for at in range(7)]
        law = [1 / (1 + math.exp(-(1.62 + level + slope * math.log(cost / 1e20)))) for cost in costs]
        points += [{"family": family, "model": f"{family} {at}", "flops": cost, "accuracy": share + 0.002 * (-1) ** at}
                   for at, (cost, share) in enumerate(zip(costs, law))]  # fmt: skip
        lines.append({"family": family, "points": [{"x": cost, "estimate": share} for cost, share in zip(costs, law)]})
    slopes = {"ViT": 0.127, "ResNet": 0.155, "Hybrid": 0.067}
    return {
        "source": "table 6",
        "models": 18,
        "metric": "ImageNet",
        "rows": [{"name": name, "estimate": value, "low": low, "high": high, "slopes": slopes, "equal_slopes": 0.08}
                 for name, value, low, high in rows],
        "points": points,
        "lines": lines,
    }  # fmt: skip


def numbers() -> dict[str, Any]:
    distances = [[4 + 1.1 * layer + head * (5 - 0.4 * layer) for head in range(4)] for layer in range(9)]
    layers = [{"distance": heads, "uniform": 16.7} for heads in distances]
    shares = {"neighbour_rate": 0.94, "row_column_excess": 0.21, "untrained_neighbour_rate": 0.13}
    return {
        "format": 1,
        "study": "vit-paper",
        "plan": {"sha256": "5f1e0c" * 10 + "abcd", "earlier": ["91aa02" * 10 + "ffee"]},
        "data": {"name": "cifar10", "classes": 10, "training": 45_000, "validation": 5_000, "test": 10_000},
        "base": {"schedule.steps": 512, "data.batch": 128, "optimiser.name": "adamw"},
        "claims": claims(),
        "controls": controls(),
        "arms": arms(),
        "rates": rates(),
        "curves": curves(),
        "published": published(),
        "heads": [{"model": "deep-narrow, depth 9", "layers": layers}],
        "positions": [{"model": "deep-narrow", **shares}],
        "not_asked": [
            {"name": "positions-alike", "why": "8 seeds are needed to see 1 point: 7 more minutes"},
            {"name": "self-supervision", "why": "needs longer training than this budget allows"},
        ],
        "not_testable": [
            {"claim": "table 2 and the groups of VTAB", "why": "needs JFT-300M and ViT-H/14"},
            {"claim": "filters as plausible basis functions", "why": "a picture, for which there is no rule"},
        ],
        "failures": [{"cell": "9b1c22d07e41", "experiment": "compute", "arm": "vit-l", "state": "diverged",
                      "error": "the loss was not finite at step 212"}],
        "commits": ["fcf2846", "912ec16"],
        "checklist": [
            {"item": "form", "answer": "a straight line in the logit of accuracy against the logarithm of FLOPs, common slope"},
            {"item": "optimiser", "answer": "least squares in closed form; laws with least_squares, soft_l1, 16 starts"},
            {"item": "intervals", "answer": "1,000 bootstrap samples: seeds within cells, images once for all cells"},
            {"item": "points left out", "answer": "none"},
        ],
    }  # fmt: skip


def costs() -> dict[str, Any]:
    cells = [
        {"key": f"{at:04x}", "experiment": row["experiment"], "arm": row["arm"], "levels": row["levels"], "kind": "final",
         "seed": seed, "seconds": 12 + row["macs6"] / (3.4e10 if row["arm"].startswith("bit") else 6e10) + seed,
         "attempts": 2 if at == 3 else 1, "host": "node7", "device": "cpu", "flops": row["flops"]}
        for at, row in enumerate(arms()) for seed in range(row["seeds"])
    ]  # fmt: skip
    cells += [
        {"key": f"t{at:03x}", "experiment": "families", "arm": row["arm"], "levels": {}, "kind": "tuning", "seed": 9,
         "seconds": 21.0, "attempts": 1, "host": "node7", "device": "cpu", "flops": 1.4e12}
        for at, row in enumerate(rates()) for _ in row["points"]
    ]  # fmt: skip
    return {
        "cells": cells,
        "total_seconds": 3_212.0,
        "predicted_seconds": 3_516.0,
        "budget_seconds": 3_600.0,
        "flops": sum(cell["flops"] for cell in cells),
        "machine": "2 cores, 24 GiB",
        "versions": {"vitrail": "0.1", "torch": "2.9"},
        "command": "vitrail study cifar10/ --budget 1h --out study/",
        "date": "24 November 2026",
    }


def progress() -> dict[str, Any]:
    experiments = [
        {"name": "learning rates", "cells": 40, "done": 40, "running": 0, "failed": 0, "seconds_left": 0.0, "claims": []},
        {"name": "families", "cells": 36, "done": 17, "running": 2, "failed": 1, "seconds_left": 640.0,
         "claims": ["data-hungry", "gap-closes", "crossover"]},
        {"name": "patches", "cells": 12, "done": 0, "running": 0, "failed": 0, "seconds_left": 700.0,
         "claims": ["smaller-patches"]},
    ]  # fmt: skip
    return {"study": "vit-paper", "state": "running", "plan": "5f1e0c" * 10, "workers": 2, "seconds_used": 812.0,
            "seconds_left": 1340.0, "budget_seconds": 3600.0, "experiments": experiments, "date": "24 November 2026"}  # fmt: skip
