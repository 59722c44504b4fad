"""`vitrail models`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Unpack

from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import ModelsFlags

if TYPE_CHECKING:
    from vitrail.workflows.models import ModelFacts

HEAD = ("model", "image", "tokens", "M parameters", "G multiply-adds", "attention", "grows as")


@takes_flags(ModelsFlags)
def models(name: str | None = None, /, *, json: AsJson = False, **flags: Unpack[ModelsFlags]) -> None:
    """List the models with their size and cost, or show one with its paper and published accuracy.

    Parameters
    ----------
    name
        One model.
    """
    from json import dumps

    from vitrail.cli.output import columns, one_line
    from vitrail.workflows.api import list_models

    table = list_models(name, **flags)
    if name is not None:
        facts = table[name].to_dict()
        if json:
            return print(one_line(facts))
        del facts["weights"]
        print(columns(facts.items()))
        if public := [(each.tag, each.source, each.licence) for each in table[name].public]:
            print("\n" + columns(public, ("public weights", "--init", "licence")))
    elif json:
        print(dumps({model: facts.cost._asdict() for model, facts in table.items() if facts.cost is not None}))
    else:
        for row in chain([HEAD], map(_row, table.values())):
            print(
                "{:{}} {:>9} {:>7} {:>13} {:>16} {:>10}  {}".format(row[0], max(map(len, table)), *row[1:]), flush=True
            )


def _row(facts: ModelFacts) -> tuple[str, ...]:
    name, image, cost = facts.name, "x".join(map(str, facts.image_size)), facts.cost
    if cost is None:
        return name, image, *4 * "-", facts.attention
    sums, share = f"{cost.multiply_adds / 1e9:.2f}", f"{cost.attention / cost.multiply_adds:.1%}"
    return name, image, str(cost.tokens), f"{cost.parameters / 1e6:.1f}", sums, share, facts.attention
