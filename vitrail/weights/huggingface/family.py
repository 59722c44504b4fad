"""What is known of one model type of transformers, and tables of names that are used both ways.

The names are those of files, which `save_pretrained` writes and the hub holds; in memory transformers has others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config
from vitrail.weights.qkv import QKV, join_parts, split_parts
from vitrail.weights.tensors import printable

# transformers' hidden_act -> ours
GELUS = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_accurate": "tanh",
}

State = dict[str, Tensor]
Names = Mapping[str, str]  # our name of a parameter, or of a module with weight and bias, to theirs; {} is a number


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model type of transformers in our terms.

    Args:
        body: what their names begin with where there is a head, which stands outside of the body.
        names, heads: our names to theirs, without ``body``.
        also: what stands elsewhere in some classes of theirs, outside of the body: their names to ours.
        unused, unused_heads: modules and parameters of theirs that have no place here, inside of the body and outside.
        parts: projections that are one of ours and several of theirs.
        defaults: the fields of config.json that are read, as transformers has them where they are not stated.
        processor: their image processor, see `processor.PROCESSORS`.
        read: the fields and the tensors by our names to our config. Raises `CheckpointError`, or whatever a value that
            cannot be meant raises.
        write: the inverse: the class that has such a model, the fields, and notes on what is otherwise there. Raises
            `CheckpointError` for what they cannot express.
        express, express_state: say a model of ours in those of our terms that they have too, where the answers stay the same,
            with notes on what does not.
        restore_state: the tensors as they were before `express_state`, for the config as it was.
    """

    model_type: str
    body: str
    names: Names
    heads: Names
    also: Names = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    unused_heads: tuple[str, ...] = ()
    parts: Sequence[str] = QKV
    defaults: Mapping[str, Any]
    processor: str
    read: Callable[[Mapping[str, Any], State], Config]
    write: Callable[[Any], tuple[str, dict[str, Any], list[str]]]
    express: Callable[[Any], tuple[Config, list[str]]] = lambda config: (config, [])
    express_state: Callable[[Any, State], State] = lambda config, state: state
    restore_state: Callable[[Any, State], State] = lambda config, state: state

    def to_own_names(self, tensors: State) -> tuple[State, tuple[str, ...]]:
        """Their tensors by our names, and the names of those without a place; what is not known keeps its name."""
        has_body = any(name.startswith(f"{self.body}.") for name in tensors)
        inside = f"{self.body}." if has_body else ""
        idle = (*(inside + name for name in self.unused), *self.unused_heads)
        patterns = [re.compile(_pattern(module) + r"(\..*)?") for module in idle]
        unused = tuple(name for name in sorted(tensors) if any(pattern.fullmatch(name) for pattern in patterns))
        table = {theirs: ours for ours, theirs in self.table(has_body).items()} | dict(self.also)
        without = set(unused)
        renamed = rename({name: tensor for name, tensor in tensors.items() if name not in without}, table)
        return join_parts(renamed, self.parts), unused

    def to_transformers_names(self, state: State, *, has_body: bool) -> State:
        """The inverse of `to_own_names`."""
        return rename(split_parts(state, self.parts), self.table(has_body))

    def set_size(self, config: Config, preprocessing: Preprocessing) -> Config:
        """At the size of the preprocessing, where config.json states none."""
        return config if "image_size" in self.defaults else replace(config, image_size=preprocessing.size)

    def table(self, has_body: bool) -> dict[str, str]:
        inside = f"{self.body}." if has_body else ""
        return {**{ours: inside + theirs for ours, theirs in self.names.items()}, **self.heads}


def rename(tensors: State, names: Names) -> State:
    """The tensors by other names; those that the table does not know, or whose new name is taken, keep theirs."""
    patterns = [(re.compile(_pattern(old) + r"(\.weight|\.bias)?"), new) for old, new in names.items()]
    renamed: State = {}
    for name, tensor in tensors.items():
        hit = next(((match, new) for old, new in patterns if (match := old.fullmatch(name))), None)
        other = name
        if hit is not None:
            *numbers, kind = hit[0].groups()
            other = hit[1].format(*numbers) + (kind or "")
        renamed[name if other in renamed else other] = tensor
    return renamed


def _pattern(name: str) -> str:
    return re.escape(name).replace(r"\{\}", r"(\d+)")


def check_expressible(model_type: str, wrong: Mapping[str, bool], remedy: str = "keep it in vitrail's format") -> None:
    """Raises `CheckpointError` for the first part of a model that is there and has no counterpart in transformers."""
    for part, there in wrong.items():
        if there:
            raise CheckpointError(f"transformers' {model_type!r} has no counterpart of {part}", remedy)


def count_outputs(state: State) -> int:
    """Rows of the head, by our names; 0 without one."""
    head = state.get("head.weight", state.get("head.cls.weight"))
    return len(head) if head is not None and head.ndim else 0


def gelu_of(act: Any) -> str:
    """Our word for ``hidden_act``. Raises `CheckpointError` for what is no GELU."""
    if not isinstance(act, str) or act not in GELUS:
        raise CheckpointError(f"it has hidden_act {printable(repr(act))}", f"{', '.join(GELUS)} are known here")
    return GELUS[act]


def act_of(gelu: str) -> str:
    """The inverse of `gelu_of`."""
    return next(act for act, ours in GELUS.items() if ours == gelu)


def side_or_pair(size: tuple[int, int]) -> int | list[int]:
    """A size as config.json has it: one number where it is square."""
    return size[0] if size[0] == size[1] else list(size)
