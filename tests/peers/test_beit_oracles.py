"""BEiT against timm's with the same random weights: logits, features of every block, gradients, tables of other sizes.

timm's weights load as they are: the names are the same.
"""

from __future__ import annotations

import pytest
import torch

from tests.peers.oracles import (
    CLASSES,
    FEATURES,
    LOGITS,
    assert_gradients_near,
    assert_near,
    gradients,
    pictures,
    randomise,
)
from vitrail.models import configure, create_backbone
from vitrail.models.beit import BEiT

pytestmark = pytest.mark.peers

SIZE = (96, 160)
SIZES = {"depth": 4, "width": 192, "heads": 3, "mlp_width": 768, "classes": CLASSES}
THEIRS = {"depth": 4, "embed_dim": 192, "num_heads": 3, "num_classes": CLASSES}


def pair(size: tuple[int, int], ours: dict, theirs: dict) -> tuple[BEiT, torch.nn.Module]:
    timm = pytest.importorskip("timm")
    other = randomise(timm.create_model("beit_base_patch16_224", img_size=size, **THEIRS, **theirs))
    mine = create_backbone("beit-b16", image_size=size, **SIZES, **ours).eval()
    mine.load_state_dict(other.state_dict())
    return mine, other


@pytest.fixture(scope="module")
def with_timm() -> tuple[BEiT, torch.nn.Module, torch.Tensor]:
    return *pair(SIZE, {}, {}), pictures(*SIZE)


@torch.no_grad()
def test_logits_and_features_of_every_block_are_timms(with_timm):
    ours, theirs, images = with_timm
    assert_near(ours(images), theirs(images), LOGITS)
    expected = theirs.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW")
    for mine, other in zip(ours.feature_maps(images), expected, strict=True):
        assert_near(mine, other, FEATURES)


def test_gradients_are_timms(with_timm):
    ours, theirs, images = with_timm
    assert_gradients_near(gradients(ours, images), gradients(theirs, images))


@torch.no_grad()
def test_a_shared_table_positions_and_a_normed_class_token_are_timms():
    shared = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "use_abs_pos_emb": True}
    changes = {"relative_bias": "shared", "positions": True, "pool": "cls"}
    ours, theirs = pair(SIZE, changes, {**shared, "global_pool": "token"})
    images = pictures(*SIZE)
    assert_near(ours(images), theirs(images), LOGITS)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # timm's own, of how it indexes
@pytest.mark.parametrize("size", [(320, 384), (160, 112), (128, 320)], ids=str)
def test_tables_follow_the_size_as_timms_do(size):
    ours, theirs = pair(
        (224, 224), {"position_resize": "bicubic-antialias", "positions": True}, {"use_abs_pos_emb": True}
    )
    images = pictures(*size)
    theirs.set_input_size(size)
    assert_near(ours(images), theirs(images), LOGITS)
    new = configure(ours.config, image_size=size)
    for name, table in BEiT.resize_tensors(ours.state_dict(), ours.config, new).items():
        assert_near(table, theirs.state_dict()[name], 1e-5)
