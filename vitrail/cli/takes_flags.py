"""Commands whose flags are the options of `vitrail.config.flags_inference`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from vitrail.config.flags_inference import Flag
from vitrail.config.keywords import flags_of

Command = TypeVar("Command", bound=Callable[..., Any])


def takes_flags(*tables: type, required: Sequence[str] = ()) -> Callable[[Command], Command]:
    """A command that has the options of ``tables`` as flags, beside the parameters of its own.

    The command is called with the flags that were given. ``required`` are flags that are optional in Python only.
    """
    flags = flags_of(*tables)

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        added = [_parameter(name, flag, name in required) for name, flag in flags.items() if not flag.alias]
        by_name = [parameter for parameter in own if parameter.kind is parameter.KEYWORD_ONLY]
        positional = [parameter for parameter in own if parameter.kind is not parameter.KEYWORD_ONLY]
        command.__signature__ = signature.replace(parameters=[*positional, *added, *by_name])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(name: str, flag: Flag, required: bool) -> inspect.Parameter:
    default = inspect.Parameter.empty if required or flag.default is ... else flag.default
    # a switch has no --no-... but where it is on, and a list no --empty-...
    help = Parameter(help=flag.help, negative=None if default is True else "")
    kind = flag.word or flag.type
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, help],
    )
