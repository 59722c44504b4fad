"""The grid of a table of positions: stated, taken from the requested size, or a square that is said to be assumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.each_row import each_row
from tests.models.conftest import shaken
from tests.weights.test_timm import a_state
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Backbone, create_backbone
from vitrail.weights import load
from vitrail.weights.google import to_google
from vitrail.weights.native import save_model
from vitrail.weights.shapes import factorise, most_likely
from vitrail.weights.timm import family_of

SMALL = {"patch_size": 8, "width": 192, "depth": 1, "mlp_width": 40, "classes": 3}
MODELS = {
    "ViT": ("vit-ti16", {**SMALL, "heads": 3, "gelu": "exact"}),
    "ViT with registers": (
        "vit-ti16",
        {**SMALL, "heads": 3, "gelu": "exact", "registers": 4, "prefix_positions": False},
    ),
    "CaiT": ("cait-xxs24", {**SMALL, "heads": 3, "class_depth": 1}),
    "BEiT": ("beit-b16", {**SMALL, "heads": 3}),
    "Google": ("vit-ti16", {**SMALL, "heads": 3}),
}


def saved(name: str, image_size: tuple[int, int], folder: Path) -> tuple[Backbone, Path]:
    model, fields = MODELS[name]
    backbone = shaken(create_backbone(model, **fields, image_size=image_size)).eval()
    if name == "Google":
        np.savez(folder / "x.npz", **to_google(backbone.config, backbone.state_dict()))
        return backbone, folder / "x.npz"
    tensors = family_of(backbone.config).write(backbone.config, backbone.state_dict())
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "x.safetensors")
    return backbone, folder / "x.safetensors"


@each_row("name, grid", [(name, grid) for name in MODELS for grid in ((4, 9), (2, 9))])
def test_a_stated_grid_gives_the_outputs_of_the_model(name, grid, tmp_path):
    size = (8 * grid[0], 8 * grid[1])
    backbone, path = saved(name, size, tmp_path)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    lines: list[str] = []
    stated = load(path, grid=grid, log=lines.append)
    torch.testing.assert_close(stated(images), backbone(images), atol=1e-5, rtol=1e-5)
    assert stated.config.image_size == stated.preprocessing.size == size
    assert "a grid of" not in "".join(lines)
    requested = load(path, image_size=size, log=lines.append)
    torch.testing.assert_close(requested(images), backbone(images), atol=1e-5, rtol=1e-5)
    assert f"image size {size[0]}x{size[1]}, a grid of {grid[0]}x{grid[1]} patches (--grid states another)" in lines[-1]


@each_row("name", MODELS)
def test_an_assumed_square_grid_is_reported(name, tmp_path):
    _, path = saved(name, (24, 24), tmp_path)
    lines: list[str] = []
    assert load(path, log=lines.append).config.grid == (3, 3)
    assert "image size 24x24, a grid of 3x3 patches (--grid states another)" in lines[-1]
    # a request that does not have as many patches does not determine the grid
    assert load(path, image_size=(16, 32), log=lines.append).config.grid == (2, 4)
    assert "a grid of 3x3 patches" in lines[-1]


@each_row("name", MODELS)
def test_other_tables_are_refused_with_the_option_that_decides(name, tmp_path):
    _, path = saved(name, (40, 72), tmp_path)
    with pytest.raises(CheckpointError, match=r"which is not a square grid\n +hint: .*--grid 5x9, or 9x5"):
        load(path)
    with pytest.raises(CheckpointError, match=r"but the grid has 4x8 patches\n +hint: .*--grid 5x9"):
        load(path, grid=(4, 8))


def test_a_grid_is_refused_where_it_is_stated_or_has_no_meaning(tmp_path):
    model = load(saved("ViT", (24, 24), tmp_path)[1], log=lambda line: None)
    (tmp_path / "timm").mkdir()
    save_file(a_state(), tmp_path / "timm" / "model.safetensors")
    told = {"architecture": "vit_tiny_patch16_224", "model_args": {"img_size": 12}}
    (tmp_path / "timm" / "config.json").write_text(json.dumps(told))
    native = save_model(tmp_path / "native", model)
    for path in (native, save_model(tmp_path / "native.safetensors", model), tmp_path / "timm"):
        with pytest.raises(ConfigError, match=r"states its image size, and a grid was given"):
            load(path, grid=(1, 9))
    bit = create_backbone("bit-r50x1", depths=(1,), classes=0)
    tensors = family_of(bit.config).write(bit.config, bit.state_dict())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "bit.safetensors")
    with pytest.raises(ConfigError, match="has no table of positions, and a grid was given"):
        load(tmp_path / "bit.safetensors", grid=(1, 9))


def test_the_input_size_of_timm_states_the_grid_if_it_fits(tmp_path):
    save_file(a_state(), tmp_path / "model.safetensors")
    for size, grid, aloud in (([3, 4, 36], (1, 9), False), ([3, 24, 24], (3, 3), True)):
        told = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": size}}
        (tmp_path / "config.json").write_text(json.dumps(told))
        lines: list[str] = []
        assert load(tmp_path, log=lines.append).config.grid == grid
        assert ("a grid of" in lines[-1]) == aloud


def test_the_most_square_grid_is_suggested():
    assert [factorise(number) for number in (1, 7, 12, 36, 45, 0)] == [(1, 1), (1, 7), (3, 4), (6, 6), (5, 9), (1, 1)]
    assert most_likely((36, 37)) == (6, 6)
    assert most_likely((35, 36)) == (6, 6)
    assert most_likely((45, 46)) == (5, 9)
    assert most_likely((11, 12)) == (3, 4)
    assert most_likely((17, 19)) == (1, 17)
