"""Networks in checkpoints of training programs: found under any prefix, in any container, with what is beside them named."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save_file

from tests.each_row import each_row
from tests.weights.hostile_pickles import WIDE
from vitrail.errors import CheckpointError
from vitrail.weights import load
from vitrail.weights.read import find_network
from vitrail.weights.timm import FIRST_LAYERS

BODY = {name: tensor for name, tensor in WIDE.items() if not name.startswith("head.")}
OTHER = {name: tensor + 1 for name, tensor in WIDE.items()}
ONES = torch.ones(3)


def under(prefix: str, tensors: dict[str, torch.Tensor] = WIDE) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": tensor.clone() for name, tensor in tensors.items()}


BLOCKS_WRAPPED = {re.sub(r"^(blocks\.\d+\.)", r"\1_checkpoint_wrapped_module.", name): WIDE[name] for name in WIDE}
# tensors by their names in a file -> what follows "tensors" in the line `read`, and the unused ones
FOUND = {
    "model.": (under("model."), " under 'model.'", []),
    "net.": (under("net."), " under 'net.'", []),
    "vit.": (under("vit."), " under 'vit.'", []),
    "timm_model.": (under("timm_model."), " under 'timm_model.'", []),
    "DDP": (under("module.encoder."), " under 'module.encoder.'", []),
    "torch.compile": (under("_orig_mod."), ", without '_orig_mod.'", []),
    "compiled in parallel": (under("module._orig_mod."), " under 'module.', without '_orig_mod.'", []),
    "FSDP": (
        under("_fsdp_wrapped_module.", BLOCKS_WRAPPED),
        ", without '_checkpoint_wrapped_module.', '_fsdp_wrapped_module.'",
        [],
    ),
    "averaged by torch": (
        {"n_averaged": torch.tensor(3), **under("module.")},
        " under 'module.'",
        ["n_averaged"],
    ),
    "Lightning with a criterion and a metric": (
        {**under("state_dict.model."), "state_dict.criterion.weight": ONES, "state_dict.train_acc.tp": ONES},
        " under 'state_dict.model.'",
        ["state_dict.criterion.weight", "state_dict.train_acc.tp"],
    ),
    "a backbone of Lightning beside a classifier": (
        {**under("state_dict.backbone."), "state_dict.classifier.weight": ONES},
        " under 'state_dict.backbone.'",
        ["state_dict.classifier.weight"],
    ),
    "I-JEPA": (
        {**under("encoder.module."), **under("target_encoder.module.", {"patch_embed.proj.weight": ONES})}
        | {"predictor.module.predictor_embed.weight": ONES},
        " under 'encoder.module.', not those under 'target_encoder.module.'",
        ["predictor.module.predictor_embed.weight", "target_encoder.module.patch_embed.proj.weight"],
    ),
    "open_clip with timm's ViT": (
        {**under("visual.trunk."), "visual.head.proj.weight": ONES, "logit_scale": ONES},
        " under 'visual.trunk.'",
        ["logit_scale", "visual.head.proj.weight"],
    ),
    "DINO": (
        {**under("student.module.backbone.", {"patch_embed.proj.weight": ONES}), **under("teacher.backbone.")},
        " under 'teacher.backbone.', not those under 'student.module.backbone.'",
        ["student.module.backbone.patch_embed.proj.weight"],
    ),
    "MoCo": (
        {
            "module.momentum_encoder.patch_embed.proj.weight": ONES,
            **under("module.base_encoder.", BODY),
            "module.base_encoder.head.0.weight": ONES,
            "module.predictor.0.weight": ONES,
        },
        " under 'module.base_encoder.', not those under 'module.momentum_encoder.'",
        [
            "module.base_encoder.head.0.weight",
            "module.momentum_encoder.patch_embed.proj.weight",
            "module.predictor.0.weight",
        ],
    ),
    "averaged beside the model": (
        {"state_dict.patch_embed.proj.weight": ONES, **under("state_dict_ema.")},
        " under 'state_dict_ema.', not those under 'state_dict.'",
        ["state_dict.patch_embed.proj.weight"],
    ),
    "a model beside its teacher": (
        {"teacher.patch_embed.proj.weight": ONES, **under("model.")},
        " under 'model.', not those under 'teacher.'",
        ["teacher.patch_embed.proj.weight"],
    ),
    "a mask token, a projector and a queue without a prefix": (
        {**WIDE, "mask_token": ONES, "projector.0.weight": ONES, "queue": ONES},
        "",
        ["mask_token", "projector.0.weight", "queue"],
    ),
    "a projection in place of the head": ({**BODY, "head.mlp.0.weight": ONES}, "", ["head.mlp.0.weight"]),
    "a head for features of several layers": (
        {**BODY, "head.weight": torch.ones(3, 2 * 192), "head.bias": ONES},
        "",
        ["head.bias", "head.weight"],
    ),
}


@each_row("name, container", [(name, container) for name in FOUND for container in ("x.safetensors", "x.pth")])
def test_a_network_is_found_under_any_prefix_and_other_tensors_are_listed(name, container, tmp_path, fast):
    tensors, words, unused = FOUND[name]
    if container.endswith("pth"):
        torch.save(tensors, tmp_path / container)
    else:
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, tmp_path / container)
    lines: list[str] = []
    model = load(tmp_path / container, log=lines.append)
    state = model.backbone.state_dict()
    assert all(torch.equal(state[each], WIDE[each]) for each in state)
    assert state.keys() in (WIDE.keys(), BODY.keys())
    expected = [f"read     {container}: {len(WIDE if words else tensors)} tensors{words}"]
    read = [line for line in lines if line.startswith("read")]
    if name == "MoCo":
        expected = [f"read     {container}: {len(BODY) + 1} tensors{words}"]
    assert read == (expected if words or container.endswith("pth") else [])
    assert [line for line in lines if line.startswith("unused")] == (
        [f"unused   {len(unused)} tensors: {', '.join(unused)}"] if unused else []
    )


def test_wrappers_of_pickled_checkpoints_are_prefixes(tmp_path, fast):
    torch.save({"epoch": 3, "model": {"state_dict": WIDE}, "model_ema": {"module": OTHER}}, tmp_path / "x.pth")
    lines: list[str] = []
    model = load(tmp_path / "x.pth", log=lines.append)
    assert torch.equal(model.backbone.state_dict()["norm.weight"], OTHER["norm.weight"])
    assert lines[0] == "read     x.pth: 20 tensors under 'model_ema.module.', not those under 'model.state_dict.'"


@each_row(
    "name",
    [
        "blocks.0.attn.qkv.lora_A.weight",
        "blocks.0.attn.q_norm.weight",
        "norm_pre2.weight",
        "pos_embed_2",
        "rope.periods",
        "head.2.weight",
    ],
)
def test_a_tensor_that_may_change_the_outputs_is_not_left_out(name, tmp_path):
    save_file({**under("model."), f"model.{name}": ONES}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=f"unexpected  {re.escape(name)}") as caught:
        load(tmp_path / "x.safetensors")
    assert "docs/model-zoo.md lists what is read" in str(caught.value)


def test_a_missing_tensor_is_an_error_under_a_prefix_too(tmp_path):
    tensors = under("model.")
    del tensors["model.norm.weight"]
    save_file({**tensors, "criterion.weight": ONES}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"missing     norm\.weight 192"):
        load(tmp_path / "x.safetensors")


def test_two_tensors_of_one_name_without_wrappers_are_refused(tmp_path):
    save_file({**under(""), "_orig_mod.norm.weight": ONES}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"contains 'norm\.weight' twice"):
        load(tmp_path / "x.safetensors")


def test_the_stem_of_a_hybrid_is_not_a_network_of_its_own(tmp_path):
    names = ["model.patch_embed.proj.weight", "model.patch_embed.backbone.stem.conv.weight"]
    network = find_network(dict.fromkeys(names, ONES), FIRST_LAYERS, tmp_path)
    assert (network.prefix, network.others) == ("model.", ())


@each_row(
    "first, second",
    [
        ("encoder.module.", "target_encoder.module."),
        ("teacher.backbone.", "student.module.backbone."),
        ("module.base_encoder.", "module.momentum_encoder."),
        ("ema.", "model."),
    ],
)
def test_names_decide_between_networks_of_one_size(first, second, tmp_path):
    network = find_network({**under(second, OTHER), **under(first)}, FIRST_LAYERS, tmp_path)
    assert (network.prefix, network.others) == (first, (second,))
    assert torch.equal(network.tensors["norm.weight"], WIDE["norm.weight"])


@each_row("first, second", [("online.", "other."), ("ema.", "model_ema.module."), ("teacher_a.", "teacher_b.")])
def test_networks_between_which_nothing_decides_are_refused_with_their_prefixes(first, second, tmp_path, fast):
    torch.save({**under(first), **under(second, OTHER)}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=f"several networks, under '{first}', '{second}'"):
        load(tmp_path / "x.pth")
    del (fewer := under(second, OTHER))[f"{second}head.bias"]
    torch.save({**under(first), **fewer}, tmp_path / "x.pth")
    loaded = load(tmp_path / "x.pth", log=lambda line: None)
    assert torch.equal(loaded.backbone.state_dict()["norm.weight"], WIDE["norm.weight"])


def test_the_network_with_the_most_tensors_is_taken_among_equals(tmp_path):
    names = ["a.patch_embed.proj.weight", "b.patch_embed.proj.weight", "b.norm.weight", "c.patch_embed.proj.weight"]
    network = find_network(dict.fromkeys(names, ONES), FIRST_LAYERS, tmp_path)
    assert (network.prefix, network.others) == ("b.", ("a.", "c."))


@each_row(
    "name, words",
    [
        ("to_patch_embedding.1.weight", "in the layout of vit-pytorch, which is not read"),
        ("vit.embeddings.patch_embeddings.projection.weight", "names of Hugging Face transformers"),
        ("visual.class_embedding", "is a CLIP model"),
        ("model.decoder.weight", "is not a plain ViT in timm's layout"),
    ],
)
def test_other_layouts_are_named(name, words, tmp_path):
    save_file({name: ONES}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path / "x.safetensors")


def test_layers_with_adapters_are_named(tmp_path):
    tensors = {key: tensor for key, tensor in WIDE.items() if not key.startswith("blocks.0.mlp.fc1")}
    save_file({**tensors, "blocks.0.attn.qkv.lora_A.weight": ONES}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="adapters beside the weights"):
        load(tmp_path / "x.safetensors")
