"""The first value of every parameter, as in the paper's code and big_vision; nothing is left to torch's defaults.

| parameter | first value |
|-|-|
| q, k, v, each of its own | Xavier uniform, +-sqrt(3 / D) |
| attention's output | the same |
| MLP | Xavier uniform, +-sqrt(6 / (D + M)); biases normal, 1e-6 |
| patch projection, hidden layer of the head | LeCun normal, sqrt(1 / inputs), cut at 2 sigma before the correction for the cut |
| class and distillation token | 0 |
| registers, positions | normal, 0.02 |
| layer norm | 1 and 0 |
| LayerScale | ``layer_scale`` |
| query of attention pooling | Xavier uniform of a (1, D) matrix |
| head | weight 0, bias ``head_bias`` |
| other biases | 0 |
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# standard deviation of a standard normal variable cut at +-2, by which LeCun's is corrected
CUT = 0.87962566103423978


@torch.no_grad()
def initialise(model: nn.Module, *, layer_scale: float | None, head_bias: float) -> None:
    """Fills every parameter of a ViT in place, from torch's default generator."""
    for name, parameter in model.named_parameters():
        owner, _, last = name.rpartition(".")
        if last == "gamma":
            assert layer_scale is not None
            parameter.fill_(layer_scale)
        elif last == "weight" and parameter.ndim > 1:
            _fill_weight(owner, parameter)
        elif last == "weight":
            parameter.fill_(1)
        elif last == "bias":
            _fill_bias(owner, parameter, head_bias)
        else:
            _fill_token(last, parameter)


def _fill_weight(owner: str, weight: Tensor) -> None:
    if owner.endswith(("patch_embed.proj", "pre_logits")):
        sigma = math.sqrt(1 / weight[0].numel()) / CUT
        nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)
    elif is_head(owner):
        weight.zero_()
    else:
        parts = 3 if owner.endswith("qkv") else 2 if owner.endswith("kv") else 1
        for matrix in weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)


def _fill_bias(owner: str, bias: Tensor, head_bias: float) -> None:
    if owner.endswith(("mlp.fc1", "mlp.fc2")):
        bias.normal_(std=1e-6)
    else:
        bias.fill_(head_bias if is_head(owner) else 0)


def _fill_token(name: str, token: Tensor) -> None:
    if name in ("cls_token", "dist_token"):
        token.zero_()
    elif name == "latent":
        bound = math.sqrt(6 / (1 + token.shape[-1]))
        token.uniform_(-bound, bound)
    else:
        assert name == "reg_token" or name.startswith("pos_embed"), name
        token.normal_(std=0.02)


def is_head(owner: str) -> bool:
    """Whether the module of this name is a head's last layer."""
    return owner.startswith("head") and not owner.endswith("pre_logits")
