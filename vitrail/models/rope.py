"""Rotary position embeddings (Su et al. 2021, "RoFormer") on a grid of patches: the angles, and the rotation of q and k.

B images, H heads, L layers, h x w = N patches, P other tokens, T = P + N tokens, D width, E = D / H width of a head.

Each head has E/2 angles, E/4 for either axis, the same for q and k. Channels j and j + E/2 of a head are a pair (u, w), which a
rotation by the angle a makes (u cos a - w sin a, w cos a + u sin a). Models whose pairs are neighbours, channels 2 j and 2 j + 1,
are read with the channels of q and k in this order: attention is the same, and the rotation twice as fast. Tokens without a place
are not rotated.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Grid = tuple[int, int]  # rows, columns


class Rope(NamedTuple):
    """The rule of a family of models.

    Args:
        theta: the angle of frequency k < E/4 is the coordinate divided by theta^(4 k / E).
        axes: the axis of the first E/4 angles, and that of the others: "y" is the row.
        is_centred: coordinates are 2 pi times a number in [-1, 1], from one edge of the image to the other; otherwise they are
            the index of row and column.
        after_prefix: added to the index if there is a class token, which then stands at zero, before the first patch.
        is_learned: frequencies are learned for every layer and head, along both axes at once; initially in random directions.
    """

    theta: float
    axes: str = "yx"
    is_centred: bool = False
    after_prefix: int = 0
    is_learned: bool = False


ROPES = {
    "dinov3": Rope(100.0, is_centred=True),  # Siméoni et al. 2025, section 3.2
    "eva02": Rope(10_000.0),  # Fang et al. 2023, EVA-02
    "pe": Rope(10_000.0, axes="xy", after_prefix=1),  # Bolya et al. 2025, Perception Encoder
    "axial": Rope(100.0, axes="xy"),  # Heo et al. 2024, section 3.2
    "mixed": Rope(10.0, axes="xy", is_learned=True),  # the same
}


def is_rotary(config: Any) -> bool:
    """Whether q and k of a model are rotated; the configs of few architectures have the field."""
    return getattr(config, "rope", "none") != "none"


class Rotation(NamedTuple):
    """Cosines and sines of the angles of T tokens in fp32, (T, E), (H, T, E) or (B, 1 or H, T, E).

    Those of a pair stand at both of its channels; the sine at the first is negative.
    """

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Rotates q or k, (B, H, T, E), in fp32; the first tokens only, if there are fewer than T."""
        cos, sin = (part[..., : x.shape[2], :] for part in self)
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        # the other channel of each pair beside its own: 1.5 to 1.8 times as fast on a CPU as by halves
        return torch.addcmul(y * cos, y.roll(y.shape[-1] // 2, -1), sin).to(x.dtype)

    def follow(self, count: int) -> Rotation:
        """Returns the rotation of the same tokens after ``count`` others, which are not rotated."""
        return Rotation(F.pad(self.cos, (0, 0, count, 0), value=1.0), F.pad(self.sin, (0, 0, count, 0)))


class Frequencies(nn.Module):
    """Learned frequencies of every layer and head: of columns, then of rows."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.theta = ROPES[config.rope].theta
        self.freqs = nn.Parameter(torch.empty(2, config.depth, config.heads, config.head_width // 2))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws a direction per layer and head, as Heo et al. 2024 (section 3.3): lengths are those of axial frequencies."""
        quarter = self.freqs.shape[-1] // 2
        lengths = self.theta ** -(torch.arange(quarter, device=self.freqs.device) / quarter)  # (E/4,)
        turns = torch.rand(*self.freqs.shape[1:3], 1, device=self.freqs.device) * 2 * math.pi  # (L, H, 1)
        halves = [turns, turns + math.pi / 2]
        self.freqs[0] = torch.cat([lengths * half.cos() for half in halves], -1)
        self.freqs[1] = torch.cat([lengths * half.sin() for half in halves], -1)


def coordinates(config: Any, grid: Grid, device: torch.device) -> Tensor:
    """Returns what is multiplied by the frequencies for each patch, by the axes of the rule: (2, N) in fp32."""
    rule = ROPES[config.rope]
    offset = rule.after_prefix if config.prefix else 0
    lines = []
    for length, trained in zip(grid, config.rope_grid or (None, None)):  # rows, columns
        index = torch.arange(length, device=device, dtype=torch.float32)
        if rule.is_centred:
            lines.append((2 * (index + 0.5) / length - 1) * 2 * math.pi)
        else:
            lines.append((index + offset) * (1 if trained is None else trained / length))
    y, x = torch.meshgrid(*lines, indexing="ij")
    return torch.stack([y.flatten(), x.flatten()] if rule.axes == "yx" else [x.flatten(), y.flatten()])


def change_coordinates(config: Any, places: Tensor) -> Tensor:
    """Shifts, stretches each axis and rescales both at random, once for all images, by ``rope_shift``, ``rope_jitter`` and
    ``rope_rescale`` (DINOv3, in training only).
    """

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, 1, device=places.device) * 2 - 1

    if config.rope_shift is not None:
        places = places + draw(2) * config.rope_shift * 2 * math.pi
    if config.rope_jitter is not None:
        places = places * (draw(2) * math.log(config.rope_jitter)).exp()
    if config.rope_rescale is not None:
        places = places * (draw(1) * math.log(config.rope_rescale)).exp()
    return places


def make_rotations(
    config: Any, frequencies: Tensor | None, ids: Tensor | None, leading: int, places: Tensor
) -> list[Rotation]:
    """Returns the rotation of each layer, or one for all.

    Args:
        frequencies: learned ones, (2, L, H, E/2).
        ids: (B, K), the kept patches of each image; None for all.
        leading: the number P of tokens before the patches.
        places: from `coordinates`, (2, N).
    """
    if frequencies is not None:
        x, y = (
            frequencies[axis].float()[..., None, :] * places[axis][:, None] for axis in (0, 1)
        )  # (L, H, N, E/2) each
        angles = list(x + y)
    else:
        quarter = config.head_width // 4
        theta = config.rope_theta or ROPES[config.rope].theta
        powers = torch.arange(quarter, device=places.device, dtype=torch.float32) / quarter
        angles = [(places[..., None] * theta**-powers).movedim(0, 1).flatten(1)]  # (N, E/2)
    rotations = []
    for angle in angles:
        if ids is not None:
            angle = angle[..., ids, :]  # (B, K, E/2) or (H, B, K, E/2)
            angle = angle[:, None] if angle.ndim == 3 else angle.transpose(0, 1)
        angle = F.pad(angle, (0, 0, leading, 0))  # the others stand at zero
        cos, sin = angle.cos(), angle.sin()
        rotations.append(Rotation(torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)))
    return rotations
