"""`vitrail models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from vitrail.models import Cost


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

    from vitrail.cli.output import columns, one_line
    from vitrail.models import MODELS, configure, cost_of
    from vitrail.models.published import PUBLISHED

    changes = {"classes": classes} if size is None else {"classes": classes, "image_size": size}
    if name is not None:
        config, known = configure(name, **changes), PUBLISHED[name]
        facts = {**cost_of(config)._asdict(), **asdict(known), "architecture": config.architecture, **config.to_dict()}
        print(one_line(facts) if json else columns(facts.items()))
        return
    found = ((each, _cost(each, changes)) for each in MODELS)
    if json:
        print(dumps({each: cost._asdict() for each, cost in found if cost is not None}))
        return
    row = f"{{:{max(map(len, MODELS))}}} {{:>9}} {{:>7}} {{:>13}} {{:>16}} {{:>10}}  {{}}".format
    print(row("model", "image", "tokens", "M parameters", "G multiply-adds", "attention", "grows as"))
    for each, cost in found:
        grows, image = (
            MODELS[each].attention,
            "x".join(map(str, MODELS[each].image_size if size is None else (size, size))),
        )
        if cost is None:
            print(row(each, image, *4 * "-", grows))
            continue
        sums, share = f"{cost.multiply_adds / 1e9:.2f}", f"{cost.attention / cost.multiply_adds:.1%}"
        print(row(each, image, cost.tokens, f"{cost.parameters / 1e6:.1f}", sums, share, grows), flush=True)


def _cost(name: str, changes: dict[str, int]) -> Cost | None:
    """None for a size that the model cannot take."""
    from vitrail.errors import ConfigError
    from vitrail.models import configure, cost_of

    try:
        return cost_of(configure(name, **changes))
    except ConfigError:
        if "image_size" not in changes:
            raise
        return None
