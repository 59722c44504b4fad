"""The objectives without labels, by name: how each is made for an encoder, and its description."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.config.schema import ObjectiveSettings
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.models import device_of
from vitrail.models.cost import count_operations, on_meta
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.beit import MaskedCodes
from vitrail.objectives.contrastive import MoCo, SimCLR
from vitrail.objectives.mae import MAE
from vitrail.objectives.masked_patch import MaskedPatch
from vitrail.objectives.objective import Objective, configure_objective
from vitrail.objectives.tokenizer import Reconstruction
from vitrail.training.inputs import FrozenNetwork, renormalise
from vitrail.weights.tokenizers import SavedTokenizer, load_tokenizer


@dataclass(frozen=True)
class ObjectiveEntry:
    """An objective that needs no labels, and what it does, for the report."""

    kind: type[Objective]
    about: str


OBJECTIVES: dict[str, ObjectiveEntry] = {
    "masked-patch": ObjectiveEntry(
        MaskedPatch,
        "Half of the patches are corrupted, and their mean colour, in 512 steps, is predicted from the others "
        "(Dosovitskiy et al. 2021, appendix B.1.2).",
    ),
    "mae": ObjectiveEntry(
        MAE,
        "Three quarters of the patches are hidden, and a small decoder predicts their pixels from the encoded visible ones "
        "(He et al. 2022).",
    ),
    "beit": ObjectiveEntry(
        MaskedCodes,
        "Blocks of patches are hidden, and the codes that a visual tokenizer gives them are predicted (Bao et al. 2022).",
    ),
    "moco": ObjectiveEntry(
        MoCo,
        "Two views of an image are to have like features, and those of other images unlike ones; the second view is encoded "
        "by a slow average of the encoder (Chen, Xie and He 2021).",
    ),
    "simclr": ObjectiveEntry(
        SimCLR,
        "Two views of an image are to have like features, and those of other images unlike ones (Chen et al. 2020).",
    ),
    "tokenizer": ObjectiveEntry(
        Reconstruction,
        "An image is encoded as one discrete code per patch and reconstructed from the codes (Mentzer et al. 2024); BEiT "
        "predicts these codes.",
    ),
}


def make_objective(
    settings: ObjectiveSettings, encoder: Any, preprocessing: Preprocessing, log: Callable[[str], None]
) -> tuple[Objective, FrozenNetwork | None]:
    """Makes the objective of ``settings``, and for BEiT the frozen network that computes the codes of its images.

    Raises:
        ConfigError: the encoder cannot carry it, it has no such argument, or a tokenizer is missing.
        CheckpointError: the tokenizer cannot be read.
    """
    kind = OBJECTIVES[settings.name].kind
    if kind is MaskedPatch:
        return configure_objective(MaskedPatch, encoder, settings.changes, preprocessing=preprocessing), None
    if kind is Reconstruction:
        return configure_objective(Reconstruction, encoder, settings.changes, std=preprocessing.std), None
    if kind is not MaskedCodes:
        return configure_objective(kind, encoder, settings.changes), None
    if settings.tokenizer is None:
        remedy = "train one first, `vitrail pretrain DATA --objective tokenizer`, and give it with --tokenizer RUN"
        raise ConfigError("beit predicts the codes of a tokenizer, and none is given", remedy)
    saved = load_tokenizer(settings.tokenizer, log)
    codes = Codes(saved, preprocessing, encoder.config.patch_size, device_of(encoder))
    vocabulary = saved.tokenizer.config.vocabulary
    return configure_objective(MaskedCodes, encoder, settings.changes, vocabulary=vocabulary, drawn=codes.decode), codes


class Codes:
    """The codes of images that were normalised for an encoder, one code for each of the encoder's patches.

    Raises:
        ConfigError: the tokenizer takes other channels than the images have.
    """

    def __init__(
        self, saved: SavedTokenizer, preprocessing: Preprocessing, patch_size: tuple[int, int], device: torch.device
    ) -> None:
        if saved.preprocessing.channels != preprocessing.channels:
            raise ConfigError(
                f"the tokenizer takes {saved.preprocessing.channels} channels, the encoder {preprocessing.channels}",
                "train a tokenizer on these images",
            )
        self.tokenizer: Tokenizer = saved.tokenizer.to(device).eval().requires_grad_(False)
        self.own, self.preprocessing, self.patch_size = saved.preprocessing, preprocessing, patch_size

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to codes (B, N), of the images scaled so that each patch of the encoder is one of the tokenizer's."""
        size = self._size(images.shape[2:])
        return self.tokenizer.encode(renormalise(images, self.preprocessing, self.own, size)).flatten(1)

    @torch.no_grad()
    def operations(self, size: tuple[int, int]) -> int:
        """Of the codes of one image of ``size`` (height, width)."""
        tokenizer = on_meta(self.tokenizer).eval()
        image = torch.empty(1, self.own.channels, *self._size(size), device="meta")
        return count_operations(lambda: tokenizer.encode(image))

    def _size(self, size: Sequence[int]) -> tuple[int, int]:
        """That at which the tokenizer sees images of ``size``."""
        grid = (size[0] // self.patch_size[0], size[1] // self.patch_size[1])
        rows, columns = self.tokenizer.config.patch_size
        return grid[0] * rows, grid[1] * columns

    @torch.no_grad()
    def decode(self, codes: Tensor, size: tuple[int, int]) -> Tensor:
        """Decodes codes (B, N) to images of ``size`` (height, width): (B, C, H, W), normalised for the encoder."""
        grid = (size[0] // self.patch_size[0], size[1] // self.patch_size[1])
        return renormalise(self.tokenizer.decode(codes.unflatten(1, grid)), self.own, self.preprocessing, size)
