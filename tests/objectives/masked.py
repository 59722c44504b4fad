"""Small objectives that hide patches, of every architecture that can carry them, and what their tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models.conftest import shaken
from tests.models.tiny import TINY, shares
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import ViTConfig, configure, create_backbone
from vitrail.objectives import MaskedCodes, MaskedPatch
from vitrail.objectives.masking import Masked

LOADS_A_COMPILER = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
CARRIERS = [*Masked.carried_by, "vit, stem", "vit, windows"]
MEAN, STD = (0.41, 0.52, 0.46, 0.5, 0.37), (0.27, 0.25, 0.31, 0.22, 0.29)
VOCABULARY = 11

VIT = TINY["vit"]
assert isinstance(VIT, ViTConfig)
# tokens stand at other places, have no last norm, are cells of 2 x 2 and of 4 x 4 patches; patches are no squares
KINDS = {
    "vit": replace(VIT, registers=2, prefix=("cls", "dist")),
    "vit, no norm": replace(VIT, pool="gap", pool_norm=True, patch_size=(4, 8)),
    "beit": TINY["beit"],
    "swin": TINY["swin"],
    "pvt": TINY["pvt"],
}


def names(count, first=0):
    """The ids (B, 3) of so many images: epoch, sample, view."""
    samples = np.arange(first, first + count)
    return np.stack([samples % 3, samples, samples % 2], 1)


def preprocessing(channels=3):
    return Preprocessing(size=(32, 32), mean=MEAN[:channels], std=STD[:channels])


def size_of(config):
    """Three cells in height, four in width."""
    return 3 * config.cell[0], 4 * config.cell[1]


def make(config, kind, target="mean", *, shake=True, **changes):
    """A ``kind`` of objective on a small encoder without chance, numbers of some size in every tensor if it is to ``shake``."""
    torch.manual_seed(0)
    encoder = create_backbone(configure(config, **dict.fromkeys(shares(config), 0.0), **changes))
    if kind == "codes":
        objective = MaskedCodes(encoder, VOCABULARY)
    else:
        objective = MaskedPatch(encoder, preprocessing(encoder.config.in_channels), target)
    return shaken(objective) if shake else objective


def pictures(config, batch=2):
    """Values in [0, 1] (B, C, H, W): each cell about a colour of its own, the brightest in each channel 1.0."""
    generator = torch.Generator().manual_seed(1)
    height, width = size_of(config)
    colours = torch.rand(batch, config.in_channels, 3, 4, generator=generator)
    colours = colours.repeat_interleave(config.cell[0], 2).repeat_interleave(config.cell[1], 3)
    return (colours + 0.1 * torch.rand(batch, config.in_channels, height, width, generator=generator)).clamp(0, 1)


def inputs_of(objective, batch=2):
    """One batch as the objective's forward takes it."""
    config = objective.encoder.config
    images = preprocessing(config.in_channels).normalise(pictures(config, batch))
    drawn = objective.draw(names(batch), size_of(config), 0)
    if isinstance(objective, MaskedPatch):
        return images, *drawn
    return images, *drawn, torch.randint(VOCABULARY, drawn[0].shape, generator=torch.Generator().manual_seed(2))


def tokens_by_hand(objective, images, source):
    """What the encoder answers, (B, M, width) and its grid, where ``source`` says patch by patch what stands in each place."""
    encoder = objective.encoder
    patches = encoder.patchify(images)
    x = patches.x.clone()
    for image, row in enumerate(source.tolist()):
        for place, number in enumerate(row):
            x[image, place] = objective.mask_token[0, 0] if number < 0 else patches.x[image, number]
    tokens = encoder.encode(encoder.place(patches._replace(x=x)))
    rows, columns = tokens.grid
    return tokens.x[:, tokens.x.shape[1] - rows * columns :].detach().double().numpy(), tokens.grid


def predictions_by_hand(objective, images, source):
    """(B, rows, columns, K) of the patches in NumPy, from the encoder's answer."""
    head, config = objective.head, objective.encoder.config
    x, (rows, columns) = tokens_by_hand(objective, images, source)
    if getattr(config, "pool_norm", config.architecture == "beit" and config.pool == "gap"):
        weight, bias = (each.detach().double().numpy() for each in (head.norm.weight, head.norm.bias))
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config.norm_eps) * weight + bias
    weight, bias = (each.detach().double().numpy() for each in (head.proj.weight, head.proj.bias))
    r, s = config.cell[0] // config.patch_size[0], config.cell[1] // config.patch_size[1]
    outputs = len(bias) // (r * s)
    found = np.zeros((len(images), rows * r, columns * s, outputs))
    for row in range(rows * r):
        for column in range(columns * s):
            first = (row % r * s + column % s) * outputs
            of_patch = slice(first, first + outputs)
            cell = x[:, row // r * columns + column // s]
            found[:, row, column] = cell @ weight[of_patch].T + bias[of_patch]
    return found


def cross_entropy(logits, label):
    return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label]


def steps(objective, inputs, dtype=None):
    """The losses before, between and after two steps on one batch."""
    objective.train()
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss, measured = objective(*inputs)
        assert loss.dtype == torch.float32
        assert all(each.ndim == 0 and not each.requires_grad for each in measured.values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses
