"""Where each model comes from, and what its authors (or who is named) measured: top-1 on ImageNet-1k's validation images."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """The paper of a model; ``top1`` in percent and its ``setting``, where there is a figure for just this model."""

    paper: str
    top1: float | None = None
    setting: str | None = None


VIT = "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words"
AUGREG = "Steiner et al. 2022, How to train your ViT?"
SCALING = "Zhai et al. 2022, Scaling Vision Transformers"
I21K_384 = "pre-trained on ImageNet-21k, fine-tuned at 384 px"

PUBLISHED: dict[str, Published] = {
    "vit-ti16": Published(AUGREG, 78.22, I21K_384),
    "vit-s32": Published(AUGREG, 79.58, I21K_384),
    "vit-s16": Published(AUGREG, 83.73, I21K_384),
    "vit-s14": Published(AUGREG),
    "vit-s8": Published(AUGREG),
    "vit-m16": Published("Touvron et al. 2022, DeiT III", 83.0, "ImageNet-1k alone, 224 px"),
    "vit-b32": Published(VIT, 81.28, I21K_384),
    "vit-b16": Published(VIT, 83.97, I21K_384),
    "vit-b14": Published(VIT),
    "vit-b8": Published(AUGREG),
    "vit-l32": Published(VIT, 80.99, I21K_384),
    "vit-l16": Published(VIT, 85.15, I21K_384),
    "vit-l14": Published(VIT),
    "vit-h32": Published(VIT),
    "vit-h16": Published(VIT),
    "vit-h14": Published(VIT, 88.55, "pre-trained on JFT-300M, fine-tuned at 518 px"),
    "vit-so400m14": Published("Alabdulmohsin et al. 2023, Getting ViT in Shape"),
    "vit-giant14": Published(SCALING),
    "vit-gigantic14": Published(SCALING),
    "vit-e14": Published("Chen et al. 2023, PaLI"),
}
