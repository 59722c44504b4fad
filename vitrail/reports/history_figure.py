"""The course of a training as a figure of matplotlib: losses on the left, the other validation figures on the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

LOSSES = ("loss", "val_loss", "val_nll")
SIZE = (10.0, 3.6)  # inches


def plot_history(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Returns a figure of the rows of `vitrail.training.train.Result.history`, by step. It displays itself in a notebook."""
    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    names = dict.fromkeys(name for row in history for name in row)
    for name in names:
        if name not in LOSSES and not name.startswith("val_"):
            continue
        points = [(row["step"], row[name]) for row in history if row.get(name) is not None]
        axes = left if name in LOSSES else right
        axes.plot(*zip(*points), label=name, linewidth=1.5, marker="" if name == "loss" else ".")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if axes.get_lines():
            axes.legend(frameon=False)
    figure.suptitle(title)
    return figure
