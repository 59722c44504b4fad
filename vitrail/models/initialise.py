"""Initialisation of every parameter, as in the paper's code and big_vision, without torch's defaults.

| parameter | initial value |
|-|-|
| q, k, v, each separately | Xavier uniform, +-sqrt(3 / D) |
| output layer of attention | the same |
| MLP | Xavier uniform, +-sqrt(6 / (D + M)); biases normal, 1e-6 |
| patch projection, hidden layer of the head | LeCun normal, std sqrt(1 / inputs), corrected for truncation at 2 sigma |
| class and distillation token | 0 |
| registers, positions | normal, std 0.02 |
| layer norm | 1 and 0 |
| kernels of a stem | LeCun normal |
| group norm of a stem | 1 and 0, the last of each branch 0 and 0 |
| LayerScale | ``layer_scale`` |
| query of attention pooling | Xavier uniform of a (1, D) matrix |
| head | weight 0, bias ``head_bias`` |
| other biases | 0 |
| learned frequencies of RoPE | random directions, see `vitrail.models.rope` |

The gate and the value of a SwiGLU layer are two matrices, each as the MLP's.

With ``initial="truncated"``, as in DeiT, all matrices except the patch projection, all tokens, all positions and the head are
normal with std 0.02, and biases are 0.

With ``initial="mimetic"``, attention is initialised to the structure found in trained models (Trockman & Kolter 2023, section
3): tokens attend to similar tokens, especially neighbours, and the output is subtracted. For matrices Z of normal values with
std sqrt(1 / D), W_q^T W_k of every head is the best approximation of 0.7 Z + 0.7 I of the head's rank, W_o W_v of all heads
together is 0.4 Z - 0.4 I, and learned positions are `positions.sincos2d`.

With ``initial="identity"``, for networks without skip connections, each branch is the identity. W_q = W_k is orthonormal in
each head, scaled so that the logit of a token of unit variance with itself is `SELF`, and W_o W_v = I (compare He et al. 2023,
"Deep Transformers without Shortcuts"). Since GELU(u) - GELU(-u) = u, a hidden layer of [W; -W] and an output layer of
[W^T, -W^T] with orthonormal W are the identity ("looks linear", Balduzzi et al. 2017). Learned positions are
`positions.sincos2d`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from vitrail.models.positions import sincos2d

# standard deviation of a standard normal variable truncated at +-2, to correct LeCun's
CUT = 0.87962566103423978
SELF = 8.0

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")


def fills(fill: Callable[Concatenate[M, P], None]) -> Callable[Concatenate[M, P], None]:
    """Decorates a function that initialises a network: it runs without gradients, and is skipped on the meta device, where
    there are no values and drawing numbers would take most of the time.
    """

    @wraps(fill)
    def fill_without_gradients(model: M, *arguments: P.args, **keywords: P.kwargs) -> None:
        if not next(model.parameters()).is_meta:
            with torch.no_grad():
                fill(model, *arguments, **keywords)

    return fill_without_gradients


@fills
def initialise(model: nn.Module, config: Any) -> None:
    """Initialises every parameter of a ViT in place, with torch's default generator."""
    fill_as_paper(model, head_bias=config.head_bias, layer_scale=config.layer_scale, is_gated=config.mlp == "swiglu")
    named = dict(model.named_parameters())
    if config.initial == "truncated":
        _truncate(named)
    if config.initial in ("mimetic", "identity"):
        fill_block = _mimic if config.initial == "mimetic" else _pass_on
        for block in range(config.depth):
            start = f"blocks.{block}."
            fill_block({n.removeprefix(start): p for n, p in named.items() if n.startswith(start)}, config)
        if config.positions == "learned":
            named["pos_embed"][:, config.prefix_slots :] = sincos2d(config.grid, config.width)


@fills
def fill_as_paper(
    model: nn.Module, *, head_bias: float, layer_scale: float | None = None, is_gated: bool = False
) -> None:
    """Applies the table of this module to a network whose parts have the names of the ViT's."""
    for name, parameter in model.named_parameters():
        owner, _, last = name.rpartition(".")
        if last == "gamma":
            assert layer_scale is not None
            parameter.fill_(layer_scale)
        elif last == "weight" and parameter.ndim == 1:
            parameter.fill_(0 if owner.endswith("norm3") else 1)
        elif last == "weight" and (owner.startswith("patch_embed") or owner.endswith("pre_logits")):
            fill_lecun_normal(parameter)
        elif last == "weight" and is_head(owner):
            parameter.zero_()
        elif last == "weight":
            is_pair = owner.endswith("kv") or (is_gated and owner.endswith("mlp.fc1"))
            for matrix in parameter.chunk(3 if owner.endswith("qkv") else 2 if is_pair else 1):
                nn.init.xavier_uniform_(matrix)
        elif last == "freqs":
            model.get_submodule(owner).reset_parameters()  # type: ignore[operator]
        elif last == "bias" and owner.endswith(("mlp.fc1", "mlp.fc2")):
            parameter.normal_(std=1e-6)
        elif last == "bias" or last in ("q_bias", "v_bias"):
            parameter.fill_(head_bias if is_head(owner) else 0)
        elif last in ("cls_token", "dist_token"):
            parameter.zero_()
        elif last == "latent":
            bound = math.sqrt(6 / (1 + parameter.shape[-1]))
            parameter.uniform_(-bound, bound)
        else:
            assert last == "reg_token" or last.startswith("pos_embed"), last
            parameter.normal_(std=0.02)


def _mimic(block: dict[str, nn.Parameter], config: Any) -> None:
    q, k, v = block["attn.qkv.weight"].chunk(3)  # (D, D) each, heads along the rows
    for q_of_head, k_of_head in zip(q.chunk(config.heads), k.chunk(config.heads)):  # (E, D) each
        left, right = _factors(0.7, 0.7, q)
        q_of_head.copy_(left.mT[: config.head_width])
        k_of_head.copy_(right[: config.head_width])
    left, right = _factors(0.4, -0.4, q)
    block["attn.proj.weight"].copy_(left)
    v.copy_(right)


def _pass_on(block: dict[str, nn.Parameter], config: Any) -> None:
    q, k, v = block["attn.qkv.weight"].chunk(3)  # (D, D) each, heads along the rows
    for q_of_head, k_of_head in zip(q.chunk(config.heads), k.chunk(config.heads)):  # (E, D) each
        # |W x|^2 of a token of unit variance is E, and logits are divided by sqrt(E)
        q_of_head.copy_(nn.init.orthogonal_(q_of_head) * math.sqrt(SELF / math.sqrt(config.head_width)))
        k_of_head.copy_(q_of_head)
    block["attn.proj.weight"].copy_(nn.init.orthogonal_(v).mT)
    first, second = block["mlp.fc1.weight"].zero_(), block["mlp.fc2.weight"].zero_()  # (M, D), (D, M)
    half = config.mlp_width // 2
    w = nn.init.orthogonal_(first[:half])  # (M / 2, D)
    first[half : 2 * half] = -w
    second[:, :half], second[:, half : 2 * half] = w.mT, -w.mT


def _truncate(named: dict[str, nn.Parameter]) -> None:
    for name, parameter in named.items():
        is_matrix = name.endswith(".weight") and parameter.ndim == 2
        if is_matrix or name.endswith("_token") or name.startswith("pos_embed"):
            nn.init.trunc_normal_(parameter, std=0.02)
        elif name.endswith(("fc1.bias", "fc2.bias")):
            parameter.zero_()


def _factors(noise: float, diagonal: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Factorises noise * Z + diagonal * I into two (D, D) matrices by SVD, largest singular values first."""
    width = like.shape[1]
    target = noise * torch.randn(width, width) / math.sqrt(width) + diagonal * torch.eye(width)
    left, values, right = torch.linalg.svd(target)
    return (left * values.sqrt()).to(like), (values.sqrt()[:, None] * right).to(like)


def fill_lecun_normal(weight: Tensor) -> None:
    """Flax's default initialisation; the first axis is that of the outputs."""
    sigma = math.sqrt(1 / weight[0].numel()) / CUT
    nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)


@fills
def fill_truncated(model: nn.Module, head_bias: float = 0.0, *, uniform: tuple[str, ...] = ()) -> None:
    """Initialises every parameter by `fill_parameter`, but weights and biases of the layers whose names end with ``uniform``
    by uniform numbers, +-sqrt(1 / inputs).
    """
    for name, parameter in model.named_parameters():
        owner, _, _ = name.rpartition(".")
        if uniform and owner.endswith(uniform):
            bound = math.sqrt(1 / model.get_parameter(f"{owner}.weight")[0].numel())
            parameter.uniform_(-bound, bound)
        else:
            fill_parameter(name, parameter, head_bias)


def fill_parameter(name: str, parameter: Tensor, head_bias: float) -> None:
    """Initialises matrices, tokens and tables normal, std 0.02, truncated at +-2; norms 1 and 0; biases 0 or ``head_bias``."""
    if name.endswith(".bias"):
        parameter.fill_(head_bias if name == "head.bias" else 0)
    elif parameter.ndim == 1:
        parameter.fill_(1)
    else:
        nn.init.trunc_normal_(parameter, std=0.02)


def is_head(owner: str) -> bool:
    """Whether the module with this name is the last layer of a head."""
    return owner.startswith("head") and not owner.endswith("pre_logits")
