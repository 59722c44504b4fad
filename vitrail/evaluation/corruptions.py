"""Eight kinds of image corruption at five levels, to measure the robustness of a model.

They are applied to 8-bit images after resize and crop, as in ImageNet-C (Hendrycks and Dietterich 2019). The kinds are
similar to its kinds, but the strengths are our own, so results are not comparable with published ones. Lengths are
relative to the shorter side, so a level means the same at any size. Random kinds draw from (seed, kind, index of the
image) and not from the level: a higher level is a stronger version of the same corruption.

C channels, H and W as the model takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
from PIL import Image
from torch import Tensor, from_numpy

from vitrail.data.rng import normals, uniforms
from vitrail.errors import ConfigError, nearest
from vitrail.markup import encode_image

LEVELS = (1, 2, 3, 4, 5)
At = tuple[int, str, int, int, int]  # (seed, stream, epoch, sample, view): the keys of `rng`


def gaussian_noise(picture: np.ndarray, deviation: float, at: At) -> np.ndarray:
    """Add independent normal noise; the deviation is in 8-bit steps."""
    return picture + deviation * normals(*at, count=picture.size).reshape(picture.shape)


def shot_noise(picture: np.ndarray, photons: float, at: At) -> np.ndarray:
    """Poisson noise: full brightness has ``photons`` photons on average."""
    # beyond these counts the distribution function is 1 in double precision
    counts = np.arange(int(photons + 10 * photons**0.5 + 20))
    expected = np.arange(256)[:, None] * (photons / 255)  # (256, 1)
    steps = np.cumsum(np.log(np.maximum(counts, 1)))  # log count!
    chance = np.exp(counts * np.log(np.maximum(expected, 1e-300)) - expected - steps)  # (256, M)
    # one sorted table for all brightnesses: the distribution function of brightness b is between b and b + 1
    table = (np.minimum(np.cumsum(chance, 1), 1) + np.arange(256)[:, None]).ravel()
    value = picture.astype(np.int64).ravel()
    drawn = np.searchsorted(table, uniforms(*at, count=picture.size) + value, side="right") - value * len(counts)
    return drawn.reshape(picture.shape) * (255 / photons)


def defocus_blur(picture: np.ndarray, radius: float, at: At) -> np.ndarray:
    """Convolve with a disc; its radius is half a pixel plus a fraction of the shorter side."""
    radius = 0.5 + radius * min(picture.shape[1:])
    half = int(radius + 0.5)
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    return _convolve(picture, np.clip(radius + 0.5 - np.hypot(y, x), 0, 1))


def motion_blur(picture: np.ndarray, length: float, at: At) -> np.ndarray:
    """Convolve with a line of random direction; its length is a fraction of the shorter side."""
    length = length * min(picture.shape[1:])
    angle = np.pi * float(uniforms(*at, count=1)[0])
    half = int(length / 2) + 1
    along = np.linspace(-length / 2, length / 2, 8 * half + 1)
    kernel = np.zeros((2 * half + 1, 2 * half + 1))
    y, x = along * np.sin(angle) + half, along * np.cos(angle) + half
    top, left = np.floor(y).astype(int).clip(0, 2 * half - 1), np.floor(x).astype(int).clip(0, 2 * half - 1)
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):  # bilinear weights of the four pixels around each point
        share = (1 - abs(y - top - down)) * (1 - abs(x - left - right))
        np.add.at(kernel, (top + down, left + right), share)
    return _convolve(picture, kernel)


def brightness(picture: np.ndarray, steps: float, at: At) -> np.ndarray:
    """Add 8-bit steps to every value, like overexposure."""
    return picture.astype(np.float64) + steps


def contrast(picture: np.ndarray, kept: float, at: At) -> np.ndarray:
    """Scale the distance of each value from the mean of the image, like fog."""
    mean = picture.mean(dtype=np.float64)
    return mean + kept * (picture - mean)


def jpeg(picture: np.ndarray, quality: float, at: At) -> np.ndarray:
    """Compress with Pillow's JPEG encoder; if there are not three channels, each is compressed alone."""
    planes = [picture.transpose(1, 2, 0)] if len(picture) == 3 else list(picture)  # each (H, W, 3) or (H, W)
    files = [
        encode_image(Image.fromarray(np.ascontiguousarray(plane)), "JPEG", quality=int(quality)) for plane in planes
    ]
    again = [np.asarray(Image.open(BytesIO(file))) for file in files]
    return again[0].transpose(2, 0, 1) if len(picture) == 3 else np.stack(again)


def pixelate(picture: np.ndarray, kept: float, at: At) -> np.ndarray:
    """Reduce the resolution by averaging, and enlarge the pixels to blocks."""
    height, width = picture.shape[1:]
    small = max(round(kept * width), 1), max(round(kept * height), 1)
    planes = [Image.fromarray(plane).resize(small, Image.Resampling.BOX) for plane in picture]
    return np.stack([np.asarray(plane.resize((width, height), Image.Resampling.NEAREST)) for plane in planes])


Apply = Callable[[np.ndarray, float, At], np.ndarray]  # uint8 (C, H, W) -> values in 8-bit steps (C, H, W)
# the kinds of corruption, and the strengths of their five levels
CORRUPTIONS: dict[str, tuple[Apply, tuple[float, ...]]] = {
    "gaussian_noise": (gaussian_noise, (12, 24, 40, 60, 85)),
    "shot_noise": (shot_noise, (120, 50, 24, 12, 6)),
    "defocus_blur": (defocus_blur, (0.004, 0.008, 0.013, 0.020, 0.028)),
    "motion_blur": (motion_blur, (0.02, 0.04, 0.07, 0.11, 0.16)),
    "brightness": (brightness, (26, 51, 77, 102, 128)),
    "contrast": (contrast, (0.6, 0.45, 0.3, 0.2, 0.12)),
    "jpeg": (jpeg, (30, 20, 12, 7, 4)),
    "pixelate": (pixelate, (0.7, 0.5, 0.35, 0.25, 0.17)),
}


def corrupt(
    pictures: Tensor, kind: str, level: int, *, samples: Sequence[int] | np.ndarray | int = 0, seed: int = 0
) -> Tensor:
    """Apply one kind of corruption. The result for an image does not depend on the others.

    Args:
        pictures: uint8 (B, C, H, W), or one (C, H, W), as returned by `Preprocessing.picture`.
        kind: a key of `CORRUPTIONS`.
        level: 1 to 5.
        samples: the index of each image in its source, (B,), or of the single image.

    Returns:
        uint8 of the same shape, on the same device.

    Raises:
        ConfigError: an unknown kind or level, or images that are not 8-bit.
    """
    if kind not in CORRUPTIONS:
        raise ConfigError(f"unknown corruption {kind!r}", nearest(kind, CORRUPTIONS))
    if level not in LEVELS:
        raise ConfigError(f"unknown corruption level {level}", "choose 1, 2, 3, 4 or 5")
    given = pictures.cpu().numpy()
    if given.dtype != np.uint8 or given.ndim not in (3, 4):
        raise ConfigError(f"images of type {given.dtype} and shape {given.shape}", "give uint8 (B, C, H, W)")
    if given.ndim == 3:
        return corrupt(pictures[None], kind, level, samples=samples, seed=seed)[0]
    apply, strengths = CORRUPTIONS[kind]
    out = np.empty_like(given)
    for picture, sample, damaged in zip(given, np.broadcast_to(samples, len(given)), out):
        at = (seed, f"corruption {kind}", 0, int(sample), 0)
        damaged[...] = np.clip(np.rint(apply(picture, strengths[level - 1], at)), 0, 255)
    return from_numpy(out).to(pictures.device)


def _convolve(picture: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Convolve (C, H, W) with a square kernel of odd side, normalised to sum 1, with reflection at the border."""
    from scipy.ndimage import correlate  # a dependency of scikit-learn

    return correlate(picture.astype(np.float64), kernel[None], mode="reflect") / kernel.sum()
