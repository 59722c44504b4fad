"""The configs of all architectures: what they refuse, foreign names, that they survive JSON, and the published sizes."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest

import vitrail
from tests.models.tiny import TINY
from vitrail.errors import ConfigError
from vitrail.models import MODELS, configure, cost_of, create_backbone
from vitrail.models.axial import AXIALS, AxialConfig
from vitrail.models.beit import BEITS, BEiTConfig
from vitrail.models.cait import CAITS, CaiTConfig
from vitrail.models.family import FIELDS, translate_model
from vitrail.models.pvt import PVTS, PVTConfig
from vitrail.models.pvt_v2 import PVT_V2S, PVTv2Config
from vitrail.models.resnet import AXIAL_RESNETS, RESNETS, AxialResNetConfig, ResNetConfig
from vitrail.models.swin import SWINS
from vitrail.models.vit import ViTConfig
from vitrail.models.vit_sizes import HYBRIDS, VITS

KINDS = {
    "ViT": ViTConfig,
    "hybrid": ViTConfig,
    "axial": AxialConfig,
    "Swin": partial(configure, "swin-t"),
    "CaiT": CaiTConfig,
    "BEiT": BEiTConfig,
    "PVT": PVTConfig,
    "PVT v2": PVTv2Config,
    "BiT": ResNetConfig,
    "AxialResNet": AxialResNetConfig,
}
# what is changed, and the words of the message: the value, and a remedy
MISTAKES = {
    "ViT": {
        "heads": (dict(width=192, heads=5), ["heads is 5", "divisor of width=192"]),
        "size": (dict(image_size=225), ["225x225", "16x16", "224x224 or 240x240", "pad=True"]),
        "oblong size": (dict(image_size=(224, 230)), ["224x230", "224x224 or 224x240"]),
        "small size": (dict(image_size=8), ["8x8", "16x16"]),
        "negative": (dict(depth=0), ["depth is 0", "at least 1"]),
        "fraction": (dict(width=192.0), ["width is 192.0", "integer"]),
        "word for a number": (dict(dropout="0.1"), ["dropout is '0.1'", "[0, 1)"]),
        "whole share": (dict(drop_path=1), ["drop_path is 1", "[0, 1)"]),
        "below zero": (dict(patch_dropout=-0.1), ["patch_dropout is -0.1"]),
        "not a number": (dict(attention_dropout=math.nan), ["attention_dropout is nan"]),
        "pool": (dict(pool="token"), ["pool is 'token'", "cls, cls+gap, cls-only, gap, map"]),
        "positions": (dict(positions="learnt"), ["positions is 'learnt'", "'learned'"]),
        "place": (dict(positions_at="steam"), ["positions_at is 'steam'", "'stem'"]),
        "resize": (dict(position_resize="cubic"), ["position_resize is 'cubic'", "'bicubic'"]),
        "gelu": (dict(gelu="erf"), ["gelu is 'erf'", "exact, quick, tanh"]),
        "nothing to read": (dict(prefix=()), ["prefix is ()", "pool='gap'"]),
        "prefix": (dict(prefix=("dist",)), ["prefix is ('dist',)", "('cls', 'dist')"]),
        "a token unread": (dict(pool="cls-only"), ["pool is 'cls-only'", "unless there is a second token"]),
        "waves": (dict(width=18, heads=2, positions="sincos2d"), ["width is 18", "multiple of 4"]),
        "halves": (dict(width=15, heads=3, positions="learned2d"), ["width is 15", "multiple of 2"]),
        "hidden layer of no head": (dict(classes=0, pre_logits=True), ["pre_logits is True", "classes=0"]),
        "patch": (dict(patch_size=(16, 16, 16)), ["patch_size is (16, 16, 16)", "(height, width)"]),
        "patch of nothing": (dict(patch_size=0), ["patch_size is 0"]),
        "eps": (dict(norm_eps=0.0), ["norm_eps is 0.0", "1e-6"]),
        "scale": (dict(layer_scale="small"), ["layer_scale is 'small'"]),
        "bias": (dict(head_bias=None), ["head_bias is None"]),
        "switch": (dict(pad="yes"), ["pad is 'yes'", "True or False"]),
        "norm of no mean": (dict(pool_norm=True), ["pool_norm is True", "pool = 'gap'"]),
        "nothing to drop to": (dict(skips=False, drop_path=0.1), ["drop_path is 0.1", "0 without skips"]),
        "windows": (dict(window=-1), ["window is -1", "at least 0"]),
        "windows nowhere": (
            dict(window=7, global_blocks=12),
            ["global_blocks is 12", "less than depth=12 with window=7"],
        ),
        "no global block": (dict(window=7, global_blocks=0), ["global_blocks is 0", "at least 1"]),
        "windows and one table": (dict(window=7, positions="relative"), ["positions is 'relative'", "window=7"]),
        "windows with gaps": (dict(window=7, patch_dropout=0.5), ["patch_dropout is 0.5", "0 with window=7"]),
        "start": (dict(initial="identiy"), ["initial is 'identiy'", "'identity'"]),
        "truth for a number": (dict(registers=True), ["registers is True"]),
    },
    "hybrid": {
        "no list": (dict(stem=3), ["stem is 3", "(3, 4, 9)"]),
        "word": (dict(stem="349"), ["stem is '349'", "None"]),
        "empty stage": (dict(stem=(3, 0)), ["stem is (3, 0)"]),
        "stem width": (dict(stem=(), stem_width=48), ["stem_width is 48", "multiple of 32"]),
        "no width": (dict(stem_width=0), ["stem_width is 0", "at least 1"]),
        "patch of half a cell": (
            dict(stem=(3, 4, 6, 3)),
            ["patch_size is (16, 16)", "multiples of 32", "(3, 4, 6, 3)"],
        ),
        "oblong patch": (dict(stem=(), patch_size=(8, 14)), ["patch_size is (8, 14)", "multiples of 4"]),
        "image": (dict(stem=(3, 4, 9), image_size=230), ["230x230", "16x16"]),
        "rule": (dict(standardise="std"), ["standardise is 'std'", "bit, timm, vit"]),
        "eps": (dict(group_norm_eps=-1e-6), ["group_norm_eps is -1e-06"]),
    },
    "axial": {
        "heads": (dict(heads=5), ["heads is 5", "divisor of width=768"]),
        "size": (dict(image_size=225), ["225x225", "224x224 or 240x240", "pad=True"]),
        "depth": (dict(depth=0), ["depth is 0", "at least 1"]),
        "positions": (dict(positions="relative"), ["positions is 'relative'", "learned"]),
        "waves": (dict(width=18, heads=2, positions="sincos2d"), ["width is 18", "multiple of 4"]),
        "resize": (dict(position_resize="cubic"), ["position_resize is 'cubic'", "'bicubic'"]),
        "gelu": (dict(gelu="erf"), ["gelu is 'erf'", "exact, quick, tanh"]),
        "eps": (dict(norm_eps=0.0), ["norm_eps is 0.0", "1e-6"]),
        "share": (dict(dropout=1.5), ["dropout is 1.5", "[0, 1)"]),
        "switch": (dict(pad="yes"), ["pad is 'yes'", "True or False"]),
    },
    "Swin": {
        "heads": (dict(heads=(3, 6, 12, 25)), ["heads is (3, 6, 12, 25)", "96, 192, 384, 768"]),
        "stages": (dict(depths=(2, 2, 6)), ["heads is (3, 6, 12, 24)", "3 stages"]),
        "no stage": (dict(depths=()), ["depths is ()", "each stage"]),
        "no block": (dict(depths=(2, 0, 2, 2)), ["depths is (2, 0, 2, 2)"]),
        "window": (dict(window=0), ["window is 0", "at least 1"]),
        "ratio": (dict(mlp_ratio=0.0), ["mlp_ratio is 0.0", "above 0"]),
        "patch": (dict(patch_size=0), ["patch_size is 0"]),
        "gelu": (dict(gelu="none"), ["gelu is 'none'", "exact, quick, tanh"]),
        "share": (dict(attention_dropout=1.0), ["attention_dropout is 1.0"]),
        "field": (dict(depth=12), ["depth"]),
    },
    "CaiT": {
        "heads": (dict(width=192, heads=5), ["heads is 5", "divisor of width=192"]),
        "no class block": (dict(class_depth=0), ["class_depth is 0", "at least 1"]),
        "size": (dict(image_size=225), ["225x225", "224x224 or 240x240", "pad=True"]),
        "scale": (dict(layer_scale=None), ["layer_scale is None"]),
        "share": (dict(patch_dropout=1.0), ["patch_dropout is 1.0", "[0, 1)"]),
        "resize": (dict(position_resize="cubic"), ["position_resize is 'cubic'", "'bicubic'"]),
        "gelu": (dict(gelu="erf"), ["gelu is 'erf'", "exact, quick, tanh"]),
        "eps": (dict(norm_eps=0), ["norm_eps is 0"]),
    },
    "BEiT": {
        "heads": (dict(width=192, heads=5), ["heads is 5", "divisor of width=192"]),
        "size": (dict(image_size=225), ["225x225", "224x224 or 240x240", "pad=True"]),
        "bias": (dict(relative_bias="all"), ["relative_bias is 'all'", "every, none, shared"]),
        "rule": (dict(bias_resize="geometry"), ["bias_resize is 'geometry'", "'geometric'"]),
        "pool": (dict(pool="map"), ["pool is 'map'"]),
        "scale": (dict(layer_scale="small"), ["layer_scale is 'small'"]),
        "positions": (dict(positions="learned"), ["positions is 'learned'", "True or False"]),
        "eps": (dict(norm_eps=0), ["norm_eps is 0"]),
    },
    "PVT": {
        "not whole patches": (dict(image_size=240), ["240x240", "32x32", "224x224 or 256x256", "pad=True"]),
        "too small": (dict(image_size=(16, 64), pad=True), ["16x64", "4x16 cells in stage 1", "8x8", "32x32 or more"]),
        "class token in a map": (dict(reductions=(8, 4, 2, 2)), ["reductions is (8, 4, 2, 2)", "class token"]),
        "heads": (dict(heads=(1, 3, 5, 8)), ["heads is (1, 3, 5, 8)", "widths=(64, 128, 320, 512)"]),
        "stages": (dict(heads=(1, 2)), ["heads is (1, 2)", "4 stages"]),
        "resize": (dict(position_resize="linear"), ["position_resize is 'linear'", "'bilinear'"]),
        "gelu": (dict(gelu="erf"), ["gelu is 'erf'", "exact, quick, tanh"]),
        "eps": (dict(conv_norm_eps=0), ["conv_norm_eps is 0"]),
    },
    "PVT v2": {
        "too small": (dict(image_size=(16, 64)), ["16x64", "4x16 cells in stage 1", "8x8", "32x32 or more"]),
        "heads": (dict(heads=(1, 3, 5, 8)), ["heads is (1, 3, 5, 8)", "widths=(64, 128, 320, 512)"]),
        "stages": (dict(reductions=(1, 2)), ["reductions is (1, 2)", "4 stages"]),
        "no stages": (dict(depths=()), ["depths is ()", "each stage"]),
        "switch": (dict(linear="yes"), ["linear is 'yes'", "True or False"]),
        "gelu": (dict(gelu="erf"), ["gelu is 'erf'", "exact, quick, tanh"]),
        "eps": (dict(norm_eps=0), ["norm_eps is 0"]),
    },
    "BiT": {
        "no stage": (dict(depths=()), ["depths is ()", "for each stage"]),
        "empty stage": (dict(depths=(3, 0)), ["depths is (3, 0)"]),
        "width": (dict(width_factor=0), ["width_factor is 0", "at least 1"]),
        "half a width": (dict(width_factor=1.5), ["width_factor is 1.5", "integer"]),
        "rule": (dict(standardise="jax"), ["standardise is 'jax'", "bit, timm, vit"]),
        "eps": (dict(group_norm_eps=0), ["group_norm_eps is 0", "above 0"]),
        "channels": (dict(in_channels=0), ["in_channels is 0"]),
    },
    "AxialResNet": {
        "heads": (dict(heads=12), ["heads is 12", "a divisor of 32, the width of the narrowest queries"]),
        "no head": (dict(heads=0), ["heads is 0", "at least 1"]),
        "width": (dict(width_factor=0), ["width_factor is 0", "at least 1"]),
    },
}


def test_a_mistake_is_named_with_its_value_and_a_remedy():
    wrong = {}
    for kind, mistakes in MISTAKES.items():
        for name, (changes, words) in mistakes.items():
            try:
                message = f"taken: {KINDS[kind](**changes)}"
            except ConfigError as error:
                message = str(error)
            if not all(word in message for word in words):
                wrong[kind, name] = message
    assert not wrong


# what is changed of each model of a family, so that fields of all types are not as by default
CHANGES = [
    (VITS, dict(layer_scale=1e-5, prefix=("cls", "dist"), registers=4)),
    (HYBRIDS, dict(standardise="timm", group_norm_eps=1e-5)),
    (AXIALS, dict(image_size=(64, 96), positions="sincos2d", pad=True)),
    (SWINS, dict(drop_path=0.2, patch_size=(4, 8))),
    (CAITS, {}),
    (BEITS, {}),
    (PVTS, dict(image_size=(96, 64), position_resize="bicubic", dropout=0.1)),
    (PVT_V2S, dict(image_size=(96, 63), patch_size=2, dropout=0.1)),
    (RESNETS, dict(image_size=(160, 128), standardise="timm", drop_path=0.1)),
    (AXIAL_RESNETS, dict(image_size=(97, 128), heads=4, drop_path=0.1)),
]
CONFIGS = {name: configure(name, **changes) for names, changes in CHANGES for name in names}


def test_every_config_survives_json():
    for name, config in {**MODELS, **CONFIGS, **TINY}.items():
        again = type(config).from_dict(json.loads(json.dumps(config.to_dict())))
        assert again == config, name
        assert isinstance(getattr(again, "stem", ()), tuple | str | None), name


# parameters with 1,000 classes, 10^9 multiply-adds and tokens, at 224 x 224 pixels unless the name says 384
SIZES = {
    "r-vit-ti16": (6_337_704, 0.434, 50),
    "r26-vit-s32": (36_431_912, 3.464, 50),
    "r26-vit-b32": (101_383_976, 6.711, 50),
    "r50-vit-b16": (98_659_112, 21.535, 197),
    "r50-vit-b32": (110_945_832, 8.458, 50),
    "r50-vit-l16": (316_483_624, 65.539, 197),
    "r50-vit-l32": (328_994_856, 19.413, 50),
    "swin-t": (28_288_354, 4.491, 49),
    "swin-s": (49_606_258, 8.741, 49),
    "swin-b": (87_768_224, 15.431, 49),
    "swin-l": (196_532_476, 34.476, 49),
    "swin-b-384": (87_903_584, 47.083, 144),
    "swin-l-384": (196_735_516, 103.919, 144),
    "pvt-tiny": (13_229_288, 1.933, 50),
    "pvt-small": (24_485_864, 3.816, 50),
    "pvt-medium": (44_208_104, 6.659, 50),
    "pvt-large": (61_369_320, 9.814, 50),
    "pvt-v2-b0": (3_666_760, 0.566, 49),
    "pvt-v2-b1": (14_009_000, 2.108, 49),
    "pvt-v2-b2": (25_362_856, 4.027, 49),
    "pvt-v2-b2-li": (22_553_512, 3.889, 49),
    "pvt-v2-b3": (45_238_696, 6.897, 49),
    "pvt-v2-b4": (62_556_072, 10.101, 49),
    "pvt-v2-b5": (81_956_008, 11.717, 49),
    "bit-r50x1": (25_549_352, 4.089, 49),
    "bit-r50x2": (97_988_712, 16.117, 49),
    "bit-r50x3": (217_319_080, 36.082, 49),
    "bit-r101x1": (44_541_480, 7.801, 49),
    "bit-r101x3": (387_934_888, 69.492, 49),
    "bit-r152x1": (60_185_128, 11.514, 49),
    "bit-r152x2": (236_335_208, 45.814, 49),
    "bit-r152x4": (936_533_224, 182.777, 49),
    "bit-r200x3": (568_633_000, 134.347, 49),
}


def test_every_one_of_these_models_states_its_size():
    assert SIZES.keys() == {*HYBRIDS, *SWINS, *PVTS, *PVT_V2S, *RESNETS}


def resnet_weights(depths, factor, outputs=1000):
    """Parameters of a BiT ResNet: stem, the kernels and norms of every block, shortcuts, the last norm and the head."""
    total, inputs = 3 * 49 * 64 * factor, 64 * factor
    for stage, depth in enumerate(depths):
        inner, wide = 64 * factor * 2**stage, 256 * factor * 2**stage
        for block in range(depth):
            total += inputs * inner + 9 * inner**2 + inner * wide + 2 * (inputs + 2 * inner)
            total += inputs * wide if block == 0 else 0
            inputs = wide
    return total + 2 * inputs + (inputs + 1) * outputs


def hybrid_weights(depths, width, depth, mlp, patches, outputs=1000):
    """Parameters of a hybrid: root, stages with norms after convolutions, projection, tokens, blocks and head."""
    total, inputs = 3 * 49 * 64 + 2 * 64, 64
    for stage, count in enumerate(depths):
        inner, wide = 64 * 2**stage, 256 * 2**stage
        for block in range(count):
            total += inputs * inner + 9 * inner**2 + inner * wide + 2 * (2 * inner + wide)
            total += (inputs + 2) * wide if block == 0 else 0
            inputs = wide
    block = 4 * (width + 1) * width + (2 * width + 1) * mlp + width + 4 * width
    return total + (inputs + 1) * width + (patches + 2) * width + depth * block + 2 * width + (width + 1) * outputs


def test_the_sizes_of_the_scaling_study_are_those_of_sums():
    """ViT paper, table 6: the ResNets and hybrids of which no weights are published."""
    assert resnet_weights((3, 4, 6, 3), 2) == SIZES["bit-r50x2"][0]
    assert resnet_weights((3, 8, 36, 3), 1) == SIZES["bit-r152x1"][0]
    assert resnet_weights((3, 24, 36, 3), 3) == SIZES["bit-r200x3"][0]
    assert hybrid_weights((3, 4, 9), 1024, 24, 4096, 14**2) == SIZES["r50-vit-l16"][0]


# the work of every block is counted, for up to 2 s: the quick tests count the smallest of each kind
COUNTED = ("swin-t", "pvt-tiny", "pvt-v2-b0", "pvt-v2-b2-li", "bit-r50x1")


@pytest.mark.parametrize("names", [COUNTED, pytest.param(SIZES, marks=pytest.mark.slow)], ids=["some", "all"])
def test_parameters_and_multiply_adds_are_the_published_ones(names):
    costs = {name: cost_of(configure(name)) for name in names}
    found = {name: (cost.parameters, round(cost.multiply_adds / 1e9, 3), cost.tokens) for name, cost in costs.items()}
    assert found == {name: SIZES[name] for name in names}


def test_an_unknown_model_or_field_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no model 'vit_b16'\n.*'vit-b16'"):
        create_backbone("vit_b16")
    with pytest.raises(ConfigError, match=r"no field 'drop_paths'\n.*'drop_path'"):
        configure("vit-b16", drop_paths=0.1)
    with pytest.raises(ConfigError, match="'image_size'"):
        ViTConfig.from_dict({"img_size": 224})


def test_one_number_is_a_square_and_lists_are_pairs():
    config = configure("vit-b16", image_size=384, patch_size=[32, 16], prefix=["cls"])
    assert config.image_size == (384, 384)
    assert config.patch_size == (32, 16)
    assert config.prefix == ("cls",)
    assert config.grid == (12, 24)
    assert configure(config, image_size=(64, 128)).grid == (2, 8)


def test_padding_accepts_any_size():
    assert configure("vit-b16", image_size=(225, 10), pad=True).grid == (15, 1)


NAMES = {
    "vit_tiny_patch16_224": "vit-ti16",
    "vit_base_patch16_224.augreg_in21k": "vit-b16",
    "google/vit-large-patch32-384": "vit-l32",
    "vit_so400m_patch14_siglip_384": "siglip-so400m14",
    "facebook/deit-tiny-distilled-patch16-224": "deit-ti16-distilled",
    "deit3_medium_patch16_224": "deit3-m16",
    "vit_base_r50_s16_384": "r50-vit-b16",
    "vit_tiny_r_s16_p8_224": "r-vit-ti16",
    "beitv2_large_patch16_224": "beit-l16",
    "microsoft/swin-base-patch4-window12-384": "swin-b-384",
    "swin_large_patch4_window7_224": "swin-l",
    "cait_xxs24_384": "cait-xxs24",
    "pvt_v2_b2_li": "pvt-v2-b2-li",
    "Zetatech/pvt-tiny-224": "pvt-tiny",
    "resnetv2_50x1_bit.goog_in21k": "bit-r50x1",
}


def test_a_model_is_named_as_it_is_here():
    assert {theirs: translate_model(theirs) for theirs in NAMES} == NAMES
    assert set(NAMES.values()) <= MODELS.keys()
    with pytest.raises(ConfigError, match="hint: it is called 'vit-l32' here"):
        vitrail.create_model("google/vit-large-patch32-384")


def test_other_names_have_the_nearest_ones():
    assert translate_model("resnet50") is None
    with pytest.raises(ConfigError, match="did you mean 'vit-b16'"):
        vitrail.create_model("vit-b-16")


def test_a_field_is_named_as_it_is_here():
    for arguments, remedy in (
        ({"num_classes": 7}, "it is called 'classes' here"),
        ({"drop_path_rate": 0.1}, "it is called 'drop_path' here"),
        ({"widht": 3}, "did you mean 'width'"),
    ):
        with pytest.raises(ConfigError, match=remedy):
            vitrail.create_model("vit-ti16", **arguments)


def test_every_translated_field_is_one_of_the_vit():
    assert set(FIELDS.values()) <= set(ViTConfig.__dataclass_fields__)
