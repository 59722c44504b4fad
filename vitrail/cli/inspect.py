"""`vitrail inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import InspectFlags

VERDICTS = {True: "true", False: "false", None: "not asked"}
COMPARED = ("model", "height", "width", "parameters", "multiply_adds", "images_per_second", "largest_batch")


@takes_flags(InspectFlags)
def inspect(model: str, /, *others: str, json: AsJson = False, **flags: Unpack[InspectFlags]) -> None:
    """Inspect a model: the paper's figures of its filters, positions and heads, on one page and as numbers.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), or hf:owner/name.
    others
        With --cost, further models to compare it with. Names such as vit-b16 stand for random weights.
    """
    from vitrail.cli.output import columns, command_line, one_line
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.api_inspecting import inspect as look

    use_all_cores()
    report, figures = look([model, *others] if others else model, command=command_line(), **flags)
    if json:
        plain = {name: value for name, value in figures.items() if isinstance(value, int | float | str)}
        print(one_line({"report": str(report), **plain}))
        return
    if "costs" in figures:
        print(columns(([row[name] for name in COMPARED] for row in figures["costs"]), COMPARED))
        print(*figures["notes"], sep="\n", end="\n" * bool(figures["notes"]))
    if "models" in figures:
        print(*show_pair(figures), sep="\n")
        print(report)
        return
    for claim, holds in figures.get("findings", {}).items():
        print(f"{VERDICTS[holds]:10}{claim}")
    print(report)


def show_pair(figures: dict[str, Any]) -> Iterator[str]:
    """Lines of two models: the findings, the figures of their heads, and the notes."""
    from vitrail.cli.output import columns

    one, other = figures["models"]
    rows = [[claim, *(VERDICTS[holds] for holds in both), ""] for claim, both in figures["findings"].items()]
    rows += [
        [name, *(f"{each['figures'][name]:.3f}" for each in (one, other)), f"{change:+.3f}"]
        for name, change in figures["differences"].items()
    ]
    yield columns(rows, ["", one["name"], other["name"], "difference"])
    yield from figures["notes"]
