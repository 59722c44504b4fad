"""`vitrail models`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter


def models(
    name: str | None = None, /, *, classes: int = 1000, json: Annotated[bool, Parameter(negative="")] = False
) -> None:
    """List the models with their size and cost, or show the configuration of one.

    Parameters
    ----------
    name
        One model.
    classes
        Outputs of the head that is counted.
    json
        One JSON object on the last line of stdout.
    """
    from json import dumps

    from vitrail.cli.words import columns, one_line
    from vitrail.models import MODELS, configure, multiply_adds, parameter_count

    if name is not None:
        config = configure(name, classes=classes)
        facts = {"parameters": parameter_count(config), "multiply_adds": multiply_adds(config), **config.to_dict()}
        print(one_line(facts) if json else columns(facts.items()))
        return
    rows = []
    for each in MODELS:
        config = configure(each, classes=classes)
        size = "x".join(map(str, config.image_size))
        rows.append((each, size, f"{parameter_count(config) / 1e6:.1f}", f"{multiply_adds(config) / 1e9:.2f}"))
    if json:
        print(
            dumps({row[0]: {"million_parameters": float(row[2]), "giga_multiply_adds": float(row[3])} for row in rows})
        )
    else:
        print(columns(rows, ("model", "image", "M parameters", "G multiply-adds")))
