"""The update: parameter groups, the learning rate as a function of the step, gradient clipping, averaging of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config.schema import OptimSettings
from vitrail.runtime.distributed import SINGLE, Ranks, gather_full, is_spread, spread_like
from vitrail.torch_private import lerp_, multiply_
from vitrail.training.muon import Muon


def select_trainable(model: nn.Module, *, head_only: bool) -> dict[str, nn.Parameter]:
    """Returns the parameters to train by name; with ``head_only`` all but the head is frozen in place."""
    for name, parameter in model.named_parameters():
        if head_only and name not in find_head_names(model):
            parameter.requires_grad_(False)
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def find_head_names(model: nn.Module) -> set[str]:
    """Returns the names of the parameters of the head: the backbone's own, and what the task has of its own."""
    last = model.layers()[-1]  # type: ignore[operator]
    return {name for name in last if name.startswith("own.") or "head" in name.removeprefix("encoder.").split(".")[0]}


def is_matrix(weight: Tensor) -> bool:
    """Returns whether Muon may update a weight: that of a dense layer, or of a convolution that joins its channels."""
    return weight.ndim == 2 or (weight.ndim == 4 and weight.shape[1] > 1)


def group_parameters(model: nn.Module, settings: OptimSettings, parameters: Mapping[str, nn.Parameter]) -> list[dict]:
    """Groups for a torch optimiser: one per depth and decay, each with its ``names`` and the ``scale`` of its rate.

    Layer-wise decay multiplies the rate of depth i by ``layer_decay ** (last - i)`` (BEiT; MAE appendix A.2).
    """
    layers = model.layers()  # type: ignore[operator]
    spared = model.no_decay() if settings.decay_on == "kernels" else set()  # type: ignore[operator]
    groups: dict[tuple[float, float], dict] = {}
    for depth, layer in enumerate(layers):
        scale = settings.layer_decay ** (len(layers) - 1 - depth)
        for name in layer:
            if name not in parameters:
                continue
            decay = 0.0 if name in spared else settings.weight_decay
            group = groups.setdefault(
                (scale, decay), {"params": [], "names": [], "scale": scale, "weight_decay": decay}
            )
            group["params"].append(parameters[name])
            group["names"].append(name)
    return list(groups.values())


class Optimiser:
    """One or two torch optimisers over the same named groups, used as one, with a state of plain named tensors."""

    def __init__(
        self,
        model: nn.Module,
        settings: OptimSettings,
        parameters: Mapping[str, nn.Parameter],
        *,
        exact: bool = False,
        precision: str | None = None,
        ranks: Ranks = SINGLE,
    ) -> None:
        self.settings, self.exact = settings, exact
        self.parameters = dict(parameters)
        groups = group_parameters(model, settings, parameters)
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
        # the vector instructions of a fused update round the ends of a tensor otherwise, and shards have other ends
        how: dict[str, Any] = {"foreach": True} if exact else {"fused": fused}
        adamw: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, **how}
        if settings.name == "sgd":
            if any(map(is_spread, parameters.values())):  # torch has no fused SGD for these
                how = {"foreach": True}
            self.parts: list[torch.optim.Optimizer] = [
                torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, **how)
            ]
        elif settings.name == "adamw":
            self.parts = [torch.optim.AdamW(groups, **adamw)]
        else:
            first, last = model.layers()[0], model.layers()[-1]  # type: ignore[operator]
            spared = {*first, *last, *model.no_decay()}  # type: ignore[operator]
            hidden = {name for name, weight in parameters.items() if is_matrix(weight) and name not in spared}
            matrices, rest = _split(groups, hidden)
            # frozen as far as the head, there may be nothing for one of them
            narrow = precision != "fp32" or all(parameter.is_cuda for parameter in parameters.values())
            kind = torch.bfloat16 if narrow else torch.float32  # a CPU that trains in fp32 multiplies it faster
            self.parts = [Muon(matrices, settings.lr, kind=kind, ranks=ranks)] if matrices else []
            self.parts += [torch.optim.AdamW(rest, **adamw)] if rest else []

    @property
    def groups(self) -> Iterable[dict]:
        return (group for part in self.parts for group in part.param_groups)

    def set_rate(self, rate: float) -> None:
        for group in self.groups:
            group["lr"] = rate * group["scale"]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def gradient_norm(self) -> Tensor:
        """Returns the global norm of the gradients (a scalar); clipped in place to ``settings.clip`` where that is set."""
        limit = math.inf if self.settings.clip is None else self.settings.clip
        if self.exact:
            return self._clip_exactly(limit)
        return gather_full(nn.utils.clip_grad_norm_(self.parameters.values(), limit, foreach=True))

    def _clip_exactly(self, limit: float) -> Tensor:
        """Clips in fp64 until the last rounding, so that it does not depend on how tensors are cut into shards."""
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        squares = [gather_full(gradient.double().square().sum()) for gradient in gradients]
        norm = torch.stack(squares).sum().sqrt().float()
        multiply_(gradients, min(limit / (float(norm) + 1e-6), 1.0))
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """Returns the whole state as ``"<parameter>/<quantity>"`` -> tensor."""
        return {
            f"{name}/{quantity}": value
            for part in self.parts
            for group in part.param_groups
            for name, parameter in zip(group["names"], group["params"])
            for quantity, value in part.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `tensors` gave."""
        kept: dict[str, dict[str, Tensor]] = {}
        for path, value in tensors.items():
            name, _, quantity = path.rpartition("/")
            kept.setdefault(name, {})[quantity] = value
        for part in self.parts:
            part.state.clear()
            for group in part.param_groups:
                for name, parameter in zip(group["names"], group["params"]):
                    if name in kept:
                        part.state[parameter] = {
                            # AdamW counts its steps in a scalar that stays where the optimiser made it
                            quantity: spread_like(value, parameter) if value.ndim or parameter.is_cuda else value
                            for quantity, value in kept[name].items()
                        }


def _split(groups: list[dict], chosen: set[str]) -> tuple[list[dict], list[dict]]:
    """Returns the same groups twice: with the chosen names only, and with the others; empty groups are left out."""
    sides: tuple[list[dict], list[dict]] = ([], [])
    for group in groups:
        for side, wanted in zip(sides, (True, False)):
            pairs = [(n, p) for n, p in zip(group["names"], group["params"]) if (n in chosen) is wanted]
            if pairs:
                side.append({**group, "names": [n for n, _ in pairs], "params": [p for _, p in pairs]})
    return sides


class Average:
    """An exponential moving average of the weights ; its decay rises to ``decay`` as ``(1 + t) / (ramp + t)``."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float, ramp: float = 10.0) -> None:
        self.decay, self.ramp = decay, ramp
        self.tensors = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    def decay_at(self, step: int) -> float:
        """Returns the share of the average that update number ``step`` keeps."""
        return min(self.decay, (1 + step) / (self.ramp + step))

    @torch.no_grad()
    def update(self, parameters: Mapping[str, nn.Parameter], step: int) -> None:
        """Moves towards ``parameters`` after update number ``step`` (from 0)."""
        decay = self.decay_at(step)
        lerp_(list(self.tensors.values()), [parameters[name].detach() for name in self.tensors], 1 - decay)
