"""Muon: momentum whose singular values are all brought near one, for the matrices of hidden layers.

Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon), with the scale of Liu et al. 2025 ("Muon is scalable for LLM
training", equation 4), which makes one learning rate and decay serve Muon and AdamW. The same update as torch's own Muon;
matrices of one shape are worked on together, which takes half the time for a small ViT on two cores (docs/decisions.md).

A matrix is (m, n), a stack of equally large ones (S, m, n). The kernel of a convolution, (D, C, P, Q), is the matrix (D, C P Q).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from vitrail.runtime.distributed import SINGLE, Ranks, gather_full, spread_like
from vitrail.torch_private import lerp, lerp_, multiply_

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic: steepest at zero, and bounded after
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """The optimiser; its state for each parameter is ``momentum_buffer``.

    Args:
        params: matrices and kernels of convolutions, or groups of them.
        momentum: of the running mean of gradients; the update looks ahead by one more step (Nesterov).
        weight_decay: decoupled, multiplied by the learning rate.
        kind: in which the iteration multiplies; fp32 where that is faster.
        ranks: processes with the same parameters, or with shards of them, which share the work.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        kind: torch.dtype = torch.bfloat16,
        ranks: Ranks = SINGLE,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.kind, self.ranks = kind, ranks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Makes one update from the gradients."""
        assert closure is None, "the loop computes the gradients"
        for group in self.param_groups:
            pairs = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if pairs:
                self._update(pairs, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, pairs: list[tuple[Tensor, Tensor]], rate: float, momentum: float, decay: float) -> None:
        parameters, gradients = ([pair[side] for pair in pairs] for side in (0, 1))
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states):
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
        means = [state["momentum_buffer"] for state in states]
        lerp_(means, gradients, 1 - momentum)
        ahead = lerp(gradients, means, momentum)
        multiply_(parameters, 1 - rate * decay)
        for parameter, direction in zip(parameters, orthogonalise(ahead, self.kind, self.ranks), strict=True):
            side = max(len(parameter), parameter.numel() // len(parameter))
            parameter.add_(spread_like(direction, parameter), alpha=-rate * 0.2 * side**0.5)


def orthogonalise(matrices: list[Tensor], kind: torch.dtype = torch.bfloat16, ranks: Ranks = SINGLE) -> list[Tensor]:
    """Returns each matrix, or kernel of a convolution, with its singular vectors and with singular values of about 0.7 to 1.2.

    The iteration was designed for bf16; fp32 is for processors where that is slow, up to 40 times for small matrices. Of several
    ranks, whose matrices may be spread over them, each computes every W-th matrix of a shape, and all get the whole of all
    results.
    """
    flat = [matrix.flatten(1) for matrix in matrices]
    wide = [matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix for matrix in flat]  # m <= n
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    for place, matrix in enumerate(wide):
        alike[matrix.shape].append(place)
    for places in alike.values():
        whole = [gather_full(wide[place]) for place in places]
        shares = [places[rank :: ranks.world] for rank in range(ranks.world)]
        own = torch.stack(whole)[ranks.rank :: ranks.world]  # no matrix, where there are too few
        results = _iterate(own, kind)
        for share, part in zip(shares, ranks.gather_rows(results, [len(share) for share in shares])):
            for place, result in zip(share, part, strict=True):
                wide[place] = result
    return [
        (result if len(result) == len(matrix) else result.mT).reshape(matrix.shape)
        for result, matrix in zip(wide, matrices, strict=True)
    ]


def _iterate(stack: Tensor, kind: torch.dtype) -> Tensor:
    """Runs Newton and Schulz's iteration on each of (S, m, n), with a polynomial of the fifth degree in place of the third."""
    a, b, c = COEFFICIENTS
    x = stack.to(kind)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # (S, m, m)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
