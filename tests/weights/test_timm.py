"""timm's layout: a forward pass written here by timm's rules gives what the converted model gives; the way back is exact."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.each_row import each_row
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.open import open_data
from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig, configure, create_backbone
from vitrail.tasks.classification import metric as metrics
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights import load
from vitrail.weights.timm import as_timm, parse_preprocessing
from vitrail.weights.timm.vit import VIT

WHERE = Path("weights.safetensors")
WIDTH, HEADS, DEPTH, PATCH, SIDE, CLASSES = 192, 3, 2, 4, 3, 5


def a_state(
    *, cls: bool = True, dist: bool = False, registers: int = 0, slots: bool = True, scale: bool = False
) -> dict:
    """A timm state dict (WIDTH is one whose heads are known), with numbers of some size in every tensor."""
    prefix = cls + dist
    shapes: dict[str, tuple[int, ...]] = {
        **({"cls_token": (1, 1, WIDTH)} if cls else {}),
        **(
            {"dist_token": (1, 1, WIDTH), "head_dist.weight": (CLASSES, WIDTH), "head_dist.bias": (CLASSES,)}
            if dist
            else {}
        ),
        **({"reg_token": (1, registers, WIDTH)} if registers else {}),
        "pos_embed": (1, SIDE**2 + (prefix + registers if slots else 0), WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "head.weight": (CLASSES, WIDTH),
        "head.bias": (CLASSES,),
    }
    for block in range(DEPTH):
        for name, shape in {
            "norm1.weight": (WIDTH,),
            "norm1.bias": (WIDTH,),
            "attn.qkv.weight": (3 * WIDTH, WIDTH),
            "attn.qkv.bias": (3 * WIDTH,),
            "attn.proj.weight": (WIDTH, WIDTH),
            "attn.proj.bias": (WIDTH,),
            "norm2.weight": (WIDTH,),
            "norm2.bias": (WIDTH,),
            "mlp.fc1.weight": (100, WIDTH),
            "mlp.fc1.bias": (100,),
            "mlp.fc2.weight": (WIDTH, 100),
            "mlp.fc2.bias": (WIDTH,),
            **({"ls1.gamma": (WIDTH,), "ls2.gamma": (WIDTH,)} if scale else {}),
        }.items():
            shapes[f"blocks.{block}.{name}"] = shape
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator) * (0.1 if len(shape) == 2 else 0.5)
        for name, shape in shapes.items()
    }


def forward(state: dict[str, Tensor], images: Tensor, *, pool: str = "token") -> Tensor:
    """Logits by timm's rules (timm/models/vision_transformer.py, deit.py), written without vitrail."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    x = F.conv2d(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], PATCH).flatten(2).mT
    before = [state[name].expand(len(x), -1, -1) for name in ("cls_token", "dist_token", "reg_token") if name in state]
    if state["pos_embed"].shape[1] == x.shape[1]:
        x = torch.cat([*before, x + state["pos_embed"]], 1)
    else:
        x = torch.cat([*before, x], 1) + state["pos_embed"]
    for block in range(DEPTH):
        scale1, scale2 = (state.get(f"blocks.{block}.ls{n}.gamma", torch.ones(())) for n in (1, 2))
        q, k, v = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in linear(norm(x, f"blocks.{block}.norm1"), f"blocks.{block}.attn.qkv").chunk(3, 2)
        )
        y = ((q @ k.mT / 8).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + scale1 * linear(y, f"blocks.{block}.attn.proj")
        y = F.gelu(linear(norm(x, f"blocks.{block}.norm2"), f"blocks.{block}.mlp.fc1"))
        x = x + scale2 * linear(y, f"blocks.{block}.mlp.fc2")
    x = norm(x, "norm")
    if pool == "avg":
        return linear(x[:, -(SIDE**2) :].mean(1), "head")
    if "head_dist.weight" in state:
        return (linear(x[:, 0], "head") + linear(x[:, 1], "head_dist")) / 2
    return linear(x[:, 0], "head")


KINDS = {
    "plain": {},
    "distilled": {"dist": True},
    "DeiT III": {"slots": False, "scale": True},
    "registers without slots": {"registers": 4, "slots": False, "scale": True},
    "registers with slots": {"registers": 2},
    "distilled with registers": {"dist": True, "registers": 1},
}


@each_row("kind", KINDS)
def test_the_converted_model_answers_as_timm_does(kind):
    state = a_state(**KINDS[kind])
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    config, tensors = VIT.read(state, WHERE)
    backbone = create_backbone(config)
    backbone.load_state_dict(tensors)
    torch.testing.assert_close(backbone.eval()(images), forward(state, images), atol=1e-4, rtol=1e-4)
    assert (config.image_size, config.patch_size) == ((12, 12), (4, 4))
    assert (config.width, config.depth, config.heads, config.mlp_width, config.classes) == (192, 2, 3, 100, 5)


@each_row("cls", [True, False])
def test_without_a_class_token_or_where_asked_the_patches_are_averaged(cls):
    state = a_state(cls=cls)
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    config, tensors = VIT.read(state, WHERE, {"global_pool": "avg"} if cls else {})
    backbone = create_backbone(config)
    backbone.load_state_dict(tensors)
    torch.testing.assert_close(backbone.eval()(images), forward(state, images, pool="avg"), atol=1e-4, rtol=1e-4)


@each_row("kind", sorted(KINDS.keys() - {"distilled with registers"}))  # which timm itself has not
def test_the_way_back_gives_the_same_answers(kind):
    state = a_state(**KINDS[kind])
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    config, tensors = VIT.read(state, WHERE)
    again, told = VIT.write(config, tensors), VIT.arguments(config)
    torch.testing.assert_close(forward(again, images), forward(state, images), atol=1e-4, rtol=1e-4)
    assert again.keys() == state.keys()
    assert told["global_pool"] == "token"
    assert told["act_layer"] == "gelu"
    if kind != "registers with slots":
        assert all(torch.equal(again[name], state[name]) for name in state)
    once_more = VIT.read(again, WHERE, told)
    assert once_more[0] == config
    assert all(torch.equal(once_more[1][name], tensors[name]) for name in tensors)


def test_the_given_state_is_left_as_it_was():
    state = a_state(registers=2)
    before = {name: tensor.clone() for name, tensor in state.items()}
    VIT.read(state, WHERE)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in state)


@each_row(
    "changes",
    [
        {"pre_logits": True},
        {"positions": "sincos2d"},
        {"positions": "relative"},
        {"positions_at": "every"},
        {"window": 2, "global_blocks": 1, "depth": 2},
        {"pool": "cls+gap"},
        {"skips": False},
        {"prefix": ("cls", "dist"), "registers": 2},
        {"prefix": ("cls", "dist"), "pool": "gap"},
        {"pad": True, "image_size": 40},
    ],
)
def test_models_without_a_timm_counterpart_are_refused(changes):
    config = configure("vit-ti16", **{"depth": 1, "image_size": 32, **changes})
    with pytest.raises(CheckpointError, match="no counterpart"):
        VIT.arguments(config)


@each_row(
    "name, tensor, words",
    [
        ("patch_embed.proj.weight", None, "not a plain ViT in timm's layout: it has no 'patch_embed.proj.weight'"),
        ("blocks.0.attn.qkv.weight", torch.zeros(3), "'blocks.0.attn.qkv.weight' of 2 axes"),
        ("pos_embed", None, "no 'pos_embed'"),
        (
            "pos_embed",
            torch.zeros(1, 12, 192),
            "12 positions for patches and up to 1 other tokens, which is not a square",
        ),
        ("pos_embed", torch.zeros(10, 192), "'pos_embed' of shape"),
        ("cls_token", torch.zeros(1, 1, 96), r"'cls_token' of shape \(1, 1, 96\)"),
        ("blocks.x.norm1.weight", torch.zeros(192), "cannot be built"),
        ("patch_embed.proj.weight", torch.zeros(200, 3, 4, 4), "'cls_token' of shape"),
    ],
)
def test_models_other_than_plain_vits_are_refused(name, tensor, words):
    state = a_state()
    state.pop(name, None)
    if tensor is not None:
        state[name] = tensor
    with pytest.raises(CheckpointError, match=words):
        VIT.read(state, WHERE)


def test_heads_that_no_shape_shows_must_be_stated():
    narrow = {name: each[..., :32].clone() if each.ndim == 3 else each for name, each in a_state().items()}
    narrow["patch_embed.proj.weight"] = torch.zeros(32, 3, 4, 4)
    with pytest.raises(CheckpointError, match="has width 32, and its number of attention heads cannot be inferred"):
        VIT.read(narrow, WHERE)
    assert VIT.read(narrow, WHERE, {"num_heads": 4})[0].heads == 4
    with pytest.raises(CheckpointError, match="heads is 5"):
        VIT.read(narrow, WHERE, {"num_heads": 5})
    with pytest.raises(CheckpointError, match="pools by 'avgmax'"):
        VIT.read(a_state(), WHERE, {"global_pool": "avgmax"})


@pytest.mark.slow
def test_no_broken_file_is_half_read(tmp_path):
    """Every tensor in turn is taken away, cut, made integer or added to: each is refused, by its name."""
    state = a_state(registers=1)
    path = tmp_path / "weights.safetensors"
    said: list[str] = []
    for name, tensor in state.items():
        others = {key: each for key, each in state.items() if key != name}
        cut = tensor[:-1].clone()
        for broken in (
            others,
            {**others, name: cut},
            {**others, name: tensor.int()},
            {**state, f"{name}.more": tensor.clone()},
        ):
            save_file(broken, path)
            with pytest.raises(CheckpointError):
                load(path, log=said.append)
    assert len(state) * 4 > 100


def test_the_preprocessing_of_a_bare_file_is_timms_and_is_said_to_be_assumed():
    config, _ = VIT.read(a_state(), WHERE)
    found, assumed = parse_preprocessing({}, config, WHERE)
    assert found == Preprocessing.timm(12)
    assert assumed == [
        "mean [0.5, 0.5, 0.5]",
        "std [0.5, 0.5, 0.5]",
        "interpolation bicubic",
        "crop_pct 0.9",
        "crop_mode center",
    ]


def test_a_stated_preprocessing_is_taken():
    config, _ = VIT.read(a_state(), WHERE)
    stated = {
        "mean": [0.1, 0.2, 0.3],
        "std": [1, 2, 3],
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "crop_mode": "squash",
    }
    found, assumed = parse_preprocessing({"pretrained_cfg": stated}, config, WHERE)
    assert found == Preprocessing(
        size=(12, 12), resize="squash", interpolation="bilinear", mean=(0.1, 0.2, 0.3), std=(1, 2, 3)
    )
    assert assumed == []
    for wrong in (
        {"crop_pct": 0},
        {"crop_pct": 1e-300},
        {"crop_pct": float("nan")},
        {"mean": 5},
        {"interpolation": "best"},
        {"crop_mode": "border"},
        {"crop_pct": "most"},
    ):
        with pytest.raises(CheckpointError):
            parse_preprocessing({"pretrained_cfg": {**stated, **wrong}}, config, WHERE)


def a_folder(folder: Path, **changes: object) -> Path:
    """A folder as timm's save_for_hf writes it."""
    folder.mkdir()
    save_file(a_state(), folder / "model.safetensors")
    described = {
        "architecture": "vit_tiny_patch4_12",
        "num_classes": 5,
        "num_features": 192,
        "global_pool": "token",
        "label_names": ["n1", "n2", "n3", "n4", "n5"],
        "pretrained_cfg": {
            "input_size": [3, 12, 12],
            "interpolation": "bicubic",
            "crop_pct": 0.75,
            "crop_mode": "center",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "num_classes": 5,
        },
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def test_a_folder_that_timm_saved_is_read_with_its_names_and_preprocessing(tmp_path):
    folder = a_folder(tmp_path / "hub")
    said: list[str] = []
    model = load(folder, log=said.append)
    assert model.classes == ("n1", "n2", "n3", "n4", "n5")
    assert model.preprocessing == Preprocessing.timm(
        12, crop_fraction=0.75, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    assert said == ["assumed  timm's layout: exact GELU, LayerNorm eps 1e-06, 3 heads"]
    assert load(folder / "model.safetensors", log=said.append).classes == model.classes


def test_arguments_of_the_timm_model_are_respected(tmp_path):
    told = {"model_args": {"num_heads": 6, "act_layer": "gelu_tanh"}, "global_pool": "avg", "label_names": None}
    said: list[str] = []
    model = load(a_folder(tmp_path / "hub", **told), log=said.append)
    assert (model.config.heads, model.config.gelu, model.config.pool) == (6, "tanh", "gap")
    assert model.classes == ("0", "1", "2", "3", "4")
    assert any("carries no class names" in line for line in said)
    with pytest.raises(CheckpointError, match="swiglu"):
        load(a_folder(tmp_path / "other", model_args={"act_layer": "swiglu"}))


def test_a_checkpoint_with_imagenets_outputs_gets_names_that_people_can_read(tmp_path):
    model = create_classifier(ViTConfig(patch_size=4, width=192, depth=1, heads=3, mlp_width=16), image_size=8)
    save_file(as_timm(model)[0], tmp_path / "bare.safetensors")
    said: list[str] = []
    assert load(tmp_path / "bare.safetensors", log=said.append).classes[288] == "leopard"
    assert said[0] == (
        "assumed  bare.safetensors carries no class names: "
        "its 1,000 outputs get those of ImageNet-1k (--classes FILE gives others)"
    )
    names = tmp_path / "names.txt"
    names.write_text("\n".join(map(str, range(1_000))))
    named = load(tmp_path / "bare.safetensors", classes_file=names, log=said.append)
    assert named.classes[288] == "288"
    assert "class names" not in "".join(said[1:])


@pytest.fixture(scope="module")
def expected(real_data) -> tuple[list[Path], Tensor, Tensor, dict]:
    """The 300 images, their golden logits, their targets, and the figures."""
    folder = real_data / "imagenet_val"
    with open(folder / "labels.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    classes = (folder / "classes.txt").read_text().split()
    logits = load_file(folder / "golden_logits.safetensors")
    targets = torch.tensor([classes.index(row["label"]) for row in rows])
    figures = json.loads((folder / "expected.json").read_text())
    return [folder / row["path"] for row in rows], next(iter(logits.values())), targets, figures


@pytest.mark.slow
def test_the_real_checkpoint_gives_the_golden_logits(real_data, expected):
    paths, golden, *_ = expected
    said: list[str] = []
    names = real_data / "imagenet_val" / "classes.txt"
    model = load(real_data / "vit_tiny_patch16_224.safetensors", classes_file=names, log=said.append)
    logits = model(model.preprocess([Image.open(path) for path in paths[:8]]))
    torch.testing.assert_close(logits.detach(), golden[:8], atol=1e-3, rtol=0)
    answers = model.predict([path.read_bytes() for path in paths[:8]])
    assert [answer.label for answer in answers] == [model.classes[place] for place in golden[:8].argmax(1)]
    assert len(said) == 1
    assert "crop_pct 0.9" in said[0]


@pytest.mark.slow
def test_the_real_checkpoint_reaches_its_figures_on_all_300_images(real_data, expected):
    paths, golden, targets, figures = expected
    model = load(real_data / "vit_tiny_patch16_224.safetensors", log=lambda line: None)
    with torch.inference_mode():
        parts = [
            model(model.preprocess([path.read_bytes() for path in paths[at : at + 50]])) for at in range(0, 300, 50)
        ]
    logits = torch.cat(parts)
    torch.testing.assert_close(logits, golden, atol=1e-3, rtol=0)
    labelled = open_data(real_data / "imagenet_val" / "labels.csv", classes=model.classes, validation=0).train
    assert labelled.targets.tolist() == targets.tolist()  # labelled by WordNet id, the model's classes have names
    found = metrics.summarize_grades(metrics.grade(logits, targets))
    assert round(300 * found["top1"]) == 218
    assert found["top1"] == pytest.approx(figures["top1"], abs=1e-6)
    assert found["top5"] == pytest.approx(figures["top5"], abs=1e-6)
