"""The papers of the models and their published top-1 accuracy on the ImageNet-1k validation set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """The paper of a model, and ``top1`` in percent with its ``setting``, if published for exactly this model.

    The setting names the paper of the figure where that is another.
    """

    paper: str
    top1: float | None = None
    setting: str | None = None


VIT = "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words"
VIT_OTHER_PATCH = f"{VIT}, at a patch size that is not in it"
AUGREG = "Steiner et al. 2022, How to train your ViT?"
SCALING = "Zhai et al. 2022, Scaling Vision Transformers"
DINO = "Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers"
DINO2 = "Oquab et al. 2023, DINOv2"
DEIT = "Touvron et al. 2021, Training data-efficient image transformers"
DEIT3 = "Touvron et al. 2022, DeiT III"
SWIN = "Liu et al. 2021, Swin Transformer"
PVT = "Wang et al. 2021, Pyramid Vision Transformer"
PVT2 = "Wang et al. 2022, PVT v2"
CAIT = "Touvron et al. 2021, Going deeper with Image Transformers"
BEIT = "Bao et al. 2022, BEiT"
BIT = "Kolesnikov et al. 2020, Big Transfer"
BIT_OTHER_SIZE = f"{BIT}, at a size that is not in it"
AXIAL = "Wang et al. 2020, Axial-DeepLab, at widths that are not in it"

I1K = "ImageNet-1k alone, 224 px"
I1K_384 = "ImageNet-1k alone, 384 px"
DISTILLED = "ImageNet-1k alone, with a teacher, 224 px"
DISTILLED_384 = "ImageNet-1k alone, with a teacher, 384 px"
I21K_384 = "pre-trained on ImageNet-21k, fine-tuned at 384 px"
JFT = "pre-trained on JFT-300M, fine-tuned at 384 px"
JFT_VIT = f"{JFT} (Dosovitskiy et al. 2021, table 6)"
BEIT_I1K = "pre-trained without labels and fine-tuned on ImageNet-1k, 224 px"

PUBLISHED: dict[str, Published] = {
    "vit-ti16": Published(AUGREG, 78.22, I21K_384),
    "vit-s32": Published(AUGREG, 79.58, I21K_384),
    "vit-s16": Published(AUGREG, 83.73, I21K_384),
    "vit-s14": Published(DINO2),
    "vit-s8": Published(DINO),
    "vit-m16": Published(DEIT3),
    "vit-b32": Published(VIT, 81.28, I21K_384),
    "vit-b16": Published(VIT, 83.97, I21K_384),
    "vit-b14": Published(DINO2),
    "vit-b8": Published(AUGREG),
    "vit-l32": Published(VIT, 80.99, I21K_384),
    "vit-l16": Published(VIT, 85.15, I21K_384),
    "vit-l14": Published(DINO2),
    "vit-h32": Published(VIT_OTHER_PATCH),
    "vit-h16": Published(VIT_OTHER_PATCH),
    "vit-h14": Published(VIT, 88.55, "pre-trained on JFT-300M, fine-tuned at 518 px"),
    "vit-so400m14": Published("Alabdulmohsin et al. 2023, Getting ViT in Shape"),
    "vit-giant14": Published(SCALING),
    "vit-gigantic14": Published(SCALING),
    "vit-e14": Published("Chen et al. 2023, PaLI"),
    "deit-ti16": Published(DEIT, 72.2, I1K),
    "deit-s16": Published(DEIT, 79.8, I1K),
    "deit-b16": Published(DEIT, 81.8, I1K),
    "deit-ti16-distilled": Published(DEIT, 74.5, DISTILLED),
    "deit-s16-distilled": Published(DEIT, 81.2, DISTILLED),
    "deit-b16-distilled": Published(DEIT, 83.4, DISTILLED),
    "deit3-s16": Published(DEIT3, 81.4, I1K),
    "deit3-m16": Published(DEIT3, 83.0, I1K),
    "deit3-b16": Published(DEIT3, 83.8, I1K),
    "deit3-l16": Published(DEIT3, 84.9, I1K),
    "deit3-h14": Published(DEIT3, 85.2, I1K),
    "r50-vit-b16": Published(VIT, 85.58, JFT),
    "r50-vit-b32": Published(VIT, 84.90, JFT),
    "r50-vit-l16": Published(VIT, 86.60, JFT),
    "r50-vit-l32": Published(AUGREG, 85.99, I21K_384),
    "r26-vit-s32": Published(AUGREG, 83.85, I21K_384),
    "r26-vit-b32": Published(AUGREG),
    "r-vit-ti16": Published(AUGREG, 75.40, I21K_384),
    "axial-b16": Published(VIT),
    "axial-b32": Published(VIT),
    "swin-t": Published(SWIN, 81.2, I1K),
    "swin-s": Published(SWIN, 83.2, I1K),
    "swin-b": Published(SWIN, 83.5, I1K),
    "swin-l": Published(SWIN, 86.3, "pre-trained on ImageNet-22k, fine-tuned at 224 px"),
    "swin-b-384": Published(SWIN, 84.5, I1K_384),
    "swin-l-384": Published(SWIN, 87.3, "pre-trained on ImageNet-22k, fine-tuned at 384 px"),
    "pvt-tiny": Published(PVT, 75.1, I1K),
    "pvt-small": Published(PVT, 79.8, I1K),
    "pvt-medium": Published(PVT, 81.2, I1K),
    "pvt-large": Published(PVT, 81.7, I1K),
    "pvt-v2-b0": Published(PVT2, 70.5, I1K),
    "pvt-v2-b1": Published(PVT2, 78.7, I1K),
    "pvt-v2-b2": Published(PVT2, 82.0, I1K),
    "pvt-v2-b2-li": Published(PVT2, 82.1, I1K),
    "pvt-v2-b3": Published(PVT2, 83.1, I1K),
    "pvt-v2-b4": Published(PVT2, 83.6, I1K),
    "pvt-v2-b5": Published(PVT2, 83.8, I1K),
    "cait-xxs24": Published(CAIT, 78.4, DISTILLED),
    "cait-xxs36": Published(CAIT, 79.7, DISTILLED),
    "cait-xs24": Published(CAIT, 84.1, DISTILLED_384),
    "cait-s24": Published(CAIT, 83.5, DISTILLED),
    "cait-s36": Published(CAIT, 85.4, DISTILLED_384),
    "cait-m36": Published(CAIT, 86.1, DISTILLED_384),
    "cait-m48": Published(CAIT, 86.5, "ImageNet-1k alone, with a teacher, 448 px"),
    "beit-b16": Published(BEIT, 83.2, BEIT_I1K),
    "beit-l16": Published(BEIT, 85.2, BEIT_I1K),
    "bit-r50x1": Published(BIT, 77.54, JFT_VIT),
    "bit-r50x2": Published(BIT_OTHER_SIZE, 82.12, JFT_VIT),
    "bit-r50x3": Published(BIT),
    "bit-r101x1": Published(BIT, 80.67, JFT_VIT),
    "bit-r101x3": Published(BIT),
    "bit-r152x1": Published(BIT_OTHER_SIZE, 81.88, JFT_VIT),
    "bit-r152x2": Published(BIT, 84.97, JFT_VIT),
    "bit-r152x4": Published(BIT, 87.54, "pre-trained on JFT-300M, fine-tuned at 480 px"),
    "bit-r200x3": Published(BIT_OTHER_SIZE, 87.22, JFT_VIT),
    "axial-resnet26": Published(AXIAL),
    "axial-resnet50": Published(AXIAL),
}
