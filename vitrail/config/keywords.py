"""Functions that take the options of `flags_inference` as keywords: their signature, docstring, checks and defaults."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal, TypeVar, cast

from vitrail.config.flags_inference import Flag
from vitrail.config.foreign_keys import KEYS, explain_key
from vitrail.errors import ConfigError, nearest

Function = TypeVar("Function", bound=Callable[..., Any])
KINDS: dict[Any, tuple[type, str]] = {  # of scalars: what is taken for one, and its name in a message
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a string"),
}


def flags_of(*tables: type) -> dict[str, Flag]:
    """Returns the options of several tables by name."""
    return {name: flag for table in tables for name, flag in _read(table).items()}


@functools.cache
def _read(table: type) -> dict[str, Flag]:
    hints = typing.get_type_hints(table, include_extras=True)
    return {name: replace(hint.__metadata__[0], type=hint.__origin__) for name, hint in hints.items()}


def takes(*tables: type) -> Callable[[Function], Function]:
    """Returns a function whose keywords are the options of ``tables``: each call checks them and fills in the defaults.

    The signature names them all, and the docstring ends with their help texts. An unknown option, or a value of another type,
    is a `ConfigError`.
    """
    flags = flags_of(*tables)

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        named = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        names = [parameter.name for parameter in named]

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            checked = check_keywords(flags, options, names)
            missing = {
                name: flag.default for name, flag in flags.items() if not flag.alias and name not in {*checked, *names}
            }
            if absent := [name for name, default in missing.items() if default is ...]:
                raise ConfigError(f"the option {absent[0]!r} is not given", flags[absent[0]].help)
            return function(*args, **missing, **checked)

        added = [_parameter(name, flag) for name, flag in flags.items() if not flag.alias and name not in names]
        # keyword-only parameters without a default may follow those with one
        call.__signature__ = signature.replace(parameters=[*named, *added])  # type: ignore[attr-defined]
        call.__doc__ = _document(function, flags)
        return cast(Function, call)

    return decorate


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    default = inspect.Parameter.empty if flag.default is ... else flag.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=flag.type)


def _document(function: Callable[..., Any], flags: Mapping[str, Flag]) -> str:
    lines = [f"    {name}: {flag.help}" for name, flag in flags.items() if not flag.alias]
    return "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])


def check_keywords(flags: Mapping[str, Flag], options: Mapping[str, Any], others: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the options that are given, by their names. Raises `ConfigError` for an unknown one, or a value of another type."""
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name not in flags and name not in others:
            known = [*others, *(known for known, flag in flags.items() if not flag.alias)]
            raise ConfigError(f"there is no option {name!r}", _explain_setting(name, flags) or nearest(name, known))
        flag = flags.get(name)
        if flag is not None and not fits(value, flag.type):
            raise ConfigError(f"{name} is {value!r}", _remedy(value, flag.type))
        if (name := flag.alias or name if flag else name) in checked:
            raise ConfigError(f"the option {name!r} is given twice, once under its alias", "give it once")
        checked[name] = value
    return checked


def _explain_setting(name: str, flags: Mapping[str, Flag]) -> str | None:
    """How to give a setting that other tools call ``name`` to a function that trains."""
    if "set" not in flags or name not in KEYS:
        return None
    given = next((option for option, flag in flags.items() if flag.setting == KEYS[name]), None)
    return f"it is called {given!r} here" if given else f"{explain_key(name)}: set=['{KEYS[name]}=VALUE']"


def fits(value: Any, kind: Any) -> bool:
    """Returns whether ``value`` is of a type as `vitrail.config.flags_inference` writes it."""
    if kind is Any or (value is None and kind is type(None)):
        return True
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner
    if origin is Sequence:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(fits(part, inner[0]) for part in value)
    if kind in KINDS:
        return isinstance(value, KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))
    return isinstance(value, PathLike)


def _remedy(value: Any, kind: Any) -> str:
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    choices = [str(choice) for option in options if typing.get_origin(option) is Literal for choice in option.__args__]
    if choices:
        return nearest(str(value), choices)
    return "give " + " or ".join(_describe(option) for option in options if option is not type(None))


def _describe(kind: Any) -> str:
    if kind in KINDS:
        return KINDS[kind][1]
    if typing.get_origin(kind) is Sequence:
        return f"a list, each {_describe(typing.get_args(kind)[0])}"
    return "a path"
