"""How the tables of options are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Flag:
    """One option.

    Args:
        help: what it means, for ``--help`` and the docstring.
        default: what holds where it is not given; ``...`` where it must be given.
        setting: the setting of a `Run` that it stands for, as ``optim.lr``.
        word: its type on the command line, where a program may give more kinds of values.
        alias: the option that this is another name of; the command line does not have it.
        type: its type for a program; `keywords.flags_of` fills it in.
    """

    help: str
    default: Any = None
    setting: str = ""
    word: Any = None
    alias: str = ""
    type: Any = None


Quiet = Annotated[bool, Flag("No progress.", False)]
