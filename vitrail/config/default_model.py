"""The default ViT for training from scratch on a small data set; its size depends on the images."""

from __future__ import annotations

from typing import Any

MANY = 5_000  # images from which training time rather than the data set is the limit


def model_for_images(size: tuple[int, int], *, images: int) -> tuple[str, dict[str, Any]]:
    """Returns a name of `vitrail.models.MODELS` and changes to it, for pictures of ``size`` (height, width) pixels.

    The patch gives 16 tokens to the smallest pictures and 64 to 196 to larger ones; the width grows with the pictures. With
    many images of many patches each step looks at a quarter of the patches, which buys four times the epochs. Measured on
    pictures of 8 x 8 and 32 x 32 pixels (docs/decisions.md), a starting point for others.
    """
    side = min(size)
    if side <= 16:
        patch, width, depth = 2, 64, 4
    elif side <= 40:
        patch, width, depth = 4, 128, 6
    elif side <= 96:
        patch, width, depth = 8, 192, 6
    else:
        patch, width, depth = 16, 192, 12
    while any(length % patch for length in size) and patch > 1:
        patch //= 2
    heads = max(width // 64, 2 if width < 128 else 1)
    changes = {"patch_size": (patch, patch), "width": width, "depth": depth, "heads": heads, "mlp_width": 4 * width}
    return "vit-ti16", {**changes, "patch_dropout": 0.75 if images >= MANY and side > 16 else 0.0}
