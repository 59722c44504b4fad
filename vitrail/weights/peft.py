"""Low-rank adapters in peft's files, `adapter_config.json` and `adapter_model.safetensors`: added to the weights of their base,
and written for models of transformers and timm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.files import dump_json, replace_folder, stage_folder
from vitrail.hub import REMOTE
from vitrail.models.adapters import LowRank, list_adapters
from vitrail.models.layers import Head
from vitrail.models.vit import ViT, ViTConfig
from vitrail.tasks import Classifier, Task
from vitrail.text import printable
from vitrail.weights.folders import PEFT, PEFT_CONFIG, check_replaceable
from vitrail.weights.huggingface import FAMILIES
from vitrail.weights.huggingface.vit import model_type_of
from vitrail.weights.resolve import ResolvedModel
from vitrail.weights.tensors import encode_tensors, read_json, read_tensors

BEFORE = "base_model.model."  # every name of a tensor
PAIR = re.compile(r"(.+)\.lora_(A|B)\.weight")
# modules of transformers 5 in memory -> in the files of its models, and in memory before
OF_ATTENTION = {
    ".attention.q_proj": ".attention.attention.query",
    ".attention.k_proj": ".attention.attention.key",
    ".attention.v_proj": ".attention.attention.value",
    ".attention.o_proj": ".attention.output.dense",
}
OF_BLOCK = {
    **OF_ATTENTION,
    ".layers.": ".encoder.layer.",
    ".mlp.fc1": ".intermediate.dense",
    ".mlp.fc2": ".output.dense",
}
# names of blocks of transformers' model types in memory, whose layers are q_proj, k_proj, v_proj, o_proj, fc1 and fc2
BLOCKS = {
    "vit": "vit.layers",
    "deit": "deit.layers",
    "dinov2": "dinov2.encoder.layer",
    "dinov2_with_registers": "dinov2_with_registers.encoder.layer",
}
MERGE = "merge it where it was made, and give the result: model.merge_and_unload().save_pretrained(FOLDER)"
UNSUPPORTED = ("use_dora", "fan_in_fan_out", "megatron_config", "layer_replication")


class Update(NamedTuple):
    """The factors A (r, I) and B (O, r) of one layer, and the scale of their product."""

    a: Tensor
    b: Tensor
    scale: float


@dataclass(frozen=True)
class PeftAdapter:
    """The content of an adapter's folder: updates by module, and ``saved`` tensors by name, which replace those of the base.

    ``base`` is a path, or a repository of the Hugging Face hub.
    """

    base: str
    updates: Mapping[str, Update]
    saved: Mapping[str, Tensor]
    path: Path

    def add_to(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of the base with each update added to its weight. Raises `CheckpointError` for one without."""
        merged = {**tensors, **self.saved}
        for module, (a, b, scale) in self.updates.items():
            name, shape = find_weight(module, tensors), (len(b), a.shape[1])
            if name is None or tensors[name].shape != shape:
                found = "no such layer" if name is None else f"{name} of shape {tuple(tensors[name].shape)}"
                what = f"{self.path} adapts {printable(module)} of shape {shape}, and {self.base} has {found}"
                raise CheckpointError(
                    what, f"base_model_name_or_path in {PEFT_CONFIG} names another model than its own"
                )
            merged[name] = torch.addmm(tensors[name].float(), b, a, alpha=scale).to(tensors[name].dtype)
        return merged


def find_weight(module: str, tensors: Mapping[str, Tensor]) -> str | None:
    """Returns the name in ``tensors`` of the weight of a module, which peft names as it is in memory; None if there is none."""
    names = [module]
    for table in (OF_ATTENTION, OF_BLOCK):
        renamed = module
        for now, in_files in table.items():
            renamed = renamed.replace(now, in_files)
        names.append(renamed)
    names += [name.partition(".")[2] for name in names]  # of a base without a head
    return next((f"{name}.weight" for name in names if f"{name}.weight" in tensors), None)


def read_peft(path: Path) -> PeftAdapter:
    """Reads the folder of an adapter.

    Raises:
        CheckpointError: the files are damaged, or hold another kind of adapter; the first unknown tensor is named.
    """
    config = read_json(path / PEFT_CONFIG)
    base, kind = config.get("base_model_name_or_path"), config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path} is an adapter of the kind {printable(repr(kind))}", f"LORA is read; {MERGE}")
    patterns, saved_modules = config.get("alpha_pattern") or {}, config.get("modules_to_save") or []
    alphas = [config.get("lora_alpha"), *(patterns.values() if isinstance(patterns, dict) else [None])]
    if not all(isinstance(alpha, int | float) and math.isfinite(alpha) for alpha in alphas):
        what = f"{path / PEFT_CONFIG} has an alpha that is no number"
        raise CheckpointError(
            what, "lora_alpha is a number, alpha_pattern a number for each name; save the adapter again"
        )
    if not isinstance(saved_modules, list):
        what = f"{path / PEFT_CONFIG} has a modules_to_save that is no list"
        raise CheckpointError(what, "it is a list of names; save the adapter again")
    if wrong := [name for name in UNSUPPORTED if config.get(name)]:
        what = f"{path / PEFT_CONFIG} sets {', '.join(wrong)}, which is not supported"
        raise CheckpointError(what, MERGE)
    if not isinstance(base, str) or not base:
        remedy = "write the path or the repository of the model that was adapted there"
        raise CheckpointError(f"{path / PEFT_CONFIG} has no base_model_name_or_path", remedy)
    pairs: dict[str, dict[str, Tensor]] = {}
    saved = {}
    for key, tensor in read_tensors(path / PEFT)[0].items():
        name = key.removeprefix(BEFORE)
        if pair := PAIR.fullmatch(name):
            pairs.setdefault(pair[1], {})[pair[2]] = tensor.float()
        elif key.startswith(BEFORE) and any(f"{module}." in name for module in saved_modules):
            saved[name] = tensor
        else:
            what = f"{path / PEFT} has the tensor {printable(key)}, which is not of a LoRA"
            raise CheckpointError(what, MERGE)
    updates = {module: _read_update(module, pair, config, path) for module, pair in pairs.items()}
    return PeftAdapter(base, updates, saved, path)


def _read_update(module: str, pair: Mapping[str, Tensor], config: Mapping[str, Any], path: Path) -> Update:
    shapes = [tuple(pair[side].shape) if side in pair else None for side in "AB"]
    if (
        None in shapes
        or any(tensor.ndim != 2 for tensor in pair.values())
        or not 0 < len(pair["A"]) == pair["B"].shape[1]
    ):
        what = f"{path / PEFT} has lora_A of shape {shapes[0]} and lora_B of shape {shapes[1]} for {printable(module)}"
        raise CheckpointError(what, "(r, in) and (out, r) are needed: adapters of dense layers are read")
    rank, alphas = len(pair["A"]), config.get("alpha_pattern") or {}
    # names or their ends; peft also takes regular expressions, of which untrusted ones may take forever
    own = (alpha for name, alpha in alphas.items() if f".{module}".endswith(f".{name}"))
    alpha = next(own, config["lora_alpha"])
    return Update(pair["A"], pair["B"], alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def write_peft(path: Path, model: Task, base: ResolvedModel) -> Path | None:
    """Writes the adapters and the head of ``model`` as a folder that peft opens for its base, a model of transformers or timm.

    The slices of qkv are layers of their own in transformers; in timm they are one, with an adapter of the sum of their ranks.

    Returns:
        The path; None where the model is no ViT with one head, or transformers has no model with the same outputs.
    """
    backbone, model_type = model.backbone, None
    if not isinstance(model, Classifier) or not isinstance(backbone, ViT) or not isinstance(backbone.head, Head):
        return None
    if base.layout == "huggingface folder":
        model_type = model_type_of(backbone.config)
        if model_type not in BLOCKS or not _has_counterpart(model_type, backbone.config):
            return None
    adapters = dict(list_adapters(model.backbone))
    pairs = {name: (a, b) for layer, adapter in adapters.items() for name, a, b in _split(layer, adapter, model_type)}
    ranks = {name: len(a) for name, (a, _) in pairs.items()}
    scale, rank = next(iter(adapters.values())).scale, min(ranks.values())
    larger = {name: own for name, own in ranks.items() if own != rank}
    head = "head" if model_type is None else "classifier"
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": name_base(base),
        "target_modules": sorted(pairs),
        "r": rank,
        "rank_pattern": larger,
        "lora_alpha": scale * rank,
        "alpha_pattern": {name: scale * own for name, own in larger.items()},
        "use_rslora": False,
        "fan_in_fan_out": False,
        "bias": "none",
        "modules_to_save": [head],
        "inference_mode": True,
    }
    tensors = {f"{name}.lora_{side}.weight": tensor for name, pair in pairs.items() for side, tensor in zip("AB", pair)}
    tensors |= {f"{head}.{name}": tensor for name, tensor in model.backbone.head.named_parameters()}
    named = {f"{BEFORE}{name}": tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}
    check_replaceable(path, (PEFT_CONFIG, PEFT))
    files = {PEFT_CONFIG: dump_json(config).encode(), PEFT: encode_tensors(named, {"format": "pt"})}
    with stage_folder(path, files) as aside:
        replace_folder(path, aside)
    return path


def name_base(base: ResolvedModel) -> str:
    """Returns the repository of the hub, without the commit, or the path."""
    if not base.origin.startswith(REMOTE):
        return base.origin
    return base.origin.removeprefix(REMOTE).partition("@")[0]


def _has_counterpart(model_type: str, config: ViTConfig) -> bool:
    """Whether a classifier of transformers computes the same, with the layers of `BLOCKS`."""
    family = FAMILIES[model_type]
    try:
        family.write(family.express(config)[0])
    except CheckpointError:
        return False
    return config.mlp == "gelu"


def _split(layer: str, adapter: LowRank, model_type: str | None) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields the modules of a layer, each with A (R, I) and B (O, R)."""
    a, b = adapter.a.detach(), adapter.b.detach()  # (C, r, I), (C, O / S, r)
    if model_type is None:
        count, rows, rank = b.shape
        fused = b.new_zeros(adapter.slices, rows, count, rank)
        fused[adapter.chosen, :, torch.arange(count)] = b
        yield layer, a.flatten(0, 1), fused.flatten(2).flatten(0, 1)
        return
    _, block, inner = layer.split(".", 2)
    modules = {
        "attn.qkv": ["attention.q_proj", "attention.k_proj", "attention.v_proj"],
        "attn.proj": ["attention.o_proj"],
    }
    for index, chosen in enumerate(adapter.chosen.tolist()):
        yield f"{BLOCKS[model_type]}.{block}.{modules.get(inner, [inner])[chosen]}", a[index], b[index]
