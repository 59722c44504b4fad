"""`vitrail models`: what is known of the models before one is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from vitrail import models
from vitrail.errors import ConfigError
from vitrail.models import Config, Cost, configure, cost_of
from vitrail.models.costs import COSTS
from vitrail.models.published import PUBLISHED, Published


@dataclass(frozen=True)
class ModelFacts:
    """A model at some size: its config, None for a size that it cannot take, and what was published."""

    name: str
    image_size: tuple[int, int]
    attention: str
    published: Published
    config: Config | None = None

    @cached_property
    def cost(self) -> Cost | None:
        """Counted on first access, which takes a second, unless `COSTS` has it."""
        if self.config is None:
            return None
        if self.config == configure(self.name, classes=1000):
            return COSTS[self.name]
        return cost_of(self.config)

    def to_dict(self) -> dict[str, Any]:
        """Flat, for a table: the cost, the paper, and the fields of the config."""
        assert self.config is not None and self.cost is not None
        architecture = {"architecture": self.config.architecture, **self.config.to_dict()}
        return {**self.cost._asdict(), **asdict(self.published), **architecture}


def list_models(name: str | None = None, *, size: int | None = None, classes: int = 1000) -> dict[str, ModelFacts]:
    """The facts of one model, or of all. Raises `ConfigError` for an unknown name, or a size that the one cannot take."""
    if name is not None:
        return {name: _describe(name, size, classes)}
    facts = {}
    for model, config in models.MODELS.items():
        try:
            facts[model] = _describe(model, size, classes)
        except ConfigError:
            if size is None:
                raise
            facts[model] = ModelFacts(model, (size, size), config.attention, PUBLISHED[model])
    return facts


def _describe(name: str, size: int | None, classes: int) -> ModelFacts:
    config = configure(name, classes=classes, **({} if size is None else {"image_size": size}))
    return ModelFacts(name, config.image_size, config.attention, PUBLISHED[name], config)
