"""Google's .npz: every generation of names against a forward pass written from Flax's conventions in NumPy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy
import torch

from tests.each_row import each_row
from vitrail.errors import CheckpointError
from vitrail.models import configure, create_backbone
from vitrail.weights import load
from vitrail.weights.google import from_google, read_npz, to_google

WHERE = Path("ViT-B_16.npz")
WIDTH, HEADS, DEPTH, PATCH, SIDE, CLASSES, MLP = 24, 3, 2, 4, 3, 5, 40
Arrays = dict[str, np.ndarray]


def drawn(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Numbers of some size in every array."""
    draw = np.random.default_rng(0)
    return {
        name: (draw.normal(size=shape) * (0.3 if len(shape) > 1 else 0.5) + name.endswith("scale")).astype(np.float32)
        for name, shape in shapes.items()
    }


def attention(owner: str) -> dict[str, tuple[int, ...]]:
    into = {f"{owner}/{part}/kernel": (WIDTH, HEADS, WIDTH // HEADS) for part in ("query", "key", "value")}
    biases = {f"{owner}/{part}/bias": (HEADS, WIDTH // HEADS) for part in ("query", "key", "value")}
    return {**into, **biases, f"{owner}/out/kernel": (HEADS, WIDTH // HEADS, WIDTH), f"{owner}/out/bias": (WIDTH,)}


def norm(owner: str) -> dict[str, tuple[int, ...]]:
    return {f"{owner}/scale": (WIDTH,), f"{owner}/bias": (WIDTH,)}


def mlp(owner: str) -> dict[str, tuple[int, ...]]:
    first = {f"{owner}/Dense_0/kernel": (WIDTH, MLP), f"{owner}/Dense_0/bias": (MLP,)}
    return {**first, f"{owner}/Dense_1/kernel": (MLP, WIDTH), f"{owner}/Dense_1/bias": (WIDTH,)}


def a_file(
    *, cls: bool = True, slot: bool = True, table: bool = True, pooled: bool = False, hidden: bool = False
) -> Arrays:
    """A small ViT by big_vision's names, which is what `forward` computes with."""
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (PATCH, PATCH, 3, WIDTH),
        "embedding/bias": (WIDTH,),
        **norm("Transformer/encoder_norm"),
        "head/kernel": (WIDTH, CLASSES),
        "head/bias": (CLASSES,),
    }
    shapes |= {"cls": (1, 1, WIDTH)} if cls else {}
    shapes |= {"pos_embedding": (1, SIDE**2 + (cls and slot), WIDTH)} if table else {}
    shapes |= {"pre_logits/kernel": (WIDTH, WIDTH), "pre_logits/bias": (WIDTH,)} if hidden else {}
    for block in range(DEPTH):
        owner = f"Transformer/encoderblock_{block}/"
        shapes |= attention(owner + "MultiHeadDotProductAttention_0") | mlp(owner + "MlpBlock_0")
        shapes |= norm(owner + "LayerNorm_0") | norm(owner + "LayerNorm_1")
    if pooled:
        shapes |= {"MAPHead_0/probe": (1, 1, WIDTH), **norm("MAPHead_0/LayerNorm_0"), **mlp("MAPHead_0/MlpBlock_0")}
        shapes |= attention("MAPHead_0/MultiHeadDotProductAttention_0")
    return drawn(shapes)


def forward(w: Arrays, images: np.ndarray) -> np.ndarray:
    """Logits of images (B, H, W, C), with the kernels as Flax applies them."""

    def normed(x: np.ndarray, owner: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * w[f"{owner}/scale"] + w[f"{owner}/bias"]

    def attended(x: np.ndarray, y: np.ndarray, owner: str) -> np.ndarray:
        q, k, v = (
            np.einsum("btd,dhe->bthe", of, w[f"{owner}/{part}/kernel"]) + w[f"{owner}/{part}/bias"]
            for part, of in (("query", x), ("key", y), ("value", y))
        )
        weights = scipy.special.softmax(np.einsum("bqhe,bkhe->bhqk", q, k) / math.sqrt(WIDTH // HEADS), axis=-1)
        seen = np.einsum("bhqk,bkhe->bqhe", weights, v)
        return np.einsum("bqhe,hed->bqd", seen, w[f"{owner}/out/kernel"]) + w[f"{owner}/out/bias"]

    def thought(x: np.ndarray, owner: str) -> np.ndarray:
        x = x @ w[f"{owner}/Dense_0/kernel"] + w[f"{owner}/Dense_0/bias"]
        x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x @ w[f"{owner}/Dense_1/kernel"] + w[f"{owner}/Dense_1/bias"]

    rows, columns = images.shape[1] // PATCH, images.shape[2] // PATCH
    cut = images.reshape(len(images), rows, PATCH, columns, PATCH, -1)
    x = np.einsum("bhpwqc,pqcd->bhwd", cut, w["embedding/kernel"]) + w["embedding/bias"]
    x = x.reshape(len(images), rows * columns, WIDTH)
    table = w["pos_embedding"] if "pos_embedding" in w else sines(rows, columns)
    if "cls" in w:
        token = np.repeat(w["cls"], len(x), 0)
        x = (
            np.concatenate([token, x], 1) + table
            if table.shape[1] > x.shape[1]
            else np.concatenate([token, x + table], 1)
        )
    else:
        x = x + table
    for block in range(DEPTH):
        owner = f"Transformer/encoderblock_{block}/"
        y = normed(x, owner + "LayerNorm_0")
        x = x + attended(y, y, owner + "MultiHeadDotProductAttention_0")
        x = x + thought(normed(x, owner + "LayerNorm_1"), owner + "MlpBlock_0")
    x = normed(x, "Transformer/encoder_norm")
    if "MAPHead_0/probe" in w:
        x = attended(np.repeat(w["MAPHead_0/probe"], len(x), 0), x, "MAPHead_0/MultiHeadDotProductAttention_0")
        x = (x + thought(normed(x, "MAPHead_0/LayerNorm_0"), "MAPHead_0/MlpBlock_0"))[:, 0]
    else:
        x = x[:, 0] if "cls" in w else x.mean(1)
    if "pre_logits/kernel" in w:
        x = np.tanh(x @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    return x @ w["head/kernel"] + w["head/bias"]


def sines(rows: int, columns: int) -> np.ndarray:
    y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1) / 10000 ** np.linspace(0, 1, WIDTH // 4)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], 1)[None]


def first_names(w: Arrays) -> Arrays:
    """As the paper's own files have them."""
    names = {
        "pos_embedding": "Transformer/posembed_input/pos_embedding",
        "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
        "LayerNorm_1": "LayerNorm_2",
        "MlpBlock_0": "MlpBlock_3",
    }
    return {"/".join(names.get(part, part) for part in name.split("/")): array for name, array in w.items()}


def inside(w: Arrays, around: str) -> Arrays:
    """In a training's checkpoint, beside the optimiser's arrays."""
    return {**{around + name: array for name, array in w.items()}, "opt/count": np.zeros(())}


def scanned(w: Arrays) -> Arrays:
    """All blocks in one array."""
    start, blocks = "Transformer/encoderblock_", range(DEPTH)
    rest = {name: array for name, array in w.items() if not name.startswith(start)}
    names = [name.removeprefix(f"{start}0/") for name in w if name.startswith(f"{start}0/")]
    return {
        **rest,
        **{f"Transformer/encoderblock/{n}": np.stack([w[f"{start}{b}/{n}"] for b in blocks]) for n in names},
    }


FILES = {
    "the paper": (first_names(a_file(hidden=True)), a_file(hidden=True), "cls"),
    "AugReg": (first_names(a_file()), a_file(), "cls"),
    "Flax's later names": (a_file(), a_file(), "cls"),
    "a training's checkpoint": (inside(first_names(a_file()), "opt/target/"), a_file(), "cls"),
    "big_vision, class token": (inside(a_file(slot=False), "params/"), a_file(slot=False), "cls"),
    "big_vision, mean": (inside(a_file(cls=False), "params/"), a_file(cls=False), "gap"),
    "big_vision, one of two towers": (
        {**inside(a_file(cls=False, pooled=True), "params/img/"), "params/txt/head/bias": np.zeros(3)},
        a_file(cls=False, pooled=True),
        "map",
    ),
    "big_vision, scan": (inside(scanned(a_file(cls=False)), "params/"), a_file(cls=False), "gap"),
}


def image() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, PATCH * SIDE, PATCH * SIDE, 3)).astype(np.float32)


@each_row("kind", FILES)
def test_the_converted_model_answers_as_flax_does(kind):
    arrays, plain, pool = FILES[kind]
    config, state = from_google(arrays, WHERE)
    assert (config.width, config.depth, config.heads, config.mlp_width, config.classes) == (24, 2, 3, 40, 5)
    assert (config.image_size, config.patch_size, config.pool) == ((12, 12), (4, 4), pool)
    assert (config.gelu, config.norm_eps, config.position_resize) == ("tanh", 1e-6, "paper")
    backbone = create_backbone(config)
    backbone.load_state_dict(state)
    found = backbone.eval()(torch.from_numpy(image()).permute(0, 3, 1, 2)).detach().numpy()
    np.testing.assert_allclose(found, forward(plain, image()), rtol=1e-4, atol=2e-4)


def test_without_a_table_positions_are_computed():
    arrays = a_file(cls=False, table=False)
    config, state = from_google(inside(arrays, "params/"), WHERE)
    assert (config.positions, config.image_size) == ("sincos2d", (224, 224))
    backbone = create_backbone(config)
    backbone.load_state_dict(state)
    found = backbone.eval()(torch.from_numpy(image()).permute(0, 3, 1, 2)).detach().numpy()
    np.testing.assert_allclose(found, forward(arrays, image()), rtol=1e-4, atol=2e-4)


@each_row("kind", ["the paper", "AugReg", "big_vision, mean", "big_vision, one of two towers"])
def test_there_and_back_changes_no_bit(kind):
    arrays, _, _ = FILES[kind]
    config, state = from_google(arrays, WHERE)
    written = to_google(config, state)
    kept = {
        name.replace("img/", ""): array for name, array in arrays.items() if "txt" not in name and name != "opt/count"
    }
    assert written.keys() == kept.keys()
    for name, array in kept.items():
        np.testing.assert_array_equal(written[name], array, err_msg=name, strict=True)
    again, tensors = from_google(written, WHERE)
    assert again == config
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in state.items())


@each_row(
    "changes",
    [
        {"registers": 2},
        {"layer_scale": 0.1},
        {"qkv_bias": False},
        {"prefix": ("cls", "dist")},
        {"pool": "gap"},
        {"positions": "relative"},
        {"positions_at": "every"},
        {"window": 2, "global_blocks": 1, "depth": 2},
    ],
)
def test_models_without_a_google_counterpart_are_refused(changes):
    config = configure("vit-ti16", **{"depth": 1, **changes})
    with pytest.raises(CheckpointError, match="no counterpart"):
        to_google(config, create_backbone(config).state_dict())


def test_a_file_is_loaded_with_the_numerics_of_the_paper(tmp_path):
    np.savez(tmp_path / "ti.npz", **FILES["AugReg"][0])
    said: list[str] = []
    model = load(tmp_path / "ti.npz", log=said.append)
    assert model.classes == ("0", "1", "2", "3", "4")
    assert model.preprocessing.resize == "squash"
    assert "tanh GELU" in said[1]
    pictures = (127.5 * (image().clip(-1, 1) + 1)).round().astype(np.uint8)
    logits = model(model.preprocess(list(pictures))).detach().numpy()
    np.testing.assert_allclose(logits, forward(FILES["AugReg"][1], pictures / 127.5 - 1), rtol=1e-4, atol=2e-4)


def test_bf16_arrays_are_widened(tmp_path):
    exact = torch.randn(3, 5).bfloat16()
    np.savez(tmp_path / "half.npz", x=exact.view(torch.int16).numpy().view("V2"))
    np.testing.assert_array_equal(read_npz(tmp_path / "half.npz")["x"], exact.float().numpy())


def test_wrong_shapes_and_foreign_arrays_are_named(tmp_path):
    arrays = FILES["AugReg"][0]
    with pytest.raises(CheckpointError, match=r"the stem of .* is not the ViT paper's"):
        from_google({**arrays, "gn_root/scale": np.ones(3)}, WHERE)
    np.savez(tmp_path / "odd.npz", **{name: array for name, array in arrays.items() if "LayerNorm_2" not in name})
    with pytest.raises(CheckpointError, match=r"missing     blocks\.0\.norm2\.weight 24"):
        load(tmp_path / "odd.npz")
    with pytest.raises(CheckpointError, match="square"):
        from_google({**arrays, "Transformer/posembed_input/pos_embedding": np.ones((1, 6, WIDTH))}, WHERE)
    np.savez(tmp_path / "odd.npz", **{**arrays, "head/bias": np.ones(7, np.float32)})
    with pytest.raises(CheckpointError, match=r"head\.bias"):
        load(tmp_path / "odd.npz")
    key = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/key/kernel"
    np.savez(tmp_path / "odd.npz", **{**arrays, key: np.ones((WIDTH + 1, HEADS, WIDTH // HEADS), np.float32)})
    with pytest.raises(CheckpointError, match=r"blocks\.1\.attn\.k\.weight 24x25"):
        load(tmp_path / "odd.npz")
