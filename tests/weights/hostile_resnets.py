"""Google's .npz of hybrids and ResNets that lie: how each is made, and words of the message that refuses it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.weights.untrusted import SMALL, Maker, google, npy

HYBRID: dict[str, Any] = {"model": "r50-vit-b16", **SMALL, "stem": (1, 1), "stem_width": 32, "classes": 3}
BIT: dict[str, Any] = {"model": "bit-r50x1", "depths": (1, 1), "classes": 3}


def deep(stages: int, unit: str, names: list[str]) -> dict[str, np.ndarray]:
    """The arrays of so many stages of one unit, each of one number."""
    return {
        f"{unit.format(stage)}__{name}": np.zeros([1] * (4 if "kernel" in name else 1), np.float32)
        for stage in range(1, stages + 1)
        for name in names
    }


OF_BIT = [f"{part}__group_norm__{each}" for part in "abc" for each in ("gamma", "beta")]
OF_BIT += [f"{part}__standardized_conv2d__kernel" for part in ("a", "b", "c", "a__proj")]
OF_HYBRID = [f"gn{part}__{each}" for part in ("1", "2", "3", "_proj") for each in ("scale", "bias")]
OF_HYBRID += [f"conv{part}__kernel" for part in ("1", "2", "3", "_proj")]


RESNETS: dict[str, tuple[Maker, str]] = {
    "unit 10^9 of a hybrid": (
        google(HYBRID, block1__unit1000000000__x=np.zeros(1)),
        "does not use: block1/unit1000000000/x",
    ),
    "block 10^9 of a hybrid": (
        google(HYBRID, block1000000000__unit1__x=np.zeros(1)),
        "does not use: block1000000000/unit1/x",
    ),
    "unit of 5,000 digits": (
        google(BIT, **{f"resnet__block1__unit{'9' * 5000}__x": np.zeros(1)}),
        "that a BiT ResNet does not use: block1/unit99",
    ),
    "1,500 blocks of a ResNet": (
        google(BIT, **{f"resnet__block{number}__unit01__x": np.zeros(1) for number in range(3, 1501)}),
        "1498 arrays that a BiT ResNet does not use",
    ),
    "1,500 blocks of a hybrid": (
        google(HYBRID, **{f"block{number}__unit1__gn1__bias": np.zeros(1) for number in range(3, 1501)}),
        "cannot be used",
    ),
    "a ResNet 2^68 wide": (
        google(BIT, **deep(60, "resnet__block{}__unit01", OF_BIT)),
        "does not fit the model, which would be too large",
    ),
    "a hybrid's patch of 2^62 pixels": (
        google(HYBRID, **deep(60, "block{}__unit1", OF_HYBRID)),
        "size is (9223372036854775808",
    ),
    "a root of no axes": (google(BIT, resnet__root_block__standardized_conv2d__kernel=np.zeros(())), "cannot be built"),
    "a root of no channels": (
        google(BIT, resnet__root_block__standardized_conv2d__kernel=npy((7, 7, 3, 0), data=b"")),
        "width_factor is 0",
    ),
    "a root of 10^12 by nothing": (
        google(BIT, resnet__root_block__standardized_conv2d__kernel=npy((0, 0, 3, 64 * 10**12), data=b"")),
        "does not fit",
    ),
    "a stem of 48 channels": (google(HYBRID, conv_root__kernel=np.zeros((7, 7, 3, 48))), "stem_width is 48"),
    "a stem of 10^12 by nothing": (
        google(HYBRID, conv_root__kernel=npy((0, 0, 3, 32 * 10**12), data=b"")),
        "does not fit",
    ),
    "a stem that gives other maps": (google(HYBRID, embedding__kernel=np.zeros((2, 2, 128, 24))), "patch_embed.proj"),
    "10^12 classes of no maps": (
        google(BIT, resnet__head__conv2d__kernel=npy((0, 1, 512, 10**12), data=b"")),
        "does not fit",
    ),
    "whole numbers for kernels": (
        google(BIT, resnet__block2__unit01__a__standardized_conv2d__kernel=np.zeros((1, 1, 256, 128), int)),
        "weights has the type int64",
    ),
    "a layer by two numbers": (
        google(BIT, resnet__group_norm_1__gamma=np.zeros(512, np.float32)),
        "does not use: group_norm_1/gamma",
    ),
}
