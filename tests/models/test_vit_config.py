"""A config is checked when it is made, says what to write instead, and survives JSON."""

from __future__ import annotations

import pytest

from vitrail.errors import ConfigError
from vitrail.models import ViTConfig, configure, create_backbone


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
