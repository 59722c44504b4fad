"""Every setting of a run, with its type, its value in a recipe and its meaning: what ``--set`` and a YAML file can change."""

from __future__ import annotations

import types
import typing
from dataclasses import asdict, dataclass
from json import dumps
from operator import attrgetter
from typing import Annotated, Any

from vitrail.config.parse import plain
from vitrail.config.schema import list_fields
from vitrail.errors import ConfigError, nearest
from vitrail.rows import Records
from vitrail.verbs import options
from vitrail.verbs.pretrain import pretrain
from vitrail.verbs.train import train
from vitrail.verbs.verb import Sets, options_of, verb


@dataclass(frozen=True)
class Setting:
    """One setting: its dotted key, type, value in the recipe, meaning, and the flag that sets it, if there is one."""

    key: str
    type: str
    value: Any
    meaning: str
    flag: str = ""

    def row(self) -> dict[str, Any]:
        """As flat values for a table; the value as JSON, since a column has one type."""
        return {**asdict(self), "value": dumps(self.value, ensure_ascii=False)}


@verb()
def list_settings(
    name: Annotated[str | None, "One setting, such as optim.lr, or one group, such as augment."] = None,
    *,
    recipe: Annotated[str, "The recipe whose values are shown."] = "small-data",
) -> Records[Setting]:
    """Lists the settings of a training run: key, type, value in a recipe, flag and meaning.

    Each can be changed by `--set KEY=VALUE` or in a YAML file for `--config`.

    Raises:
        ConfigError: an unknown name or recipe.
    """
    from vitrail.config.recipes import find_recipe

    flags = {
        option.meaning.key: f"--{argument.replace('_', '-')}"
        for argument, option in [*options_of(train).items(), *options_of(pretrain).items()]
        if isinstance(option.meaning, Sets)
    }
    run = find_recipe(recipe).run
    found = Records(
        (key, Setting(key, _describe_type(field.type), plain(attrgetter(key)(run)), field.meaning, flags.get(key, "")))
        for key, field in list_fields().items()
        if name is None or key == name or key.startswith(f"{name}.")
    )
    if not found:
        assert name is not None
        groups = {key.partition(".")[0] for key in list_fields()}
        raise ConfigError(f"there is no setting {name!r}", nearest(name, [*sorted(groups), *list_fields()]))
    return found


def run(name: str | None = None, /, *, json: options.AsJson = False, **given: Any) -> None:
    from vitrail.verbs.printing import one_line

    found = list_settings(name, **given)
    if json:
        print(one_line({key: asdict(setting) for key, setting in found.items()}))
        return
    for setting in found.values():
        value = dumps(setting.value, ensure_ascii=False)
        print(
            f"{setting.key}: {value}{f'  ({setting.flag})' if setting.flag else ''}\n    {setting.meaning} [{setting.type}]"
        )


def _describe_type(hint: Any) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " | ".join("null" if part is type(None) else _describe_type(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        parts = [part for part in typing.get_args(hint) if part is not Ellipsis]
        return f"[{', '.join(map(_describe_type, parts))}{', ...' if len(parts) == 1 else ''}]"
    if typing.get_origin(hint) is dict:
        return "{key: value}"
    return {str: "text", bool: "true | false"}.get(hint, hint.__name__)
