"""Every setting of a run, with its type, its value in a recipe and its meaning: what ``--set`` and a YAML file can change."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from vitrail.config.flags_training import PretrainFlags, TrainFlags
from vitrail.config.keywords import flags_of
from vitrail.config.parse import plain
from vitrail.config.recipes import find_recipe
from vitrail.config.schema import list_fields
from vitrail.errors import ConfigError, nearest
from vitrail.rows import Records

MEANINGS = {key: field.meaning for key, field in list_fields().items()}


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
        return {**asdict(self), "value": json.dumps(self.value, ensure_ascii=False)}


def list_settings(name: str | None = None, *, recipe: str = "small-data") -> Records[Setting]:
    """Returns the settings whose key is ``name`` or starts with it, by key; all without a name.

    Raises `ConfigError` for an unknown name or recipe.
    """
    tables = (*flags_of(TrainFlags).items(), *flags_of(PretrainFlags).items())
    flags = {flag.setting: f"--{option.replace('_', '-')}" for option, flag in tables if flag.setting}
    found = Records(
        (key, Setting(key, kind, value, MEANINGS[key], flags.get(key, "")))
        for key, kind, value in _walk(find_recipe(recipe).run)
        if name is None or key == name or key.startswith(f"{name}.")
    )
    if not found:
        assert name is not None
        groups = {key.partition(".")[0] for key in MEANINGS}
        raise ConfigError(f"there is no setting {name!r}", nearest(name, [*sorted(groups), *MEANINGS]))
    return found


def _walk(settings: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """The key, type and value of every field that is not itself a group of settings."""
    hints = typing.get_type_hints(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from _walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, _describe_type(hints[field.name]), plain(value)


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
