"""EoMT as transformers writes it: read by its names from tensors made here, written bit for bit, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from tests.each_row import each_row
from tests.models.conftest import shaken
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, VitrailError
from vitrail.models import ViTConfig
from vitrail.runtime.progress import log_nothing
from vitrail.tasks import QueryInstances, create_task
from vitrail.verbs.convert.layouts import write_layout
from vitrail.weights import load
from vitrail.weights.huggingface import FAMILIES, PROCESSOR, read_huggingface
from vitrail.weights.native import save_model

FOLDER = Path("folder")
D, QUERIES, CLASSES, HIDDEN, GATED = 12, 5, 3, 24, 32  # 32 = 2/3 of 4 D
CONFIG = {
    "hidden_size": D,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 32,
    "patch_size": 8,
    "num_blocks": 2,
    "num_upscale_blocks": 1,
    "num_queries": QUERIES,
    "num_register_tokens": 2,
    "id2label": {"0": "ant", "1": "bee", "2": "cat"},
}
KINDS = {
    "eomt": {"model_type": "eomt", "mlp_ratio": 2},
    "eomt without registers": {"model_type": "eomt", "mlp_ratio": 2, "num_register_tokens": 0},
    "eomt with a SwiGLU": {"model_type": "eomt", "mlp_ratio": 4, "use_swiglu_ffn": True},
    "eomt_dinov3": {
        "model_type": "eomt_dinov3",
        "intermediate_size": HIDDEN,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
}
PROCESSING = {
    "image_processor_type": "EomtImageProcessor",
    "size": {"shortest_edge": 32, "longest_edge": 32},
    "do_pad": True,
}


def make_tensors(kind):
    """The tensors of a kind by the names and shapes of transformers, with numbers of some size in each."""
    described = {**CONFIG, **KINDS[kind]}
    rotary, gated = kind == "eomt_dinov3", "use_swiglu_ffn" in described
    shapes = {
        "attn_mask_probs": (2,),
        "embeddings.cls_token": (1, 1, D),
        "embeddings.register_tokens": (1, described["num_register_tokens"], D),
        "query.weight": (QUERIES, D),
        "upscale_block.block.0.conv1.weight": (D, D, 2, 2),
        "upscale_block.block.0.conv1.bias": (D,),
        "upscale_block.block.0.conv2.weight": (D, 1, 3, 3),
    }
    layers = {"class_predictor": (CLASSES + 1, D), **{f"mask_head.fc{place}": (D, D) for place in (1, 2, 3)}}
    norms = ["layernorm", "upscale_block.block.0.layernorm2d"]
    projection = "embeddings.patch_embeddings" + ("" if rotary else ".projection")
    layers[projection] = (D, 3, 8, 8)
    if not rotary:
        shapes["embeddings.position_embeddings.weight"] = (16, D)
    for block in range(3):
        inside = f"layers.{block}."
        norms += [f"{inside}norm1", f"{inside}norm2"]
        shapes |= {f"{inside}layer_scale{place}.lambda1": (D,) for place in (1, 2)}
        names = ("q_proj", "k_proj", "v_proj", "o_proj" if rotary else "out_proj")
        layers |= {f"{inside}attention.{name}": (D, D) for name in names}
        first, second = ("up_proj", "down_proj") if rotary or gated else ("fc1", "fc2")
        width = GATED if gated else HIDDEN
        layers |= {f"{inside}mlp.{first}": (width, D), f"{inside}mlp.{second}": (D, width)}
        layers |= {f"{inside}mlp.gate_proj": (width, D)} if gated else {}
    shapes |= {f"{name}.{part}": (D,) for name in norms for part in ("weight", "bias")}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    if rotary:
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith("k_proj.bias")}
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in sorted(shapes.items())}
    return {**tensors, "attn_mask_probs": torch.zeros(2), "criterion.empty_weight": torch.tensor([1.0, 1, 1, 0.1])}


def make_folder(folder, kind="eomt", *, processor=PROCESSING, **changes):
    folder.mkdir(exist_ok=True)
    save_file(make_tensors(kind), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**CONFIG, **KINDS[kind], **changes}))
    (folder / PROCESSOR).write_text(json.dumps(processor))
    return folder


def draw(size=(32, 32)):
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@each_row("kind", KINDS)
def test_a_folder_is_read_and_written_again_bit_for_bit(kind, tmp_path):
    lines = []
    model = load(make_folder(tmp_path / "theirs", kind), log=lines.append)
    assert isinstance(model, QueryInstances) and model.classes == ("ant", "bee", "cat")
    assert (model.queries, model.query_blocks, model.upscales) == (QUERIES, 2, 1)
    assert model.config.registers == {**CONFIG, **KINDS[kind]}["num_register_tokens"]
    assert model.preprocessing.resize == "fit" and model.preprocessing.size == (32, 32)
    assert len(lines) == 2 and "the task instances" in lines[0] and "mean colour" in lines[0]
    assert lines[1].endswith("1 tensors: criterion.empty_weight")
    model.classes = ("x", "y", "z")
    save_model(tmp_path / "native", model)
    converted = write_layout(tmp_path / "native", tmp_path / "again", "huggingface")
    assert converted.difference == converted.alone == 0 and not converted.unsaid
    expected, found = make_tensors(kind), load_file(tmp_path / "again" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    fields = {**CONFIG, **KINDS[kind], "id2label": {"0": "x", "1": "y", "2": "z"}, "task": "instances"}
    assert {name: written[name] for name in fields} == fields
    assert written["architectures"] == [f"Eomt{'Dinov3' * (kind == 'eomt_dinov3')}ForUniversalSegmentation"]
    processor = json.loads((tmp_path / "again" / PROCESSOR).read_text())
    assert {name: processor[name] for name in PROCESSING} == PROCESSING
    again = load(tmp_path / "again", log=lines.append)
    assert again.describe() == model.describe() and again.preprocessing == model.preprocessing
    assert torch.equal(again(draw()), model(draw()))


def test_a_swiglu_under_the_names_of_older_versions_is_the_same(tmp_path):
    expected = load(make_folder(tmp_path, "eomt with a SwiGLU"), log=log_nothing)(draw())
    tensors = load_file(tmp_path / "model.safetensors")
    for block in range(3):
        inside = f"layers.{block}.mlp."
        for part in ("weight", "bias"):
            gate, value = (tensors.pop(f"{inside}{name}.{part}") for name in ("gate_proj", "up_proj"))
            tensors[f"{inside}weights_in.{part}"] = torch.cat([gate, value])
            tensors[f"{inside}weights_out.{part}"] = tensors.pop(f"{inside}down_proj.{part}")
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path, log=log_nothing)(draw()), expected)


@torch.no_grad()
def test_the_map_is_enlarged_by_the_transposed_convolution(tmp_path):
    upscale = load(make_folder(tmp_path), log=log_nothing).own["head"].upscale[0]
    tensors = {name.removeprefix("upscale_block.block.0."): tensor for name, tensor in make_tensors("eomt").items()}
    x = torch.randn(2, D, 4, 6, generator=torch.Generator().manual_seed(1))
    y = F.gelu(F.conv_transpose2d(x, tensors["conv1.weight"], tensors["conv1.bias"], stride=2))
    y = F.conv2d(y, tensors["conv2.weight"], padding=1, groups=D).movedim(1, -1)
    y = F.layer_norm(y, (D,), tensors["layernorm2d.weight"], tensors["layernorm2d.bias"], 1e-6).movedim(-1, 1)
    torch.testing.assert_close(upscale(x), y, atol=1e-5, rtol=1e-5)


@each_row("kind", ["eomt", "eomt_dinov3"])
def test_other_sizes_need_not_be_square(kind, tmp_path):
    model = load(make_folder(tmp_path, kind), image_size=(24, 56), log=log_nothing)
    classes, masks = model.unpack(model(draw((24, 56))))
    assert classes.shape == (2, 1, QUERIES, CLASSES + 1) and masks.shape == (2, 1, QUERIES, 6, 14)
    assert model.preprocessing.size == (24, 56)
    with torch.no_grad():
        assert len(model.decode(model(draw((24, 56))))) == 2


def described(classes, *, processor=PROCESSING, **fields):
    """The task that is read for a head of so many classes, and what was assumed."""
    tensors = make_tensors("eomt")
    tensors |= {"class_predictor.weight": torch.ones(classes + 1, D), "class_predictor.bias": torch.ones(classes + 1)}
    config = {**CONFIG, **KINDS["eomt"], "id2label": None, **fields}
    weights = read_huggingface(tensors, config, processor, FOLDER)
    return weights.task, [each for each in weights.assumed if "task" in each or "things" in each or "windows" in each]


WINDOWS = {**PROCESSING, "do_pad": False, "do_split_image": True, "size": {"shortest_edge": 32, "longest_edge": None}}


def test_the_task_is_that_of_the_authors_models_or_the_one_that_is_stated():
    task, assumed = described(133)
    assert task["task"] == "panoptic" and task["things"] == [True] * 80 + [False] * 53 and task["threshold"] == 0.8
    assert len(assumed) == 2 and "the first 80 of 133 classes" in assumed[1]
    task, assumed = described(150)
    assert task["task"] == "panoptic" and task["things"] == [True] * 150 and len(assumed) == 2
    task, assumed = described(19, processor=WINDOWS)
    assert task["task"] == "segmentation" and "things" not in task and len(assumed) == 2
    task, assumed = described(80)
    assert task["task"] == "instances" and "things" not in task and len(assumed) == 1
    task, assumed = described(3, task="panoptic", things=[True, False, True])
    assert task["task"] == "panoptic" and task["things"] == [True, False, True] and not assumed
    assert described(133, task="instances")[0]["task"] == "instances"
    with pytest.raises(CheckpointError, match="it has the task 'semantic'"):
        described(3, task="semantic")


def test_masks_of_attention_that_transformers_would_apply_are_told(tmp_path):
    make_folder(tmp_path)
    tensors = {**make_tensors("eomt"), "attn_mask_probs": torch.tensor([0.0, 0.5])}
    save_file(tensors, tmp_path / "model.safetensors")
    lines = []
    model = load(tmp_path, log=lines.append)
    assert "attn_mask_probs are above 0" in lines[0]
    assert torch.equal(model.own["head"].masking, tensors["attn_mask_probs"])


def test_a_description_of_other_weights_or_of_another_head_is_ignored(tmp_path):
    save_model(tmp_path / "native", load(make_folder(tmp_path / "theirs"), log=log_nothing))
    write_layout(tmp_path / "native", tmp_path / "again", "huggingface")
    lines = []
    load(tmp_path / "again", log=lines.append)
    assert not any(line.startswith("assumed") for line in lines)
    tensors = load_file(tmp_path / "again" / "model.safetensors")
    save_file({**tensors, "query.weight": 2 * tensors["query.weight"]}, tmp_path / "again" / "model.safetensors")
    load(tmp_path / "again", log=lines.append)
    assert any("was ignored" in line for line in lines)


# Networks of our own.

OURS = {"image_size": 32, "patch_size": 8, "depth": 3, "width": D, "heads": 3, "mlp_width": HIDDEN, "gelu": "exact"}


def create_ours(**changes):
    arguments = {"classes": ("ant", "bee"), "queries": 4, "query_blocks": changes.pop("query_blocks", 2)}
    model = shaken(create_task(QueryInstances, ViTConfig(**{**OURS, **changes}), arguments)).eval()
    model.own["head"].masking.fill_(0.5)
    model.preprocessing = Preprocessing(size=model.config.image_size, resize="fit")
    return model


@pytest.mark.slow
@each_row(
    "changes",
    [
        {},
        {"positions": "sincos2d"},
        {"positions": "none", "layer_scale": 0.1},
        {"prefix_positions": False, "registers": 1, "pool": "cls+gap"},
        {"mlp": "swiglu", "mlp_width": GATED, "initial": "truncated"},
        {"rope": "dinov3", "positions": "none", "qkv_bias": "qv", "initial": "truncated"},
    ],
)
def test_a_model_of_ours_is_written_as_one_that_computes_the_same(changes, tmp_path):
    model = create_ours(**changes)
    save_model(tmp_path / "native", model)
    lines = []
    converted = write_layout(tmp_path / "native", tmp_path / "theirs", "huggingface", log=lines.append)
    assert not converted.unsaid and converted.difference == 0
    assert any("a table" in line for line in lines) == (changes.get("positions") == "sincos2d")
    again = load(tmp_path / "theirs", log=log_nothing)
    torch.testing.assert_close(again(draw()), model(draw()), atol=1e-5, rtol=1e-5)
    assert again.describe() == model.describe()


@each_row(
    "words, changes",
    {
        "an image that is not square": {"image_size": (32, 24)},
        "a patch that is not square": {"patch_size": (8, 4)},
        "gelu='tanh'": {"gelu": "tanh"},
        r"the prefix \(\)": {"prefix": (), "pool": "gap"},
        "pool='map'": {"pool": "map"},
        "qkv_bias=False": {"qkv_bias": False},
        "a SwiGLU beside RoPE": {"rope": "dinov3", "positions": "none", "mlp": "swiglu", "initial": "truncated"},
        "rope='eva02'": {"rope": "eva02", "initial": "truncated"},
        "windows of 2 patches": {"window": 2, "global_blocks": 1, "query_blocks": 1},
        "norm='rms'": {"norm": "rms"},
        "a stem of convolutions": {"stem": (), "stem_width": 32},
        "padding": {"pad": True, "image_size": 30},
    }.items(),
)
def test_a_network_that_transformers_has_not_is_refused(words, changes, tmp_path):
    save_model(tmp_path / "native", create_ours(**changes))
    with pytest.raises(CheckpointError, match=words):
        write_layout(tmp_path / "native", tmp_path / "theirs", "huggingface")
    assert not (tmp_path / "theirs").exists()


# Files that are wrong.


@pytest.mark.slow
def test_no_broken_file_is_half_read(tmp_path):
    """Every tensor of the head and the first block in turn is taken away, cut, flattened or added to."""
    path = make_folder(tmp_path, "eomt with a SwiGLU") / "model.safetensors"
    tensors = make_tensors("eomt with a SwiGLU")
    for name, tensor in tensors.items():
        if name.startswith(("criterion.", "layers.1.", "layers.2.")):
            continue
        others = {key: each for key, each in tensors.items() if key != name}
        changed = [tensor[..., :-1].clone(), tensor.reshape(-1)[:1].clone().reshape(())]
        more = {**tensors, f"{name}.more": tensor.clone()}
        for broken in (others, *({**others, name: each} for each in changed), more):
            save_file(broken, path)
            with pytest.raises(VitrailError):
                load(tmp_path, log=log_nothing)


ODD = ("x", "", -1, 0.5, float("nan"), [], {}, True, 10**30, [10**30], ["x"] * 4, [[1]])


@pytest.mark.slow
@each_row("kind", ["eomt", "eomt_dinov3"])
def test_no_odd_value_of_a_field_is_more_than_an_error(kind):
    config, tensors, refused = {**CONFIG, **KINDS[kind]}, make_tensors(kind), 0
    names = [*FAMILIES[kind].defaults, "id2label", "vitrail", "task", "things"]
    if kind == "eomt":
        names = [name for name in names if name not in FAMILIES["eomt_dinov3"].defaults]
    odd = [({**config, name: value}, PROCESSING) for name in names for value in ODD]
    if kind == "eomt":
        odd += [(config, {**PROCESSING, name: value}) for name in (*PROCESSING, "do_split_image") for value in ODD]
        odd += [(config, {**PROCESSING, "size": {"shortest_edge": value}}) for value in ODD]
    for fields, processing in odd:
        try:
            weights = read_huggingface(dict(tensors), fields, processing, FOLDER)
            weights.build_model(FOLDER, log_nothing, has_names=True, stated=())
        except VitrailError:
            refused += 1
    assert refused > len(odd) / 3
