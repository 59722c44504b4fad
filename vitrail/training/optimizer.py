"""The update: Muon, parameter groups, gradient clipping, averaging of weights."""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config.schema import ModelSettings, OptimSettings
from vitrail.errors import ConfigError, nearest
from vitrail.models.adapters import ADAPTER
from vitrail.objectives.objective import Objective
from vitrail.runtime.distributed import SINGLE, Ranks, distribute_like, gather_full, is_dtensor
from vitrail.torch_private import lerp, lerp_, multiply_

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic: steepest at zero, and bounded after
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose singular values are all brought near one, for the matrices of hidden layers.

    Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon), with the scale of Liu et al. 2025 ("Muon is scalable for
    LLM training", equation 4), with which Muon and AdamW share one learning rate and decay. The same update as torch's own Muon;
    matrices of one shape are processed together, in half the time for a small ViT on two cores (docs/decisions.md).

    A matrix is (m, n), a stack of equally large ones (S, m, n). The kernel of a convolution, (D, C, P, Q), is the matrix
    (D, C P Q).

    Args:
        params: matrices and kernels of convolutions, or groups of them.
        momentum: of the running mean of gradients; the update looks ahead by one more step (Nesterov).
        weight_decay: decoupled, multiplied by the learning rate.
        dtype: of the products in the iteration; fp32 is faster on some processors.
        ranks: processes with the same parameters, or with shards of them, which share the work.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        dtype: torch.dtype = torch.bfloat16,
        ranks: Ranks = SINGLE,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype, self.ranks = dtype, ranks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Makes one update from the gradients."""
        assert closure is None, "the loop computes the gradients"
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            means = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            gradients = [parameter.grad for parameter in parameters]
            lerp_(means, gradients, 1 - group["momentum"])
            ahead = lerp(gradients, means, group["momentum"])
            multiply_(parameters, 1 - group["lr"] * group["weight_decay"])
            for parameter, direction in zip(parameters, orthogonalise(ahead, self.dtype, self.ranks), strict=True):
                side = max(len(parameter), parameter.numel() // len(parameter))
                parameter.add_(distribute_like(direction, parameter), alpha=-group["lr"] * 0.2 * side**0.5)


def orthogonalise(matrices: list[Tensor], dtype: torch.dtype = torch.bfloat16, ranks: Ranks = SINGLE) -> list[Tensor]:
    """Returns each matrix, or kernel of a convolution, with its singular vectors and with singular values of about 0.7 to 1.2.

    The iteration was designed for bf16; fp32 is for processors where that is slow, up to 40 times for small matrices. Each of W
    ranks computes every W-th matrix of a shape, and all ranks get all results in full.
    """
    flat = [matrix.flatten(1) for matrix in matrices]
    wide = [matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix for matrix in flat]  # m <= n
    by_shape: dict[torch.Size, list[int]] = defaultdict(list)
    for index, matrix in enumerate(wide):
        by_shape[matrix.shape].append(index)
    for indices in by_shape.values():
        stack = torch.stack([gather_full(wide[index]) for index in indices])
        shares = [indices[rank :: ranks.world] for rank in range(ranks.world)]
        results = _iterate(stack[ranks.rank :: ranks.world], dtype)  # empty if there are fewer matrices than ranks
        for share, part in zip(shares, ranks.gather_rows(results, list(map(len, shares)))):
            for index, result in zip(share, part, strict=True):
                wide[index] = result
    return [
        (result if len(result) == len(matrix) else result.mT).reshape(matrix.shape)
        for result, matrix in zip(wide, matrices, strict=True)
    ]


def _iterate(stack: Tensor, dtype: torch.dtype) -> Tensor:
    """Runs Newton and Schulz's iteration on each of (S, m, n), with a polynomial of the fifth degree in place of the third."""
    a, b, c = COEFFICIENTS
    x = stack.to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # (S, m, m)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def select_trainable(model: nn.Module, settings: ModelSettings) -> dict[str, nn.Parameter]:
    """Returns the parameters to train by name; freezes the others in place: all but the head with ``head_only``, all but the head
    and adapters where there are some, the embedding and the first blocks with ``freeze_until``. Raises `ConfigError` for more
    blocks than there are.
    """
    layers = model.layers()  # type: ignore[operator]
    blocks = len(layers) - 2  # without the embedding and the head
    if settings.freeze_until > blocks:
        what = f"model.freeze_until is {settings.freeze_until}, and the network has {blocks} blocks"
        raise ConfigError(what, f"give a number up to {blocks}, or --head-only")
    frozen = (
        {name for layer in layers[: settings.freeze_until + 1] for name in layer} if settings.freeze_until else set()
    )
    if settings.head_only or settings.adapters.rank:
        kept = find_head_names(model)
        frozen = {name for name, _ in model.named_parameters() if name not in kept and ADAPTER not in name}
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def find_head_names(model: nn.Module) -> set[str]:
    """Returns the names of the parameters of the head: the backbone's own, and what the task or the objective has of its own."""
    last = model.layers()[-1]  # type: ignore[operator]
    own = {name for name in last if not name.startswith("encoder.")} if isinstance(model, Objective) else set()
    return own | {name for name in last if name.startswith("own.") or "head" in plain_name(name).split(".")[0]}


def is_matrix(weight: Tensor) -> bool:
    """Returns whether Muon may update a weight: that of a dense layer, or of a convolution that joins its channels."""
    return weight.ndim == 2 or (weight.ndim == 4 and weight.shape[1] > 1)


def plain_name(name: str) -> str:
    """Returns the name of a parameter without that of the encoder in its objective."""
    return name.removeprefix("encoder.")


def find_own_settings(name: str, groups: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    """Returns what ``optim.groups`` gives for a parameter: the first pattern that matches its name."""
    return next((own for pattern, own in groups.items() if fnmatch.fnmatchcase(plain_name(name), pattern)), {})


def group_parameters(model: nn.Module, settings: OptimSettings, parameters: Mapping[str, nn.Parameter]) -> list[dict]:
    """Groups for a torch optimiser: one per depth and decay, each with its ``names`` and the ``scale`` of its rate.

    Layer-wise decay multiplies the rate of depth i by ``layer_decay ** (last - i)`` (BEiT; MAE appendix A.2). None is 0.75 up
    to 12 blocks; deeper networks decay as much in all, from the first layer to the last. Adapters have the full rate in every
    layer. ``groups`` changes rate and decay by name. Raises `ConfigError` for a pattern of ``groups`` that matches no parameter.
    """
    layers = model.layers()  # type: ignore[operator]
    for pattern in settings.groups:
        names = [plain_name(name) for layer in layers for name in layer]
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"no parameter matches {pattern!r} in optim.groups", nearest(pattern, names))
    spared = model.no_decay() if settings.decay_on == "kernels" else set()  # type: ignore[operator]
    base = 0.75 ** min(12 / max(len(layers) - 2, 1), 1) if settings.layer_decay is None else settings.layer_decay
    groups: dict[tuple[float, float], dict] = {}
    for depth, layer in enumerate(layers):
        scale = base ** (len(layers) - 1 - depth)
        for name in (name for name in layer if name in parameters):
            own = find_own_settings(name, settings.groups) if settings.groups else {}
            rate = (1.0 if ADAPTER in name else scale) * own.get("lr", 1.0)
            decay = own.get("weight_decay", 0.0 if name in spared else settings.weight_decay)
            empty = {"params": [], "names": [], "scale": rate, "weight_decay": decay}
            group = groups.setdefault((rate, decay), empty)
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
        self.parts: list[torch.optim.Optimizer]
        groups = group_parameters(model, settings, parameters)
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
        # the vector instructions of a fused update round the ends of a tensor otherwise, and shards have other ends
        how: dict[str, Any] = {"foreach": True} if exact else {"fused": fused}
        adamw: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, **how}
        if settings.name == "sgd":
            if any(map(is_dtensor, parameters.values())):  # torch has no fused SGD for these
                how = {"foreach": True}
            self.parts = [torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, **how)]
        elif settings.name == "adamw":
            self.parts = [torch.optim.AdamW(groups, **adamw)]
        else:
            first, last = model.layers()[0], model.layers()[-1]  # type: ignore[operator]
            spared = {*first, *last, *model.no_decay()}  # type: ignore[operator]
            hidden = {name for name, weight in parameters.items() if is_matrix(weight) and name not in spared}
            matrices, rest = _split(groups, hidden)
            narrow = precision != "fp32" or all(parameter.is_cuda for parameter in parameters.values())
            dtype = torch.bfloat16 if narrow else torch.float32  # a CPU that trains in fp32 multiplies it faster
            # if only the head is trained, either may have no parameters
            self.parts = [Muon(matrices, settings.lr, dtype=dtype, ranks=ranks)] if matrices else []
            self.parts += [torch.optim.AdamW(rest, **adamw)] if rest else []

    def set_rate(self, rate: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
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
        if not self.exact:
            return gather_full(nn.utils.clip_grad_norm_(self.parameters.values(), limit, foreach=True))
        # in fp64 until the last rounding, so that it does not depend on how tensors are cut into shards
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
        """Restores the state that `tensors` returned."""
        for part in self.parts:
            part.state.clear()
            owned = {name: p for group in part.param_groups for name, p in zip(group["names"], group["params"])}
            for path, value in tensors.items():
                name, _, quantity = path.rpartition("/")
                if (parameter := owned.get(name)) is not None:
                    # AdamW counts its steps in a scalar that stays where the optimiser made it
                    moved = distribute_like(value, parameter) if value.ndim or parameter.is_cuda else value
                    part.state[parameter][quantity] = moved


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
    """An exponential moving average of the weights; its decay rises to ``decay`` as ``(1 + t) / (ramp + t)``."""

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
