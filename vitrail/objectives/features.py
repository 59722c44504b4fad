"""Distillation of features without labels: images, and the patches of an image, should be as similar to one another for the
student as they are for a frozen teacher.

The similarities of images are those to a bank of the teacher's features, as with the queues of SEED (Fang et al. 2021); those of
patches are among the patches of the image. Neither asks for equal widths, classes or architectures. Both losses are means over
images, so micro-batches and ranks change nothing.

B images, C channels, H and W, N patches of the student's last map, D its width, F features of the student and G of the teacher,
E width of the teacher's map, M features in the bank, R compared rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.rng import uniforms
from vitrail.errors import ConfigError
from vitrail.models import Backbone
from vitrail.models.config import grid_of, is_number, is_whole
from vitrail.models.layers import as_tokens, by_hand
from vitrail.objectives.contrastive import pooled_width
from vitrail.objectives.objective import Objective

MANY_PATCHES, ROWS = 400, 256  # patches above which only some rows of the matrix are compared, and their number
IMAGES_A_FEATURE = 4  # images for each feature of the bank
SMALLEST_BANK, LARGEST_BANK = 16, 8192


class FeatureDistillation(Objective):
    """KL(teacher || student) of the similarities to a bank of the teacher's features, plus that of the patches' cosines.

    Args:
        encoder: a backbone.
        images: number of training images, by which the bank is sized.
        features: G.
        bank: M; by default a quarter of the images, rounded to a power of two, from 16 to 8,192.
        temperature: divisor of the cosines.
        patches: weight of the loss of the patches; 0 for none.

    Raises:
        ConfigError: an invalid value, or an encoder that drops patches.
    """

    about = (
        "The student is to find the same images, and within an image the same patches, alike as a frozen teacher does; labels "
        "are not used."
    )
    encoder: Backbone
    bank: Tensor

    def __init__(
        self,
        encoder: Backbone,
        *,
        images: int,
        features: int,
        bank: int | None = None,
        temperature: float = 0.07,
        patches: float = 1.0,
    ) -> None:
        super().__init__(encoder)
        if dropped := getattr(encoder.config, "patch_dropout", 0.0):
            what = f"patch_dropout is {dropped}, but all patches are compared with the teacher's"
            raise ConfigError(what, "create the encoder with patch_dropout=0")
        if not is_number(temperature) or temperature <= 0:
            raise ConfigError(f"the temperature is {temperature!r}", "give a number above 0, such as 0.07")
        if not is_number(patches) or patches < 0:
            raise ConfigError(f"the weight of the patches is {patches!r}", "give 0 or more, such as 1")
        size = size_bank(images) if bank is None else bank
        if not is_whole(size, 2) or size > images:
            what = f"a bank of {size!r} features for {images} images"
            raise ConfigError(what, "give a whole number, from 2 to that of the images")
        self.temperature, self.patches = temperature, patches
        self.register_buffer("bank", torch.zeros(size, features))
        self.pooled_head = nn.Linear(pooled_width(encoder), features)
        self.patch_head = nn.Linear(encoder.width, features)
        for head in (self.pooled_head, self.patch_head):
            nn.init.trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)

    def fill_bank(self, features: Tensor) -> Tensor:
        """Takes the teacher's features (M, G) of the images in the bank, and returns their `uniformity`."""
        self.bank.copy_(F.normalize(features.float(), dim=1))
        return uniformity(self.bank, self.temperature)

    def draw(self, ids: NDArray[np.int64], size: tuple[int, int], seed: int) -> tuple[Tensor, ...]:
        """Draws numbers in [0, 1) that choose the compared patches (B, R); none if all are compared."""
        if math.prod(grid_of(size, self.encoder.config.cell)) <= MANY_PATCHES:
            return ()
        return (torch.from_numpy(uniforms(seed, "distil", *ids.T, count=ROWS)).float(),)

    def forward(self, images: Tensor, *given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:  # type: ignore[override]
        """Returns the mean loss of the batch in fp32; its parts ``images_loss`` and ``patches_loss``; and ``teacher_cosine``, of
        the student's features after its head with the teacher's.

        Args:
            images: normalised (B, C, H, W).
            given: what `draw` returns, then the teacher's outputs (B, G + N E): its features, and its map on the student's grid.
        """
        *drawn, outputs = given
        features, patches = self.encoder.features_and_map(images)  # (B, F), (B, D, h, w)
        ours, our_patches = self.pooled_head(features), self.patch_head(as_tokens(patches))  # (B, G), (B, N, G)
        with by_hand(images):
            theirs, their_patches = outputs.float().split(
                [self.bank.shape[1], outputs.shape[1] - self.bank.shape[1]], 1
            )
            ours, theirs = (F.normalize(each.float(), dim=1) for each in (ours, theirs))
            bank = self.bank.float()
            of_images = divergence(theirs @ bank.T, ours @ bank.T, self.temperature)
            count = our_patches.shape[1]
            rows = (drawn[0] * count).long().clamp(max=count - 1) if drawn else None  # fp32 rounds up to 1
            of_patches = divergence(
                compare_patches(their_patches.unflatten(1, (count, -1)), rows),
                compare_patches(our_patches, rows),
                self.temperature,
            )
            loss = of_images + self.patches * of_patches
        cosine = (ours.detach() * theirs).sum(1).mean()
        measured = {"images_loss": of_images.detach(), "patches_loss": of_patches.detach(), "teacher_cosine": cosine}
        return loss, measured


def compare_patches(patches: Tensor, rows: Tensor | None = None) -> Tensor:
    """Returns the cosines of patches (B, N, E) among themselves, (B, N, N) in fp32; with indices ``rows`` (B, R) only of these
    patches to all, (B, R, N).
    """
    units = F.normalize(patches.float(), dim=2)
    chosen = units if rows is None else units.take_along_dim(rows[..., None], 1)
    return chosen @ units.mT


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Returns the mean over all rows of KL(softmax(teacher / tau) || softmax(student / tau)), over the last axis."""
    ours, theirs = ((scores / temperature).log_softmax(-1) for scores in (student, teacher))
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1).mean()


@torch.no_grad()
def uniformity(bank: Tensor, temperature: float) -> Tensor:
    """Returns the mean entropy of the similarities of unit vectors (M, G) to the others, relative to that of equal ones: near 1
    the teacher tells images apart too little for this temperature.
    """
    scores = (bank @ bank.T / temperature).fill_diagonal_(-math.inf).log_softmax(1)  # (M, M)
    terms = (scores.exp() * scores).nan_to_num(0.0)  # 0 for the image itself
    return -terms.sum(1).mean() / math.log(max(len(bank) - 1, 2))


def size_bank(images: int) -> int:
    """Returns the default number of features for a number of training images."""
    power = 2 ** round(math.log2(max(images / IMAGES_A_FEATURE, 1)))
    return min(max(power, SMALLEST_BANK), LARGEST_BANK, images)
