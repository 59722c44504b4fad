"""A config is checked when it is made, says what to write instead, and survives JSON."""

from __future__ import annotations

import json
import math

import pytest

from vitrail.errors import ConfigError
from vitrail.models import ViTConfig, configure, create_backbone
from vitrail.models.vit_config import VITS

MISTAKES = {
    "heads": (dict(width=192, heads=5), ["heads is 5", "divisor of width=192"]),
    "size": (dict(image_size=225), ["225x225", "16x16", "224x224 or 240x240", "pad=True"]),
    "oblong size": (dict(image_size=(224, 230)), ["224x230", "224x224 or 224x240"]),
    "small size": (dict(image_size=8), ["8x8", "16x16"]),
    "negative": (dict(depth=0), ["depth is 0", "from 1"]),
    "fraction": (dict(width=192.0), ["width is 192.0", "whole number"]),
    "word for a number": (dict(dropout="0.1"), ["dropout is '0.1'", "[0, 1)"]),
    "whole share": (dict(drop_path=1), ["drop_path is 1", "[0, 1)"]),
    "below zero": (dict(patch_dropout=-0.1), ["patch_dropout is -0.1"]),
    "not a number": (dict(attention_dropout=math.nan), ["attention_dropout is nan"]),
    "pool": (dict(pool="token"), ["pool is 'token'", "cls, cls+gap, cls-only, gap, map"]),
    "positions": (dict(positions="learnt"), ["positions is 'learnt'", "'learned'"]),
    "place": (dict(positions_at="steam"), ["positions_at is 'steam'", "'stem'"]),
    "resize": (dict(position_resize="cubic"), ["position_resize is 'cubic'", "'bicubic'"]),
    "gelu": (dict(gelu="erf"), ["gelu is 'erf'", "exact, tanh"]),
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
    "start": (dict(initial="identiy"), ["initial is 'identiy'", "'identity'"]),
    "truth for a number": (dict(registers=True), ["registers is True"]),
}


@pytest.mark.parametrize(("changes", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_its_value_and_a_remedy(changes, words):
    with pytest.raises(ConfigError) as caught:
        ViTConfig(**changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


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


@pytest.mark.parametrize("name", VITS)
def test_a_config_survives_json(name):
    config = configure(name, layer_scale=1e-5, prefix=("cls", "dist"), registers=4)
    assert ViTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
