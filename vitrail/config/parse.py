"""Builds a tree of frozen dataclasses from YAML files, ``--set a.b=1`` and flags; errors name the nearest valid key.

Such a tree contains only plain Python values (numbers, strings, tuples, dictionaries and further dataclasses), so it goes to
YAML and back unchanged. Nothing here imports torch.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitrail.checksums import is_text_intact
from vitrail.errors import ConfigError, nearest
from vitrail.untrusted.files import open_regular
from vitrail.untrusted.limits import YAML_BYTES
from vitrail.untrusted.yaml_documents import YamlError, parse_yaml

Settings = TypeVar("Settings")
KEYS = {  # under which other tools and papers know our settings
    "num_layers": "model.changes.depth",
    "num_hidden_layers": "model.changes.depth",
    "hidden_size": "model.changes.width",
    "hidden_dim": "model.changes.width",
    "num_heads": "model.changes.heads",
    "num_attention_heads": "model.changes.heads",
    "mlp_dim": "model.changes.mlp_width",
    "patch_size": "model.changes.patch_size",
    "image_size": "model.size",
    "batch_size": "data.batch",
    "gradient_accumulation_steps": "data.micro_batch",
    "learning_rate": "optim.lr",
    "lr": "optim.lr",
    "rate": "optim.lr",
    "weight_decay": "optim.weight_decay",
    "warmup_steps": "schedule.warmup_steps",
    "total_steps": "schedule.steps",
    "max_steps": "schedule.steps",
    "num_epochs": "schedule.epochs",
    "epochs": "schedule.epochs",
    "tensorboard": "track.to",
    "report_to": "track.to",
}
MEANINGS = {
    "data.micro_batch": ", the images of one micro-step: data.batch divided by the number of micro-steps",
    "track.to": ", a list: track.to=[tensorboard]",
}


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a mapping from a YAML file. Raises `ConfigError`, with the line of a syntax error."""
    try:
        with open_regular(path, YAML_BYTES) as file:
            text = file.read().decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the settings file {str(path)!r} cannot be read: {error}", "check the path") from error
    try:
        tree = parse_yaml(text) or {}
    except YamlError as error:
        where = f", {error.where}" if error.where else ""
        raise ConfigError(f"{path}{where}: {error.problem}", "correct the YAML syntax") from error
    if not is_text_intact(text):
        raise ConfigError(
            f"{path} was changed or cut off after vitrail wrote it: it does not match the SHA-256 on its last line",
            "put the original file back; if the change is intended, remove the comments on its first and last line",
        )
    if not isinstance(tree, dict):
        what = f"{path} contains {type(tree).__name__}, not a mapping of settings"
        raise ConfigError(what, "write `key: value` lines")
    return tree


def read_stored(path: Path) -> dict[str, Any]:
    """Reads settings, which may be the ``config.yaml`` of a run: earlier ones have ``save.tensorboard`` for ``track.to``."""
    tree = read_yaml(path)
    save = tree.get("save")
    if isinstance(save, dict) and save.pop("tensorboard", False):
        tree.setdefault("track", {"to": ["tensorboard"]})
    return tree


def build(kind: type[Settings], tree: Mapping[str, Any], *, where: str = "") -> Settings:
    """Builds an instance of the dataclass ``kind`` from nested mappings.

    Raises `ConfigError` for an unknown key (with its name here if it is that of another tool, else the nearest ones), a value
    of the wrong type, or whatever the dataclass itself refuses.
    """
    hints = typing.get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in tree:
        if key not in known:
            remedy = explain_key(str(key)) or nearest(str(key), known)
            raise ConfigError(f"unknown setting {where + str(key)!r}", remedy)
    values = {key: convert(value, hints[key], where + key) for key, value in tree.items()}
    try:
        return kind(**values)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where.rstrip('.') or kind.__name__}: {error}", "see `vitrail train --help`") from error


def convert(value: Any, hint: Any, where: str) -> Any:
    """Converts ``value`` to the type ``hint``: strings to numbers (YAML reads ``1e-3`` as a string), lists to tuples."""
    if hint is Any:
        return value
    if is_dataclass(hint):
        if is_dataclass(value):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {value!r}, not a group of settings", f"write `{where}.KEY=VALUE`")
        return build(typing.cast(type, hint), value, where=where + ".")
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, inner, where)
    if origin is typing.Literal:
        if value in inner:
            return value
        raise ConfigError(f"{where} is {value!r}", nearest(str(value), [str(option) for option in inner]))
    if origin is tuple and isinstance(value, (list, tuple)):
        parts = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(parts) == len(value):
            return tuple(convert(option, part, where) for option, part in zip(value, parts))
    elif origin is dict and isinstance(value, Mapping):
        return dict(value)
    elif isinstance(hint, type) and (scalar := _scalar(value, hint)) is not None:
        return scalar
    raise ConfigError(f"{where} is {value!r}", f"give {_describe(hint, value)}")


def _convert_union(value: Any, options: tuple[Any, ...], where: str) -> Any:
    """``value`` as the first option that takes it; among dataclasses with a literal ``kind``, the one that the value names."""
    if value is None and type(None) in options:
        return None
    classes = [option for option in options if is_dataclass(option)]
    # the values of the field ``kind`` by which a dataclass is told from others
    kinds = {kind: option for option in classes for kind in typing.get_args(typing.get_type_hints(option).get("kind"))}
    if len(classes) > 1 and kinds and isinstance(value, Mapping):
        if value.get("kind") not in kinds:
            raise ConfigError(f"{where}.kind is {value.get('kind')!r}", nearest(str(value.get("kind")), list(kinds)))
        return convert(value, kinds[value["kind"]], where)
    failures = []
    # numbers before strings: "--set optim.clip=1" must not become the string "1" where both are allowed
    for option in sorted((kind for kind in options if kind is not type(None)), key=lambda kind: kind is str):
        try:
            return convert(value, option, where)
        except ConfigError as error:
            failures.append(error)
    raise failures[0]


def _scalar(value: Any, hint: type) -> Any:
    """``value`` as bool, int, float or str; None if it cannot be converted."""
    if hint is bool:
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        return value if isinstance(value, bool) else words.get(str(value).lower())
    if isinstance(value, bool):
        return None
    if hint in (int, float) and isinstance(value, (int, float, str)):
        try:
            number = float(value)
        except ValueError:
            return None
        return number if hint is float else int(number) if number.is_integer() else None
    return str(value) if hint is str and isinstance(value, (str, int, float)) else None


def _describe(hint: Any, value: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
    if hint in names:
        return names[hint]
    if Ellipsis in typing.get_args(hint):
        return f"a list: [{value}]"
    return f"a list of {len(typing.get_args(hint))}" if typing.get_origin(hint) is tuple else "another kind of value"


def plain(value: Any) -> Any:
    """Returns the tree as dictionaries, lists and scalars, ready for YAML or JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def overlay(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of ``base`` updated with the values of ``change``, recursively."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = overlay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def assignment(text: str) -> dict[str, Any]:
    """Returns the nested mapping that ``a.b=1`` stands for; the value is read as YAML."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise ConfigError(f"{text!r} is not an assignment", "write --set group.key=value, e.g. --set optim.lr=3e-4")
    try:
        tree: Any = parse_yaml(value)
    except YamlError as error:
        raise ConfigError(f"the value of --set {text!r} is not YAML", "quote it") from error
    for key in reversed(path.strip().split(".")):
        tree = {key: tree}
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of a tree by their dotted path; a list is one leaf."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[prefix + key] = value
    return leaves


def explain_key(name: str) -> str | None:
    """Returns the remedy for a setting under another name, such as "it is called 'optim.lr' here"; None for an unknown name."""
    key = KEYS.get(name)
    return f"it is called {key!r} here{MEANINGS.get(key, '')}" if key else None
