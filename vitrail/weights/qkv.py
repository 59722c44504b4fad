"""Joining and splitting projections that are one tensor in vitrail and several in a file: q, k and v of attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

QKV = ("q", "k", "v")
KV = ("k", "v")


def join_parts(state: Mapping[str, Tensor], parts: Sequence[str]) -> dict[str, Tensor]:
    """Joins the ``parts`` of each module into one tensor, named after all of them. Incompatible parts are kept."""
    joined: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, own, kind = _last_two(name)
        group = [state.get(f"{owner}.{part}.{kind}") for part in parts]
        if own not in parts or not _fit(group):
            joined[name] = tensor
        elif own == parts[0]:
            joined[f"{owner}.{''.join(parts)}.{kind}"] = torch.cat([piece for piece in group if piece is not None])
    return joined


def split_parts(state: Mapping[str, Tensor], parts: Sequence[str]) -> dict[str, Tensor]:
    """The inverse of `join_parts`."""
    split: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, own, kind = _last_two(name)
        if own == "".join(parts):
            split |= {f"{owner}.{part}.{kind}": piece for part, piece in zip(parts, tensor.chunk(len(parts)))}
        else:
            split[name] = tensor
    return split


def _last_two(name: str) -> tuple[str, str, str]:
    """Splits a name into module, part and parameter: ("blocks.0.attn", "q", "weight")."""
    owner, _, kind = name.rpartition(".")
    owner, _, own = owner.rpartition(".")
    return owner, own, kind


def _fit(group: Sequence[Tensor | None]) -> bool:
    kinds = {(tensor.shape[1:], tensor.dtype) for tensor in group if tensor is not None and tensor.ndim}
    return len(kinds) == 1 and all(tensor is not None and tensor.ndim for tensor in group)
