"""The Swin Transformer against transformers': features of every block, attention, logits, gradients.

transformers takes the softmax in fp32, whatever the rest. It is asked for sizes where no map's smaller side is below the
window: there it fails.
"""

from __future__ import annotations

import pytest
import torch

from tests.models.conftest import assert_near, gradients, outputs_of
from tests.models.swins import make, pictures
from vitrail.models.swin import Swin


def named_as_theirs(ours: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict, or gradients by name, under the names of a ``SwinForImageClassification`` in memory."""
    renamed = {}
    for name, tensor in ours.items():
        if ".qkv." in name:
            for part, each in zip("qkv", tensor.chunk(3)):
                renamed[theirs_of(name.replace(".qkv.", f".{part}_proj."))] = each
        else:
            renamed[theirs_of(name)] = tensor
    return renamed


def theirs_of(name: str) -> str:
    for ours, theirs in {
        "head.": "classifier.",
        "patch_embed.proj": "swin.embeddings.patch_embeddings.projection",
        "patch_embed.norm": "swin.embeddings.norm",
        ".norm1.": ".layernorm_before.",
        ".norm2.": ".layernorm_after.",
        ".attn.proj.": ".attn.o_proj.",
        ".attn.relative": ".attn.relative_position_bias.relative",
        ".attn.": ".attention.",
    }.items():
        name = name.replace(ours, theirs)
    if name.startswith("norm."):
        return f"swin.layer{name}"
    if ".downsample." in name:  # at the end of the stage before
        stage = int(name.split(".")[1])
        name = name.replace(f"stages.{stage}", f"stages.{stage - 1}")
    return name.replace("stages.", "swin.encoder.layers.")


def with_transformers(**changes) -> tuple[Swin, torch.nn.Module]:
    """One of ours and theirs with the same weights."""
    transformers = pytest.importorskip("transformers")
    ours = make(**changes)
    config = ours.config
    theirs = transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=config.image_size,
            patch_size=config.patch_size,
            num_channels=config.in_channels,
            embed_dim=config.width,
            depths=config.depths,
            num_heads=config.heads,
            window_size=config.window,
            mlp_ratio=config.mlp_ratio,
            qkv_bias=config.qkv_bias,
            layer_norm_eps=config.norm_eps,
            num_labels=config.classes,
            attn_implementation="eager",
        )
    )
    theirs.load_state_dict(named_as_theirs(ours.state_dict()))
    return ours, theirs.double().eval()


# oblong; filled up to whole windows and patches, and odd maps; a map of just one window's height, unshifted
SIZES = [(48, 72), (57, 75), (24, 48)]
OPTIONS = {
    "three stages": {"depths": (2, 1, 2), "heads": (1, 2, 4)},
    "even window": {"window": 2},
    "no bias": {"qkv_bias": False, "in_channels": 1},
    "oblong patch": {"patch_size": (4, 2)},
}


def assert_is_theirs(ours: Swin, theirs: torch.nn.Module, images: torch.Tensor) -> None:
    blocks = [
        [block for stage in stages for block in stage.blocks] for stages in (ours.stages, theirs.swin.encoder.layers)
    ]
    found, expected, matrices = *map(outputs_of, blocks), []
    for block in blocks[1]:
        block.attention.register_forward_hook(lambda module, given, result: matrices.append(result[1]))
    logits, attention = ours.forward_with_attention(images)
    answer = theirs(images).logits
    assert_near(logits, answer, 1e-6)
    for mine, other in zip(found, expected, strict=True):
        assert_near(mine.flatten(1, 2), other, 1e-6)
    for mine, other in zip(attention, matrices, strict=True):  # theirs is (B n, H, S, S)
        assert_near(mine.double(), other.unflatten(0, (len(images), -1)).transpose(1, 2).flatten(2, 3), 1e-5)
    towards = torch.randn(answer.shape, generator=torch.Generator().manual_seed(2)).double()
    mine, other = (gradients(model, (each * towards).sum()) for model, each in ((ours, logits), (theirs, answer)))
    renamed = named_as_theirs(mine)
    assert renamed.keys() == other.keys()
    for name, gradient in renamed.items():
        assert gradient.any() or name.endswith("k_proj.bias"), name
        assert (gradient - other[name]).abs().max() <= 1e-6 * max(1.0, other[name].abs().max()), name


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_blocks_attention_logits_and_gradients_are_transformers(size):
    assert_is_theirs(*with_transformers(), pictures(*size))


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_other_options_are_transformers(changes):
    ours, theirs = with_transformers(**changes)
    assert_is_theirs(ours, theirs, pictures(56, 64, channels=ours.config.in_channels))
