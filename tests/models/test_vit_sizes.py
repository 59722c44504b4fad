"""Parameters and multiply-adds of every model that has a name; a new one without an entry fails.

Rows of the table come from the published models where there are any; the others from the formula, written out here.
"""

from __future__ import annotations

import pytest

from tests.models.equal_blocks import cost_by_two_blocks, parameter_count
from vitrail.models import Config, ViTConfig, configure, cost_of
from vitrail.models.vit_sizes import DEITS, VITS

# name: parameters without a head, with 1,000 classes, with a hidden layer too; 10^9 multiply-adds with 1,000 classes
SIZES = {
    "vit-ti16": (5_524_416, 5_717_416, 5_754_472, 1.254),
    "vit-s32": (22_493_952, 22_878_952, 23_026_792, 1.143),
    "vit-s16": (21_665_664, 22_050_664, 22_198_504, 4.599),
    "vit-s14": (21_619_584, 22_004_584, 22_152_424, 6.124),
    "vit-s8": (21_670_272, 22_055_272, 22_203_112, 22.406),
    "vit-b32": (87_455_232, 88_224_232, 88_814_824, 4.409),
    "vit-b16": (85_798_656, 86_567_656, 87_158_248, 17.564),
    "vit-b14": (85_706_496, 86_475_496, 87_066_088, 23.162),
    "vit-b8": (85_807_872, 86_576_872, 87_167_464, 78.148),
    "vit-l32": (305_510_400, 306_535_400, 307_585_000, 15.378),
    "vit-l16": (303_301_632, 304_326_632, 305_376_232, 61.555),
    "vit-l14": (303_178_752, 304_203_752, 305_253_352, 81.013),
    "vit-h32": (633_679_360, 634_960_360, 636_600_040, 31.856),
    "vit-h16": (630_918_400, 632_199_400, 633_839_080, 127.315),
    "vit-h14": (630_764_800, 632_045_800, 633_685_480, 167.295),
    "vit-giant14": (1_011_202_432, 1_012_611_432, 1_014_595_304, 267.031),
    "vit-gigantic14": (1_842_775_680, 1_844_440_680, 1_847_211_240, 483.748),
    "vit-e14": (3_805_421_312, 3_807_214_312, 3_810_427_368, 990.677),
}
# patch, layers, width, MLP width: from the formula
OTHERS = {"vit-m16": (16, 12, 512, 2048), "vit-so400m14": (14, 27, 1152, 4304)}
FOLLOWERS = {  # DeiT and DeiT III: parameters and 10^9 multiply-adds with 1,000 classes
    "deit-ti16": (5_717_416, 1.254),
    "deit-s16": (22_050_664, 4.599),
    "deit-b16": (86_567_656, 17.564),
    "deit-ti16-distilled": (5_910_800, 1.261),
    "deit-s16-distilled": (22_436_432, 4.624),
    "deit-b16-distilled": (87_338_192, 17.657),
    "deit3-s16": (22_059_496, 4.599),
    "deit3-m16": (38_849_512, 7.991),
    "deit3-b16": (86_585_320, 17.564),
    "deit3-l16": (304_374_760, 61.555),
    "deit3-h14": (632_126_440, 167.295),
}
LARGER = {  # name, image size: parameters with 1,000 classes, 10^9 multiply-adds
    ("vit-ti16", 384): (5_790_376, 4.682),
    ("vit-s32", 384): (22_915_432, 3.443),
    ("vit-s16", 384): (22_196_584, 15.490),
    ("vit-b32", 384): (88_297_192, 13.044),
    ("vit-b16", 384): (86_859_496, 55.484),
    ("vit-l32", 384): (306_632_680, 45.276),
    ("vit-l16", 384): (304_715_752, 191.066),
    ("vit-l16", 512): (305_174_504, 361.986),
    ("vit-h14", 378): (632_651_240, 503.5),
    ("vit-h14", 518): (633_470_440, 1016.7),
    ("deit-b16-distilled", 384): (87_630_032, 55.591),
}


def multiply_adds(config: Config) -> int:
    return cost_by_two_blocks(config).multiply_adds


def formula(patch, layers, width, mlp):
    patches = (224 // patch) ** 2
    block = 4 * width**2 + 4 * width + 2 * width * mlp + mlp + width + 4 * width
    bare = 3 * patch**2 * width + width + width + (patches + 1) * width + layers * block + 2 * width
    tokens = patches + 1
    sums = patches * 3 * patch**2 * width + 1000 * width
    sums += layers * (4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * mlp)
    with_head = bare + 1001 * width - width + 1000
    return bare, with_head, with_head + width**2 + width, round(sums / 1e9, 3)


def test_the_formula_gives_the_published_rows():
    assert formula(16, 12, 768, 3072) == SIZES["vit-b16"]
    assert formula(14, 32, 1280, 5120) == SIZES["vit-h14"]


def test_the_cost_extrapolated_from_two_blocks_is_exact():
    for changes in ({}, {"registers": 3, "positions": "relative"}, {"pool": "map", "prefix": ()}):
        config = configure("vit-ti16", image_size=32, depth=3, width=24, heads=2, mlp_width=32, **changes)
        assert cost_by_two_blocks(config) == cost_of(config), changes


def test_every_model_states_its_size():
    assert SIZES.keys() | OTHERS.keys() == VITS.keys()


FEW = ("vit-ti16", "vit-b16", "vit-l14", "vit-so400m14")


@pytest.mark.parametrize("names", [FEW, pytest.param(VITS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_parameters_and_multiply_adds_are_the_published_ones(names):
    found = {
        name: (
            parameter_count(configure(name, classes=0)),
            parameter_count(configure(name)),
            parameter_count(configure(name, pre_logits=True)),
            round(multiply_adds(configure(name)) / 1e9, 3),
        )
        for name in names
    }
    assert found == {name: SIZES.get(name) or formula(*OTHERS[name]) for name in names}


@pytest.mark.slow
def test_every_deit_states_its_size():
    assert {name: (parameter_count(c), round(multiply_adds(c) / 1e9, 3)) for name, c in DEITS.items()} == FOLLOWERS


@pytest.mark.slow
def test_larger_images_have_more_positions_and_more_work():
    found = {}
    for (name, size), (_, sums) in LARGER.items():
        config = configure(name, image_size=size)
        found[name, size] = parameter_count(config), round(multiply_adds(config) / 1e9, 3 if sums < 400 else 1)
    assert found == LARGER


def test_the_published_21843_class_heads_and_small_vits_count_right():
    assert parameter_count(configure("vit-b16", classes=21_843, pre_logits=True)) == 103_186_515
    assert parameter_count(configure("vit-s16", classes=21_843)) == 30_075_219
    # 28 x 28 pixels of one channel; 32 x 32 pixels
    tiny = ViTConfig(image_size=28, patch_size=4, in_channels=1, classes=10, width=64, depth=6, heads=4, mlp_width=256)
    assert parameter_count(tiny) == 305_034
    assert round(multiply_adds(tiny) / 1e9, 4) == 0.0167
    assert parameter_count(configure("vit-ti16", image_size=32, patch_size=4, classes=10)) == 5_362_762


def test_plain_vit_s16_of_big_vision_counts_right():
    plain = configure("vit-s16", pool="gap", prefix=(), positions="sincos2d")
    assert parameter_count(plain) == 21_974_632
    assert parameter_count(configure(plain, pre_logits=True)) == 22_122_472


def test_every_part_counts_by_hand():
    """6 patches of 8 x 8 pixels, width 8, one block with MLP width 16, 5 classes."""

    def sums(**changes):
        small = {"image_size": (16, 24), "patch_size": 8, "classes": 5, "width": 8, "depth": 1, "heads": 2}
        return cost_of(ViTConfig(**{**small, "mlp_width": 16, **changes})).multiply_adds

    projection, head = 6 * 3 * 64 * 8, 8 * 5

    def block(tokens):
        return tokens * (4 * 64 + 2 * 8 * 16) + 2 * tokens**2 * 8

    assert sums() == projection + block(7) + head
    assert sums(classes=0) == projection + block(7)
    assert sums(pre_logits=True) == projection + block(7) + 64 + head
    assert sums(prefix=("cls", "dist")) == projection + block(8) + 2 * head
    assert sums(pool="gap", registers=4) == projection + block(11) + head
    pooling = 64 + 2 * 64 * 6 + 2 * 6 * 8 + 64 + 2 * 8 * 16  # q, k and v, attention of one query, output, MLP
    assert sums(pool="map", prefix=()) == projection + block(6) + pooling + head
    # each query times each of the 2 x 7 - 1 offsets and the row of zeros
    assert sums(positions="relative") == projection + block(7) + 7 * 14 * 8 + head
    assert cost_of(configure("vit-ti16")).attention == 12 * 2 * 197**2 * 192
    assert cost_of(configure("vit-ti16", registers=3)).tokens == 200
