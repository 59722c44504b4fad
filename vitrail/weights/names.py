"""Tables of names: the tensors of one layout by the names of another, in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

State = dict[str, Tensor]
# The name of a tensor, of a module with weight and bias, or, with a dot at its end, what names begin with, in one layout -> the
# same in another. {} is a number. Where one of them counts from 0 and the other from 1, the second has {1}, or {01} with two
# digits.
Names = Mapping[str, str]
T = TypeVar("T")

_NUMBER = re.compile(r"\{0?1?\}")


def rename(tensors: Mapping[str, T], names: Names) -> dict[str, T]:
    """Renames tensors by a table, of which the most specific row that fits counts. Other names are kept."""
    order = sorted(names, key=lambda name: len(_NUMBER.sub("", name)), reverse=True)
    rows = [_Row(old, names[old]) for old in order]
    return rename_with(tensors, lambda name: next((new for row in rows if (new := row.apply(name))), name))


def rename_with(tensors: Mapping[str, T], new_name: Callable[[str], str]) -> dict[str, T]:
    """Renames tensors. A name whose new one is taken is kept, and is then listed as unexpected."""
    renamed: dict[str, T] = {}
    for name, tensor in tensors.items():
        other = new_name(name)
        renamed[name if other in renamed else other] = tensor
    return renamed


def nest(ours: str, theirs: str, names: Names) -> dict[str, str]:
    """Returns a table for what is inside of modules: all names of vitrail begin with ``ours``, the others with ``theirs``."""
    return {f"{ours}{inner}": f"{theirs}{name}" for inner, name in names.items()}


def invert(names: Names) -> dict[str, str]:
    """Returns the table of the other direction."""
    return {new: old for old, new in names.items()}


def pattern_of(name: str) -> re.Pattern[str]:
    """Returns the pattern of the names that a row of a table is for. Its last group is what follows the row's name."""
    following = "(.*)" if name.endswith(".") else r"(\.weight|\.bias)?"
    return re.compile(r"([0-9]{1,9})".join(map(re.escape, _NUMBER.split(name))) + following, re.DOTALL)


class _Row:
    def __init__(self, old: str, new: str) -> None:
        firsts = [[number != "{}" for number in _NUMBER.findall(name)] for name in (old, new)]  # counted from 0 or 1
        self.pattern, self.shifts = pattern_of(old), [after - before for before, after in zip(*firsts)]
        self.form = _NUMBER.sub(lambda number: "{:02d}" if number[0] == "{01}" else "{:d}", new)

    def apply(self, name: str) -> str | None:
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        *numbers, rest = match.groups()
        return self.form.format(*(int(number) + shift for number, shift in zip(numbers, self.shifts))) + (rest or "")


# modules whose projections are one tensor in vitrail and several in other layouts, and the name of the one: that of all of them
Parts = Mapping[str, str]
QKV = {"attn": "qkv"}
KV = {"attn": "kv"}


def join_parts(state: Mapping[str, Tensor], parts: Parts) -> State:
    """Joins the projections of each module into one tensor. Those that do not fit together are kept."""
    joined = dict(state)
    for name in state:
        owner, own, kind = _last_two(name)
        whole = parts.get(owner.rpartition(".")[2], "")
        group = [f"{owner}.{part}.{kind}" for part in whole]
        pieces = [state[each] for each in group if each in state and state[each].ndim]
        if own != whole[:1] or len(pieces) < len(group) or len({(each.shape[1:], each.dtype) for each in pieces}) != 1:
            continue
        for each in group:
            del joined[each]
        joined[f"{owner}.{whole}.{kind}"] = torch.cat(pieces)
    return joined


def split_parts(state: Mapping[str, Tensor], parts: Parts) -> State:
    """The inverse of `join_parts`."""
    split: State = {}
    for name, tensor in state.items():
        owner, own, kind = _last_two(name)
        if own and own == parts.get(owner.rpartition(".")[2]):
            split |= {f"{owner}.{part}.{kind}": piece for part, piece in zip(own, tensor.chunk(len(own)))}
        else:
            split[name] = tensor
    return split


def _last_two(name: str) -> tuple[str, str, str]:
    """Splits a name into module, part and parameter: ("blocks.0.attn", "q", "weight")."""
    owner, _, kind = name.rpartition(".")
    owner, _, own = owner.rpartition(".")
    return owner, own, kind
