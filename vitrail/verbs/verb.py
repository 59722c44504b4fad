"""A verb is a function whose parameters are its options: `verb()` checks each call, and `document` describes each parameter.

A parameter is written once, as ``steps: Annotated[int | None, "Number of updates."] = None``: its name, type, meaning and
default. Parameters of several verbs are keys of a `TypedDict`, ``**reading: Unpack[Reading]``; their default, where it is not
None, stands after the meaning. `vitrail.cli` makes the command from the same parameters.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike
from typing import Annotated, Any, Literal, TypeVar, cast

from vitrail.config.parse import KEYS, explain_key
from vitrail.config.schema import list_fields
from vitrail.errors import ConfigError, nearest

Function = TypeVar("Function", bound=Callable[..., Any])
SCALARS: dict[Any, tuple[type, str]] = {  # the values that are accepted, and their name in a message
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a string"),
}


@dataclass(frozen=True)
class Sets:
    """The meaning of an option that sets the setting ``key`` of a run: that of the setting, and how the option writes it."""

    key: str
    written: str = ""

    def __str__(self) -> str:
        meaning = list_fields()[self.key].meaning
        return f"{meaning[0].upper()}{meaning[1:]}{self.written and '; '}{self.written}."


@dataclass(frozen=True)
class Python:
    """The meaning of a parameter that the command line does not have."""

    meaning: str

    def __str__(self) -> str:
        return self.meaning


@dataclass(frozen=True)
class Option:
    """A parameter of a verb; ``meaning`` is a string, `Sets` or `Python`, and empty for a parameter without annotation.

    ``main`` options are shown first, and alone in a short form.
    """

    type: Any
    meaning: str | Sets | Python
    parameter: inspect.Parameter
    main: bool = False


@functools.cache
def options_of(function: Callable[..., Any]) -> Mapping[str, Option]:
    """Returns the parameters of a function by name, each key of an unpacked `TypedDict` as one of them: the arguments, the main
    options of a verb, the others, and those that only Python has.
    """
    function = inspect.unwrap(function)
    main: Sequence[str] = getattr(function, "main", ())
    options: dict[str, Option] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = eval(parameter.annotation, function.__globals__)
        if typing.get_origin(hint) is typing.Unpack:
            options |= _options_of_keys(typing.get_args(hint)[0])
        elif typing.get_origin(hint) is Annotated:
            options[parameter.name] = Option(hint.__origin__, hint.__metadata__[0], parameter)
        else:
            options[parameter.name] = Option(hint, "", parameter)
    for name in main:
        options[name] = replace(options[name], main=True)

    def place(item: tuple[str, Option]) -> tuple[bool, int]:
        name, option = item
        if option.parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            return False, -1
        return isinstance(option.meaning, Python), main.index(name) if option.main else len(main)

    return dict(sorted(options.items(), key=place))


@functools.cache
def _options_of_keys(keys: type) -> dict[str, Option]:
    options = {}
    for name, hint in typing.get_type_hints(keys, include_extras=True).items():
        meaning, default = (*hint.__metadata__, None)[:2]
        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        options[name] = Option(hint.__origin__, meaning, parameter)
    return options


def verb(*main: str) -> Callable[[Function], Function]:
    """A decorator of a verb with these ``main`` options, the ones that most calls need.

    Each call raises `ConfigError` for an unknown option, a value of another type, or an option that must be given.
    """
    return functools.partial(_check_calls, main)


def _check_calls(main: tuple[str, ...], function: Function) -> Function:
    function.main = main  # type: ignore[missing-attribute]

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        options = options_of(function)
        for name, value in given.items():
            if name not in options:
                key, own = find_setting(name, options)
                written = f"it is called {own!r} here" if own else f"{explain_key(name)}: set=['{key}=VALUE']"
                raise ConfigError(f"there is no option {name!r}", written if key else nearest(name, list(options)))
            if not isinstance(options[name].meaning, Python) and not fits(value, options[name].type):
                raise ConfigError(f"{name} is {value!r}", _remedy(value, options[name].type))
        values = given.copy()
        for name, option in options.items():
            if option.parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in given:
                if option.parameter.default is inspect.Parameter.empty:
                    raise ConfigError(f"the option {name!r} is not given", str(option.meaning))
                values[name] = option.parameter.default
        return function(*args, **values)

    return cast(Function, call)


@functools.cache
def document(verb: Callable[..., Any]) -> None:
    """Adds ``Args`` to the docstring of a verb, and its options to its signature, which takes longer than importing it."""
    options = options_of(verb)
    head, *sections = re.split(r"\n\n(?=(?:Returns|Raises):)", inspect.getdoc(verb) or "", maxsplit=1)
    arguments = [f"    {name}: {option.meaning}" for name, option in options.items()]
    verb.__doc__ = "\n\n".join([head, "\n".join(["Args:", *arguments]), *sections])
    # types that are only named, to import no torch, are shown by their names
    kinds = [getattr(option.type, "__forward_arg__", option.type) for option in options.values()]
    shown = [option.parameter.replace(annotation=kind) for option, kind in zip(options.values(), kinds)]
    returns = verb.__annotations__.get("return")
    verb.__annotations__ = {**{each.name: each.annotation for each in shown}, "return": returns}  # Sphinx reads these
    verb.__signature__ = inspect.signature(inspect.unwrap(verb)).replace(parameters=shown)  # type: ignore[attr-defined]


def summary_of(function: Callable[..., Any]) -> str:
    """Returns the docstring of a verb without its sections."""
    return re.split(r"\n\n(?=(?:Args|Returns|Raises):)", inspect.getdoc(function) or "", maxsplit=1)[0]


def fits(value: Any, kind: Any) -> bool:
    """Returns whether ``value`` is of the type ``kind``; types that are only named, to import no torch, are not checked."""
    if kind is Any or isinstance(kind, typing.ForwardRef) or (value is None and kind is type(None)):
        return True
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner
    if origin is Sequence:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(fits(item, inner[0]) for item in value)
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping)
    if kind in SCALARS:
        return isinstance(value, SCALARS[kind][0]) and (kind is bool or not isinstance(value, bool))
    return isinstance(value, PathLike)


def find_setting(name: str, options: Mapping[str, Option]) -> tuple[str, str]:
    """Returns the key of the setting that other tools call ``name``, and the option that sets it; each "" if there is none."""
    key = KEYS.get(name, "") if "set" in options else ""
    sets = (own for own, option in options.items() if isinstance(option.meaning, Sets) and option.meaning.key == key)
    return key, next(sets, "")


def _remedy(value: Any, kind: Any) -> str:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    choices = [str(choice) for each in kinds if typing.get_origin(each) is Literal for choice in each.__args__]
    if choices:
        return nearest(str(value), choices)
    return "give " + " or ".join(_describe(each) for each in kinds if each is not type(None))


def _describe(kind: Any) -> str:
    if kind in SCALARS:
        return SCALARS[kind][1]
    if typing.get_origin(kind) is Sequence:
        return f"a list, each {_describe(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is collections.abc.Mapping:
        return "a dict"
    return "a path"
