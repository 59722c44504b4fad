"""How fast a batch is augmented, by policy, beside torchvision v2 doing the same operations with the same values.

    python benchmarks/augmentation.py --policies randaugment three_augment --size 224 --batch 64
    python benchmarks/augmentation.py --size 32 --batch 512

The peer works on one picture at a time, as its transforms do (given a batch, they draw once for all of it), on tensors
and on Pillow's images; its values are drawn beforehand, ours within the time. Every contender ends with one uint8
batch. Before anything is timed the results are compared picture by picture (but for three_augment, as torchvision's own
blur has another kernel than Pillow's). torchvision is in the environment of `make env-peers`; `--without-peer` does
without.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from harness import report, take_turns
from PIL import ImageFilter
from sklearn.datasets import load_sample_images
from torch import Tensor

from vitrail.data.augment.apply import augment, draw_flips, draw_layers
from vitrail.data.augment.crops import crop_boxes
from vitrail.data.augment.policy import OPERATIONS, POLICIES, Augment

SEED = 0
SHARED = tuple(name for name in OPERATIONS if name not in ("solarise_add", "cutout"))  # those that torchvision has
RANDAUGMENT = replace(POLICIES["plain_vit"], crop="none", operations=SHARED, magnitude=9.0)
CHOSEN = {
    "flip": POLICIES["flip"],
    "crop": Augment(),
    "randaugment": RANDAUGMENT,
    "timm": replace(RANDAUGMENT, increasing=True, magnitude_std=0.5),
    "three_augment": replace(POLICIES["three_augment"], crop="none"),
}


def photographs(batch: int, size: int) -> Tensor:
    """Parts of the two photographs that scikit-learn carries.  # -> (B, 3, size, size) uint8"""
    sources, draws = load_sample_images().images, np.random.default_rng(SEED)
    parts = []
    for number in range(batch):
        source = sources[number % 2]
        top, left = (draws.integers(0, side - size) for side in source.shape[:2])
        parts.append(source[top : top + size, left : left + size])
    return torch.from_numpy(np.stack(parts)).permute(0, 3, 1, 2).contiguous()


def torchvision_operations() -> dict[str, Callable[[Any, Any], Any]]:
    """Our names as functions of torchvision v2, of a picture and a value."""
    try:
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as F
    except ImportError as missing:
        raise SystemExit("torchvision is needed: `make env-peers`, or --without-peer") from missing

    def affine(
        image: Any, angle: float = 0.0, move: tuple[int, int] = (0, 0), shear: tuple[float, float] = (0, 0)
    ) -> Any:
        centre = [0.0, 0.0] if any(shear) else None
        return F.affine(image, angle, list(move), 1.0, list(shear), InterpolationMode.BILINEAR, [128.0] * 3, centre)

    def blur(image: Any, value: float) -> Any:
        if isinstance(image, Tensor):
            return F.gaussian_blur(image, [13, 13], [value, value])
        return image.filter(ImageFilter.GaussianBlur(value))

    def crop(image: Any, box: list[int]) -> Any:
        left, top, wide, tall = box
        tensor = isinstance(image, Tensor)  # Pillow always averages
        return F.resized_crop(image, top, left, tall, wide, F.get_size(image), InterpolationMode.BILINEAR, not tensor)

    def side(image: Any) -> int:
        return F.get_size(image)[0]

    return {
        "auto_contrast": lambda image, value: F.autocontrast(image),
        "equalise": lambda image, value: F.equalize(image),
        "invert": lambda image, value: F.invert(image),
        "rotate": lambda image, value: F.rotate(image, value, InterpolationMode.BILINEAR, fill=[128.0] * 3),
        "posterise": lambda image, value: F.posterize(image, int(value)),
        "solarise": lambda image, value: F.solarize(image, min(value, 255.0)),
        "colour": F.adjust_saturation,
        "contrast": F.adjust_contrast,
        "brightness": F.adjust_brightness,
        "sharpness": F.adjust_sharpness,
        "shear_x": lambda image, value: affine(image, shear=(float(np.degrees(np.arctan(value))), 0.0)),
        "shear_y": lambda image, value: affine(image, shear=(0.0, float(np.degrees(np.arctan(value))))),
        "translate_x": lambda image, value: affine(image, move=(-round(value * side(image)), 0)),
        "translate_y": lambda image, value: affine(image, move=(0, -round(value * side(image)))),
        "grey": lambda image, value: F.rgb_to_grayscale(image, 3),
        "blur": blur,
        "crop": crop,
        "flip": lambda image, value: F.horizontal_flip(image),
    }


def peer(pictures: list[Any], programmes: list[list[tuple[str, Any]]]) -> Tensor:
    """Every picture through its own operations, one after the other."""
    from torchvision.transforms.v2 import functional as F

    operations, made = torchvision_operations(), []
    for picture, programme in zip(pictures, programmes):
        for name, value in programme:
            picture = operations[name](picture, value)
        made.append(picture if isinstance(picture, Tensor) else F.pil_to_tensor(picture))
    return torch.stack(made)


def programmes_of(policy: Augment, ids: np.ndarray, side: int) -> list[list[tuple[str, Any]]]:
    """What the policy drew for each picture, as names and values."""
    programmes: list[list[tuple[str, Any]]] = [[] for _ in ids]
    flips, layers = draw_flips(policy, ids, SEED), draw_layers(policy, ids, SEED)
    for row, programme in enumerate(programmes):
        if policy.crop == "inception":
            programme.append(("crop", crop_boxes(policy, SEED, *ids[row], height=side, width=side).tolist()))
        if flips[row]:
            programme.append(("flip", 0.0))
        programme += [(str(layer.names[row]), float(layer.values[row])) for layer in layers if layer.names[row]]
    return programmes


def check_equal(images: Tensor, pictures: list[Any], ids: np.ndarray, policy: Augment) -> float:
    """Compares ``policy``, with one layer at most, with the peer: the part of pixels that is over two levels off."""
    one, side = replace(policy, layers=min(policy.layers, 1)), images.shape[-1]
    ours, _ = augment(images, ids, one, size=(side, side), seed=SEED, cropped=policy.crop == "none")
    off = ((ours.int() - peer(pictures, programmes_of(one, ids, side)).int()).abs() > 2).float().mean((1, 2, 3))
    assert off.median() < 0.01, "more than half of the pictures differ from torchvision's"
    return float(off.mean())


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--policies", nargs="+", default=list(CHOSEN), choices=list(CHOSEN))
    words.add_argument("--size", type=int, default=224)
    words.add_argument("--batch", type=int, default=64)
    words.add_argument("--device", default="cpu")
    words.add_argument("--blocks", type=int, default=7)
    words.add_argument("--block-seconds", type=float, default=1.0)
    words.add_argument("--without-peer", action="store_true")
    asked = words.parse_args()
    images = photographs(asked.batch, asked.size).to(asked.device)
    ids = np.stack([np.zeros(asked.batch), np.arange(asked.batch), np.zeros(asked.batch)], 1).astype(np.int64)
    for name in asked.policies:
        policy, size = CHOSEN[name], (asked.size, asked.size)
        notes: dict[str, object] = {"size": asked.size, "batch": asked.batch}
        contenders: dict[str, Callable[[], object]] = {
            "vitrail, batch": lambda policy=policy, size=size: augment(
                images, ids, policy, size=size, seed=SEED, cropped=policy.crop == "none"
            )
        }
        if not asked.without_peer:
            from torchvision.transforms.v2.functional import to_pil_image

            singles, pictures = list(images), [to_pil_image(image) for image in images.cpu()]
            if name != "three_augment":
                notes["pixels_more_than_2_levels_off"] = check_equal(images.cpu(), pictures, ids, policy)
            drawn = programmes_of(policy, ids, asked.size)
            contenders["torchvision v2, tensors"] = lambda singles=singles, drawn=drawn: peer(singles, drawn)
            if asked.device == "cpu":
                contenders["torchvision v2, Pillow"] = lambda some=pictures, drawn=drawn: peer(some, drawn)
        timings = take_turns(
            contenders,
            images=asked.batch,
            device=asked.device,
            blocks=asked.blocks,
            block_seconds=asked.block_seconds,
        )
        report(f"augmentation-{name}-{asked.size}", timings, device=asked.device, notes=notes)


if __name__ == "__main__":
    main()
