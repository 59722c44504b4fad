"""`vitrail models`: what is known of the models before one is trained. Their list needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from vitrail.errors import ConfigError
from vitrail.models.known import KNOWN, Cost, Published
from vitrail.rows import Records
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.models import Config
    from vitrail.weights.public import PublicWeights

CLASSES = 1000  # of the models in `KNOWN`
HEAD = ("model", "image", "tokens", "M parameters", "G multiply-adds", "attention", "grows as")


@dataclass(frozen=True)
class ModelFacts:
    """A model with some image size and number of classes, and what was published of it."""

    name: str
    image_size: tuple[int, int]
    classes: int = CLASSES

    @property
    def attention(self) -> str:
        """The complexity of attention in the number of patches N, such as "N^2"."""
        return KNOWN[self.name].attention

    @property
    def published(self) -> Published:
        return KNOWN[self.name].published

    @property
    def public(self) -> list[PublicWeights]:
        """Public weights on the Hugging Face hub, the default of ``create_model(..., pretrained=True)`` first."""
        from vitrail.weights.public import list_public

        return list(list_public(self.name).values())

    @cached_property
    def config(self) -> Config | None:
        """None for a size that the model cannot take."""
        from vitrail.models import configure

        try:
            return configure(self.name, classes=self.classes, image_size=self.image_size)
        except ConfigError:
            return None

    @cached_property
    def cost(self) -> Cost | None:
        """Counted on first access, which takes a second, unless `KNOWN` has it. None for a size that it cannot take."""
        known = KNOWN[self.name]
        if (self.image_size, self.classes) == (known.image_size, CLASSES):
            return known.cost
        if self.config is None:
            return None
        from vitrail.models import cost_of

        return cost_of(self.config)

    def row(self) -> dict[str, Any]:
        """Returns what every architecture has, as flat values for a table; the cost is None for a size that it cannot take."""
        cost = self.cost._asdict() if self.cost is not None else dict.fromkeys(Cost._fields)
        image_size = "x".join(map(str, self.image_size))
        return {"model": self.name, "image_size": image_size, **cost, **asdict(self.published)}

    def to_dict(self) -> dict[str, Any]:
        """Flat, for a table: the cost, the paper, and the fields of the config."""
        assert self.config is not None and self.cost is not None
        architecture = {"architecture": self.config.architecture, **self.config.to_dict()}
        return {
            **self.cost._asdict(),
            **asdict(self.published),
            "weights": [each.source for each in self.public],
            **architecture,
        }


@verb()
def list_models(
    name: Annotated[str | None, "One model."] = None,
    *,
    size: Annotated[int | None, "Image size in pixels; by default that of each model."] = None,
    classes: Annotated[int, "Number of classes of the counted head."] = CLASSES,
) -> Records[ModelFacts]:
    """Lists the models with their size and cost, or shows one with its paper and published accuracy.

    Raises:
        ConfigError: an unknown name, or a size that the one model cannot take.
    """
    if name is not None:
        from vitrail.models import configure

        config = configure(name, classes=classes, **({} if size is None else {"image_size": size}))
        return Records({name: ModelFacts(name, config.image_size, classes)})
    if classes != CLASSES:
        from vitrail.models import configure

        configure(next(iter(KNOWN)), classes=classes)  # which refuses an impossible number
    return Records(
        (model, ModelFacts(model, known.image_size if size is None else (size, size), classes))
        for model, known in KNOWN.items()
    )


def run(name: str | None = None, /, *, json: options.AsJson = False, **given: Any) -> None:
    from vitrail.verbs.printing import columns, one_line

    table = list_models(name, **given)
    if name is not None:
        facts = table[name].to_dict()
        if json:
            return print(one_line(facts))
        del facts["weights"]
        print(columns(facts.items()))
        if public := [(each.tag, each.source, each.terms) for each in table[name].public]:
            print("\n" + columns(public, ("public weights", "--init", "licence")))
    elif json:
        print(one_line({model: facts.cost._asdict() for model, facts in table.items() if facts.cost is not None}))
    else:
        width = max(map(len, table))
        for row in chain([HEAD], map(_to_row, table.values())):
            print("{:{}} {:>9} {:>7} {:>13} {:>16} {:>10}  {}".format(row[0], width, *row[1:]), flush=True)


def _to_row(facts: ModelFacts) -> tuple[str, ...]:
    name, image, cost = facts.name, "x".join(map(str, facts.image_size)), facts.cost
    if cost is None:
        return name, image, *4 * "-", facts.attention
    sums, share = f"{cost.multiply_adds / 1e9:.2f}", f"{cost.attention / cost.multiply_adds:.1%}"
    return name, image, str(cost.tokens), f"{cost.parameters / 1e6:.1f}", sums, share, facts.attention
