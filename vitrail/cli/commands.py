"""From a verb and the function that prints its results to a command of cyclopts."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from vitrail.verbs.verb import Option, Python, options_of, summary_of

ARGUMENTS, MAIN, OTHERS = (  # of the help of a command, in this order
    Group(name, sort_key=place) for place, name in enumerate(("Arguments", "Main options", "Options"))
)
POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def to_command(verb: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Gives ``run`` the options of ``verb`` that it does not name itself, and the verb's docstring.

    ``run`` is called with the options that were given.
    """
    shared, own = options_of(verb), options_of(run)
    arguments, printing = [], []
    for name, option in own.items():
        if option.parameter.kind in POSITIONAL:
            arguments.append(_to_parameter(option, option.meaning or shared[name].meaning))
        elif option.parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            printing.append(_to_parameter(option, option.meaning))
    options = [
        _to_parameter(option, option.meaning, is_option=True)
        for name, option in shared.items()
        if name not in own and not isinstance(option.meaning, Python)
    ]
    parameters = [*arguments, *options, *printing]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = summary_of(verb)
    return run


def _to_parameter(option: Option, meaning: Any, *, is_option: bool = False) -> inspect.Parameter:
    parameter, kind = option.parameter, _to_shell(option.type)
    shown, only_python, _ = str(meaning).partition("; in Python also")
    # a switch has no --no-... but where it is on, and a list no --empty-...
    group: dict[str, Any] = {"group": MAIN} if option.main and is_option else {}
    help = Parameter(help=shown + "." * bool(only_python), negative=None if parameter.default is True else "", **group)
    hint = Annotated[kind | None if parameter.default is None else kind, help]  # type: ignore[operator]
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY if is_option else parameter.kind, annotation=hint)


def _to_shell(kind: Any) -> Any:
    """Returns the type of an option on the command line, where a program may give more kinds of values."""
    if kind is Any or isinstance(kind, typing.ForwardRef):
        return str
    kinds = [kind]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [each for each in typing.get_args(kind) if each is not type(None)]
    if kinds[0] in (Path, bool):
        return kinds[0]
    if str in kinds:
        return str
    return list[str] if typing.get_origin(kinds[0]) is Sequence else kinds[0]
