"""Image towers in the layout of OpenAI's CLIP, open_clip and Perception Encoder, against their definition in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.each_row import each_row
from tests.weights.untrusted import timm_folder
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Backbone, ViTConfig, create_backbone
from vitrail.tasks import Task
from vitrail.weights import load
from vitrail.weights.timm.vit import VIT

State = dict[str, Tensor]
WIDTH, HEADS, PATCH, GRID, OUT = 192, 3, 8, (3, 6), 40
PE = {"rope": True, "pool": "map"}


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.2


def make_tower(
    *,
    depth: int = 2,
    grid: tuple[int, int] = GRID,
    has_class: bool = True,
    has_last: bool = True,
    has_scale: bool = False,
    has_pool: bool = False,
) -> State:
    """The tensors of an image tower, with numbers of non-trivial size in each of them."""
    hidden, pool_hidden = 88, 104
    shapes: dict[str, tuple[int, ...]] = {
        "conv1.weight": (WIDTH, 3, PATCH, PATCH),
        "positional_embedding": (has_class + grid[0] * grid[1], WIDTH),
        "proj": (WIDTH, OUT),
    }
    if has_class:
        shapes["class_embedding"] = (WIDTH,)
    layers = {"ln_pre": (WIDTH,)} | ({"ln_post": (WIDTH,)} if has_last else {})
    for block in range(depth):
        name = f"transformer.resblocks.{block}"
        layers |= {f"{name}.ln_1": (WIDTH,), f"{name}.ln_2": (WIDTH,), f"{name}.attn.out_proj": (WIDTH, WIDTH)}
        layers |= {f"{name}.mlp.c_fc": (hidden, WIDTH), f"{name}.mlp.c_proj": (WIDTH, hidden)}
        shapes |= {f"{name}.attn.in_proj_weight": (3 * WIDTH, WIDTH), f"{name}.attn.in_proj_bias": (3 * WIDTH,)}
        if has_scale:
            shapes |= {f"{name}.ls_1.gamma": (WIDTH,), f"{name}.ls_2.gamma": (WIDTH,)}
    if has_pool:
        shapes |= {"attn_pool.probe": (1, 1, WIDTH), "attn_pool.attn.in_proj_weight": (3 * WIDTH, WIDTH)}
        shapes |= {"attn_pool.attn.in_proj_bias": (3 * WIDTH,)}
        layers |= {"attn_pool.layernorm": (WIDTH,), "attn_pool.attn.out_proj": (WIDTH, WIDTH)}
        layers |= {"attn_pool.mlp.c_fc": (pool_hidden, WIDTH), "attn_pool.mlp.c_proj": (WIDTH, pool_hidden)}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return {name: draw(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}


def rotate(x: Tensor, grid: tuple[int, int], first: int) -> Tensor:
    """Rotates pairs of neighbouring channels of (B, H, T, E) by the column and row of a patch, counted from ``first``."""
    quarter = x.shape[-1] // 4
    frequencies = 10_000 ** -(torch.arange(quarter, dtype=x.dtype) / quarter)
    rows, columns = torch.meshgrid(*(torch.arange(length, dtype=x.dtype) + first for length in grid), indexing="ij")
    angles = torch.cat([columns.reshape(-1, 1) * frequencies, rows.reshape(-1, 1) * frequencies], 1)  # (N, E/2)
    angles = F.pad(angles, (0, 0, first, 0))
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def compute(
    state: State,
    images: Tensor,
    *,
    heads: int = HEADS,
    rope: bool = False,
    pool: str = "tok",
    gelu: str = "exact",
    norm_after: bool = False,
) -> Tensor:
    """The features of a tower by its definition, in fp64."""
    named = {name: tensor.double() for name, tensor in state.items()}
    images = images.double()

    def dense(x: Tensor, name: str) -> Tensor:
        return F.linear(x, named[f"{name}.weight"], named[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        if f"{name}.weight" not in named:
            return x
        return F.layer_norm(x, x.shape[-1:], named[f"{name}.weight"], named[f"{name}.bias"], 1e-5)

    def attend(queries: Tensor, x: Tensor, name: str, heads: int, *, turned: bool) -> Tensor:
        weight, bias = named[f"{name}.in_proj_weight"].chunk(3), named[f"{name}.in_proj_bias"].chunk(3)
        parts = [F.linear(each, *pair) for each, *pair in zip((queries, x, x), weight, bias)]
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        if turned:
            q, k = (rotate(part, grid, int("class_embedding" in named)) for part in (q, k))
        return dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), f"{name}.out_proj")

    def mlp(x: Tensor, name: str) -> Tensor:
        x = dense(x, f"{name}.c_fc")
        return dense(x * torch.sigmoid(1.702 * x) if gelu == "quick" else F.gelu(x), f"{name}.c_proj")

    x = F.conv2d(images, named["conv1.weight"], stride=PATCH)
    grid, x = tuple(x.shape[2:]), x.flatten(2).mT  # (B, N, D)
    table, first = named["positional_embedding"], int("class_embedding" in named)
    if len(table) != first + x.shape[1]:
        image = table[first:].unflatten(0, GRID).movedim(2, 0)[None]
        image = F.interpolate(image, size=grid, mode="bilinear", align_corners=False)
        table = torch.cat([table[:first], image[0].movedim(0, 2).flatten(0, 1)])
    if first:
        x = torch.cat([named["class_embedding"].expand(len(x), 1, -1), x], 1)
    x = norm(x + table, "ln_pre")
    for block in range(sum(name.endswith(".ln_1.weight") for name in named)):
        name = f"transformer.resblocks.{block}"
        after = norm(x, f"{name}.ln_1")
        x = x + attend(after, after, f"{name}.attn", heads, turned=rope) * named.get(f"{name}.ls_1.gamma", 1)
        x = x + mlp(norm(x, f"{name}.ln_2"), f"{name}.mlp") * named.get(f"{name}.ls_2.gamma", 1)
    x = x if norm_after else norm(x, "ln_post")
    if pool == "map":
        queries = named["attn_pool.probe"].expand(len(x), -1, -1)
        x = attend(queries, x, "attn_pool.attn", 8, turned=False)[:, 0]
        x = x + mlp(norm(x, "attn_pool.layernorm"), "attn_pool.mlp")
    else:
        x = x[:, 0] if pool == "tok" else x[:, first:].mean(1)
    x = norm(x, "ln_post") if norm_after else x
    return x @ named["proj"] if "proj" in named else x


def write(state: State, path: Path) -> Path:
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, path)
    return path


def read(path: Path, **arguments: Any) -> tuple[Task, list[str]]:
    lines: list[str] = []
    return load(path, log=lines.append, **arguments), lines


def find_error(model: Task, state: State, grid: tuple[int, int] = GRID, **parts: Any) -> float:
    """The relative error of the features."""
    images = draw((2, 3, grid[0] * PATCH, grid[1] * PATCH), 1000) * 5
    expected = compute(state, images, **parts)
    with torch.no_grad():
        return float((model.backbone.features(images) - expected).norm() / expected.norm())


def assumed_of(lines: list[str]) -> str:
    return next((line for line in lines if line.startswith("assumed") and "layout" in line), "")


def with_text_tower(state: State) -> State:
    """The same tower in a file with a text tower, some of whose names it shares."""
    text = {name: tensor for name, tensor in make_tower(depth=1).items() if name.startswith("transformer.")}
    text |= {"positional_embedding": draw((77, WIDTH), 1), "token_embedding.weight": draw((9, WIDTH), 2)}
    text |= {
        "ln_final.weight": draw((WIDTH,), 3),
        "text_projection": draw((WIDTH, OUT), 4),
        "logit_scale": draw((1,), 5),
    }
    return {**text, **{f"visual.{name}": tensor for name, tensor in state.items()}}


def test_a_clip_file_is_read_without_its_text_tower(tmp_path):
    state = make_tower()
    model, lines = read(write(with_text_tower(state), tmp_path / "clip.safetensors"), grid=GRID)
    assert find_error(model, state) < 1e-6
    line = assumed_of(lines)
    assert "open_clip's layout" in line
    for each in (
        "exact GELU",
        "eps 1e-05",
        "3 heads",
        "pooling 'cls'",
        "mean [0.48145466",
        "interpolation bicubic",
        "crop_pct 1.0",
    ):
        assert each in line, line
    unused = next(line for line in lines if line.startswith("unused"))
    assert "17 tensors" in unused
    assert "ln_final.weight" in unused
    assert model.config.projection == OUT
    assert not model.classes


def test_the_image_size_of_a_bare_file_is_that_of_its_table(tmp_path):
    state = make_tower(grid=(4, 4))
    _, lines = read(write(state, tmp_path / "clip.safetensors"))
    assert "image size 32x32, a grid of 4x4 patches" in assumed_of(lines)
    with pytest.raises(CheckpointError, match="not a square grid"):
        read(write(make_tower(), tmp_path / "oblong.safetensors"))


@each_row("prefix", ["", "visual.", "module.visual.", "state_dict.module.visual."])
def test_pickled_files_and_prefixes(prefix, tmp_path, fast):
    state = make_tower(has_scale=True)
    torch.save({f"{prefix}{name}": tensor for name, tensor in state.items()}, tmp_path / "clip.pt")
    model, _ = read(tmp_path / "clip.pt", grid=GRID)
    assert find_error(model, state) < 1e-6


PE_KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "core": ({"has_pool": True}, {"pool": "map"}),
    "core without a class token": ({"has_pool": True, "has_class": False}, {"pool": "map"}),
    "spatial": ({"has_last": False, "has_scale": True}, {"pool": "avg"}),
    "language": ({"has_last": False, "has_class": False}, {"pool": "avg"}),
}


@each_row("kind", list(PE_KINDS))
def test_perception_encoder_rotates_by_the_index_of_a_patch_at_every_size(kind, tmp_path):
    parts, how = PE_KINDS[kind]
    state = make_tower(**parts)
    if kind == "spatial":
        del state["proj"]
    model, lines = read(write(with_text_tower(state), tmp_path / "pe.safetensors"), grid=GRID)
    assert find_error(model, state, rope=True, **how) < 1e-6
    assert find_error(model, state, (5, 4), rope=True, **how) < 1e-6
    line, pool = assumed_of(lines), "map" if how["pool"] == "map" else "gap"
    assert "Perception Encoder's layout" in line
    for each in (
        "rotary positions 'pe'",
        f"pooling '{pool}'",
        "eps 1e-05",
        "interpolation bilinear",
        "crop_mode squash",
    ):
        assert each in line, line
    assert (model.preprocessing.resize, model.preprocessing.interpolation) == ("squash", "bilinear")
    assert model.preprocessing.mean == (0.5, 0.5, 0.5)


# open_clip's folders

CONFIG: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": OUT,
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": [GRID[0] * PATCH, GRID[1] * PATCH],
            "layers": 2,
            "width": WIDTH,
            "head_width": 48,
            "patch_size": PATCH,
            "mlp_ratio": 88 / WIDTH,
        },
        "text_cfg": {"context_length": 77},
    },
    "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bilinear", "resize_mode": "squash"},
}  # fmt: skip


def write_folder(state: State, folder: Path, *, model: dict[str, Any] | None = None, **vision: Any) -> Path:
    told = json.loads(json.dumps(CONFIG))
    told["model_cfg"] |= model or {}
    told["model_cfg"]["vision_cfg"] |= vision
    (folder / "open_clip_config.json").write_text(json.dumps(told))
    write(with_text_tower(state), folder / "open_clip_model.safetensors")
    return folder


@each_row("named", ["folder", "file"])
def test_the_config_of_a_folder_decides_heads_gelu_and_preprocessing(named, tmp_path):
    state = make_tower()
    folder = write_folder(state, tmp_path)
    model, lines = read(folder if named == "folder" else folder / "open_clip_model.safetensors")
    assert find_error(model, state, heads=4, gelu="quick") < 1e-6
    assert assumed_of(lines) == "assumed  open_clip's layout: LayerNorm eps 1e-05"
    ours = model.preprocessing
    assert (ours.size, ours.resize, ours.interpolation, ours.mean) == ((24, 48), "squash", "bilinear", (0.1, 0.2, 0.3))


def test_a_folder_without_preprocessing_has_that_of_open_clip(tmp_path):
    folder = write_folder(make_tower(grid=(4, 4)), tmp_path, model={"quick_gelu": False}, image_size=32)
    told = json.loads((folder / "open_clip_config.json").read_text())
    del told["preprocess_cfg"]
    (folder / "open_clip_config.json").write_text(json.dumps(told))
    ours = read(folder)[0].preprocessing
    assert (ours.resize, ours.resize_to, ours.interpolation) == ("short", 32, "bicubic")
    assert ours.mean == (0.48145466, 0.4578275, 0.40821073)


@each_row("pool, norm_after", [("avg", True), ("avg", False), ("tok", False)])
def test_a_tower_without_the_first_norm_that_pools_by_the_mean(pool, norm_after, tmp_path):
    state = {name: tensor for name, tensor in make_tower().items() if not name.startswith("ln_pre")}
    folder = write_folder(state, tmp_path, no_ln_pre=True, pool_type=pool, final_ln_after_pool=norm_after)
    model, _ = read(folder)
    assert find_error(model, state, heads=4, gelu="quick", pool=pool, norm_after=norm_after) < 1e-6
    with pytest.raises(CheckpointError, match=r"without ln_pre, and its pooling is unknown"):
        read((folder / "open_clip_model.safetensors").rename(folder / "x.safetensors"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a ResNet": ({"layers": [3, 4, 6, 3]}, r"vision_cfg\.layers=\[3, 4, 6, 3\]"),
    "CoCa": ({"attentional_pool": True}, r"vision_cfg\.attentional_pool=True"),
    "all tokens": ({"pool_type": "none"}, "pool_type='none'"),
    "another eps": ({"norm_kwargs": {"eps": 1e-6}}, r"vision_cfg\.norm_kwargs"),
    "norms within": ({"scale_attn_inner": True}, r"vision_cfg\.scale_attn_inner=True"),
    "an unknown field": ({"registers": 4}, r"vision_cfg\.registers=4"),
    "another width": ({"width": 384}, "states width as 384, and the tensors have 192"),
    "another depth": ({"layers": 3}, "states layers as 3, and the tensors have 2"),
    "another patch": ({"patch_size": [8, 4]}, r"states patch_size as \(8, 4\)"),
    "another ratio": ({"mlp_ratio": 4.0}, "states mlp_ratio as 768"),
    "no first norm": ({"no_ln_pre": True}, "states no_ln_pre as True"),
    "another image size": ({"image_size": 224}, "224x224 have"),
    "heads that do not divide": ({"head_width": 35}, "cannot be built"),
    "no number": ({"head_width": 0}, "cannot be used"),
    "a projection of several layers": (
        {"timm_model_name": "vit_tiny_patch8_32", "timm_proj": "mlp"},
        "timm_proj='mlp'",
    ),
    "no pooling": ({"timm_model_name": "vit_tiny_patch8_32", "timm_proj": None, "timm_pool": ""}, "timm_pool=''"),
    "an unknown tower": ({"timm_model_name": "convnext_base"}, "'convnext_base', which is not known"),
}


@each_row("kind", list(REFUSED))
def test_what_is_not_supported_is_refused_by_its_field(kind, tmp_path):
    vision, message = REFUSED[kind]
    with pytest.raises(CheckpointError, match=message):
        read(write_folder(make_tower(), tmp_path, **{"head_width": 64, **vision}))


def test_other_values_of_the_config_are_refused(tmp_path):
    folder = write_folder(make_tower(), tmp_path, model={"embed_dim": 64}, head_width=64)
    with pytest.raises(CheckpointError, match="states embed_dim as 64, and the tensors have 40"):
        read(folder)
    told = json.loads((folder / "open_clip_config.json").read_text())
    for changed, message in (
        ({"preprocess_cfg": {"resize_mode": "longest"}}, "resize_mode='longest'"),
        ({"preprocess_cfg": {"interpolation": "lanczos"}}, "interpolation='lanczos'"),
        ({"model_cfg": {}}, "it has no 'vision_cfg'"),
        ({"model_cfg": [1]}, "cannot be used"),
    ):
        (folder / "open_clip_config.json").write_text(json.dumps({**told, **changed}))
        with pytest.raises(CheckpointError, match=message):
            read(folder)
    with pytest.raises(ConfigError, match="states its image size"):
        read(write_folder(make_tower(), tmp_path, head_width=64), grid=GRID)


@each_row(
    "name, shape, message",
    [
        ("attn_pool.query", (4, WIDTH), r"unexpected  attn_pool\.query"),
        ("ln_q.weight", (WIDTH,), r"unexpected  ln_q\.weight"),
        ("transformer.resblocks.1.ln_attn.weight", (WIDTH,), r"unexpected  blocks\.1\.ln_attn\.weight"),
        ("conv1.bias", (WIDTH,), r"unexpected  patch_embed\.proj\.bias"),
        ("transformer.resblocks.0.ls_1.gamma", (WIDTH,), r"missing     blocks\.0\.ls2\.gamma"),
        ("proj", (WIDTH,), "have other shapes than those of their layout"),
        ("proj", (OUT, WIDTH), "shape       projection.weight"),
        ("positional_embedding", (), "have other shapes than those of their layout"),
    ],
)
def test_tensors_that_may_change_the_features_are_not_left_out(name, shape, message, tmp_path):
    state = {**make_tower(), name: torch.ones(shape)}
    with pytest.raises(CheckpointError, match=message):
        read(write(with_text_tower(state), tmp_path / "clip.safetensors"), grid=GRID)


# towers of timm in open_clip's folders


def write_trunk(folder: Path, vision: dict[str, Any], beside: State, parts: dict[str, Any]) -> Backbone:
    """Writes a ViT by timm's names as the trunk of a folder of open_clip, and returns it."""
    sizes: dict[str, Any] = {"image_size": (24, 48), "patch_size": 8, "width": WIDTH, "depth": 2, "heads": HEADS}
    model = create_backbone(ViTConfig(**sizes, **{"classes": 0, "gelu": "exact", **parts})).eval()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(draw(tuple(parameter.shape), seed))
    trunk = VIT.write(model.config, model.state_dict())
    state = {**{f"trunk.{name}": tensor for name, tensor in trunk.items()}, **beside}
    vision = {"timm_model_name": "vit_tiny_patch8_32", "timm_drop": 0.1, "image_size": [24, 48], **vision}
    projected = beside.get("head.proj.weight", torch.empty(model.config.projection or WIDTH))
    told = {"model_cfg": {"embed_dim": len(projected), "vision_cfg": vision, "quick_gelu": True}}
    (folder / "open_clip_config.json").write_text(json.dumps(told))
    write(with_text_tower(state), folder / "open_clip_model.safetensors")
    return model


LINEAR = {"head.proj.weight": draw((OUT, WIDTH), 1)}
# fields of vision_cfg, tensors beside the trunk, and fields of our config
TRUNKS: dict[str, tuple[dict[str, Any], State, dict[str, Any]]] = {
    "SigLIP": ({"timm_pool": "map", "timm_proj": "none"}, {}, {"prefix": (), "pool": "map"}),
    "its head": ({"timm_pool": "token", "timm_proj": None}, {}, {"projection": OUT}),
    "a layer after it": ({"timm_pool": "token"}, LINEAR, {}),
    "the mean and a layer after it": ({}, LINEAR, {"prefix": (), "pool": "gap"}),
}


@each_row("kind", list(TRUNKS))
def test_a_tower_of_timm_is_read_by_its_name(kind, tmp_path):
    expected = write_trunk(tmp_path, *TRUNKS[kind])
    model, lines = read(tmp_path)
    images = draw((2, 3, 24, 48), 1000) * 5
    with torch.no_grad():
        features = expected.features(images)
        features = F.linear(features, LINEAR["head.proj.weight"]) if TRUNKS[kind][1] else features
        error = (model.backbone.features(images) - features).norm() / features.norm()
    assert error < 1e-6
    assert "timm's layout: exact GELU" in assumed_of(lines)  # whatever quick_gelu says
    assert model.preprocessing.mean == (0.48145466, 0.4578275, 0.40821073)
    assert not model.classes


def test_a_projection_with_a_bias_is_refused(tmp_path):
    bias = {"trunk.head.bias": torch.ones(OUT)}
    write_trunk(tmp_path, {"timm_pool": "token", "timm_proj": None}, bias, {"projection": OUT})
    with pytest.raises(CheckpointError, match="an image-text projection with a bias"):
        read(tmp_path)
    write_trunk(tmp_path, {"timm_pool": "token", "timm_proj_bias": True}, LINEAR, {})
    with pytest.raises(CheckpointError, match=r"vision_cfg\.timm_proj_bias=True"):
        read(tmp_path)


def test_files_of_timm_or_transformers_beside_those_of_open_clip_are_preferred(tmp_path):
    timm_folder()(write_folder(make_tower(), tmp_path, head_width=64))
    assert read(tmp_path)[0].provenance["layout"] == "timm"
    assert read(tmp_path / "open_clip_model.safetensors")[0].provenance["layout"] == "open_clip"
    (tmp_path / "model.safetensors").unlink()
    assert read(tmp_path)[0].provenance["layout"] == "open_clip"
