"""`vitrail models`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter


def models(
    name: str | None = None,
    /,
    *,
    size: int | None = None,
    classes: int = 1000,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """List the models with their size and cost, or show one with its paper and published accuracy.

    Parameters
    ----------
    name
        One model.
    size
        Side of the image in pixels; by default each model's own.
    classes
        Outputs of the head that is counted.
    json
        One JSON object on the last line of stdout.
    """
    from dataclasses import asdict
    from json import dumps

    from vitrail.cli.words import columns, one_line
    from vitrail.models import MODELS, configure, cost_of
    from vitrail.models.published import PUBLISHED

    changes = {"classes": classes} if size is None else {"classes": classes, "image_size": size}
    if name is not None:
        config, known = configure(name, **changes), PUBLISHED[name]
        facts = {**cost_of(config)._asdict(), **asdict(known), "architecture": config.architecture, **config.to_dict()}
        print(one_line(facts) if json else columns(facts.items()))
        return
    costs = {each: (configure(each, **changes), cost_of(configure(each, **changes))) for each in MODELS}
    if json:
        print(dumps({each: cost._asdict() for each, (_, cost) in costs.items()}))
        return
    rows = [
        (
            each,
            "x".join(map(str, config.image_size)),
            cost.tokens,
            f"{cost.parameters / 1e6:.1f}",
            f"{cost.multiply_adds / 1e9:.2f}",
            f"{cost.attention / cost.multiply_adds:.1%}",
            config.attention,
        )
        for each, (config, cost) in costs.items()
    ]
    print(columns(rows, ("model", "image", "tokens", "M parameters", "G multiply-adds", "attention", "grows as")))
