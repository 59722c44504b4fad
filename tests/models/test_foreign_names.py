"""Names of timm and Hugging Face are answered with those that the models and fields have here."""

from __future__ import annotations

import pytest

import vitrail
from vitrail.errors import ConfigError
from vitrail.models import MODELS
from vitrail.models.family import FIELDS, translate_model
from vitrail.models.vit import ViTConfig

NAMES = {
    "vit_tiny_patch16_224": "vit-ti16",
    "vit_base_patch16_224.augreg_in21k": "vit-b16",
    "google/vit-large-patch32-384": "vit-l32",
    "vit_so400m_patch14_siglip_384": "vit-so400m14",
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
    with pytest.raises(ConfigError, match="try: it is called 'vit-l32' here"):
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
