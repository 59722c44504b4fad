"""Finding one network among the tensors of a checkpoint, by the names of any container."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.weights.tensors import AGAIN, printable

# modules that torch.compile, FSDP, activation checkpointing and DeepSpeed put around others; they may stand anywhere in a name
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
AVERAGED = frozenset({"state_dict_ema", "model_ema", "ema_model", "ema"})
# of several networks an averaged one is preferred, then one whose name says nothing of this, then these, in this order
LATER = ("teacher", "student", "momentum", "target", "encoder_k")
MOST_NAMED = 3


@dataclass(frozen=True)
class Network:
    """One network of a checkpoint.

    Args:
        tensors: its tensors, without the prefix.
        prefix: the beginning of their names in the checkpoint, such as ``teacher.backbone.``.
        others: the prefixes of other networks.
        unused: the names of all tensors outside of the network.
        wrappers: names of modules around others that were removed from the names.
    """

    tensors: dict[str, Tensor]
    prefix: str = ""
    others: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describes what was chosen, for a line in the log."""
        text = f"{len(self.tensors)} tensors" + (f" under {printable(self.prefix)!r}" if self.prefix else "")
        text += f", without {', '.join(map(repr, self.wrappers))}" if self.wrappers else ""
        shown = [repr(printable(other)) for other in self.others[:MOST_NAMED]]
        more = ", ..." if len(self.others) > MOST_NAMED else ""
        return text + (f", not those under {', '.join(shown)}{more}" if shown else "")


def find_network(tensors: Mapping[str, Tensor], anchors: Collection[str], path: Path) -> Network:
    """Finds the network whose first layer has one of the names ``anchors``, with any prefix. Wrappers' names are removed.

    Of several networks that with averaged weights is taken, or else the first by the order of `LATER`, or else the one
    with the most tensors. Without any, all tensors are returned.

    Raises:
        CheckpointError: two tensors have the same name without the wrappers.
    """
    state: dict[str, Tensor] = {}
    wrappers: set[str] = set()
    for name, tensor in tensors.items():
        wrappers.update(WRAPPERS.findall(name))
        plain = WRAPPERS.sub("", name)
        if plain in state:
            raise CheckpointError(f"{path} contains {printable(plain)!r} twice, with and without a wrapper", AGAIN)
        state[plain] = tensor
    prefixes = _outermost(
        {name[: -len(anchor)] for name in state for anchor in anchors if f".{name}".endswith(f".{anchor}")}
    )
    if not prefixes:
        return Network(state, wrappers=tuple(sorted(wrappers)))
    order, names = list(state), sorted(state)
    size = {prefix: bisect_left(names, f"{prefix}\U0010ffff") - bisect_left(names, prefix) for prefix in prefixes}
    first = {prefix: index for index, prefix in enumerate(prefixes)}
    best, *others = sorted(prefixes, key=lambda prefix: (_rank(prefix), -size[prefix], first[prefix]))
    return Network(
        {name.removeprefix(best): state[name] for name in order if name.startswith(best)},
        prefix=best,
        others=tuple(others),
        unused=tuple(name for name in order if not name.startswith(best)),
        wrappers=tuple(sorted(wrappers)),
    )


def _outermost(prefixes: Collection[str]) -> list[str]:
    """Returns the prefixes that are in no other one: what is within a network is a part of it."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


def _rank(prefix: str) -> int:
    parts = prefix.split(".")
    if not AVERAGED.isdisjoint(parts):
        return -1
    return max(
        (index for index, word in enumerate(LATER, 1) if any(part.startswith(word) for part in parts)), default=0
    )
