"""Public weights on the Hugging Face hub, by the names of the models: what ``pretrained=True`` loads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitrail.errors import ConfigError, nearest
from vitrail.models.known import KNOWN


def _list(start: str, ends: str) -> tuple[str, ...]:
    """Returns the names of repositories that begin alike, one for each word of ``ends``."""
    return tuple(f"{start}{end}" for end in ends.split())


# sizes and trainings that several models have
AUGREG = "224.augreg_in21k_ft_in1k 384.augreg_in21k_ft_in1k 224.augreg_in21k"
DEIT3 = "224.fb_in22k_ft_in1k 384.fb_in22k_ft_in1k 224.fb_in1k 384.fb_in1k"
BEIT = "224.in22k_ft_in22k_in1k 384.in22k_ft_in22k_in1k 224.in22k_ft_in22k"
CLIP = "laion2b datacompxl metaclip_2pt5b"
BIT = "goog_in21k_ft_in1k goog_in21k"
# repositories by model, the default first. Most are conversions by timm (https://github.com/huggingface/pytorch-image-models),
# named ARCHITECTURE_SIZE.TRAINING: "ft" is fine-tuned, "in1k", "in21k" and "in22k" are sets of ImageNet
PUBLIC: dict[str, tuple[str, ...]] = {
    "vit-ti16": _list("timm/vit_tiny_patch16_", AUGREG),
    "vit-s32": _list("timm/vit_small_patch32_", AUGREG),
    "vit-s16": _list("timm/vit_small_patch16_", f"{AUGREG} 224.augreg_in1k 384.augreg_in1k 224.dino"),
    "vit-s14": _list("facebook/", "dinov2-small dinov2-with-registers-small"),
    "vit-s8": ("timm/vit_small_patch8_224.dino",),
    "vit-b32": _list("timm/vit_base_patch32_", f"{AUGREG} 224.augreg_in1k 384.augreg_in1k 224.sam_in1k")
    + _list("google/vit-base-", "patch32-384 patch32-224-in21k"),
    "vit-b16": _list(
        "timm/vit_base_patch16_",
        "224.augreg_in21k_ft_in1k 384.augreg_in21k_ft_in1k 224.augreg2_in21k_ft_in1k 224.orig_in21k_ft_in1k "
        "384.orig_in21k_ft_in1k 224.augreg_in21k 224.augreg_in1k 384.augreg_in1k 224.sam_in1k 224.dino 224.mae",
    )
    + _list("google/vit-base-", "patch16-224 patch16-384 patch16-224-in21k"),
    "vit-b14": _list("facebook/", "dinov2-base dinov2-with-registers-base"),
    "vit-b8": _list(
        "timm/vit_base_patch8_", "224.augreg_in21k_ft_in1k 224.augreg2_in21k_ft_in1k 224.augreg_in21k 224.dino"
    ),
    "vit-l32": _list("timm/vit_large_patch32_", "384.orig_in21k_ft_in1k")
    + _list("google/vit-large-", "patch32-384 patch32-224-in21k"),
    "vit-l16": _list("timm/vit_large_patch16_", f"{AUGREG} 224.mae")
    + _list("google/vit-large-", "patch16-224 patch16-384 patch16-224-in21k"),
    "vit-l14": _list("facebook/", "dinov2-large dinov2-with-registers-large"),
    "vit-h14": ("google/vit-huge-patch14-224-in21k", "timm/vit_huge_patch14_224.mae"),
    "deit-ti16": ("timm/deit_tiny_patch16_224.fb_in1k",),
    "deit-s16": ("timm/deit_small_patch16_224.fb_in1k",),
    "deit-b16": _list("timm/deit_base_patch16_", "224.fb_in1k 384.fb_in1k"),
    "deit-ti16-distilled": ("timm/deit_tiny_distilled_patch16_224.fb_in1k",),
    "deit-s16-distilled": ("timm/deit_small_distilled_patch16_224.fb_in1k",),
    "deit-b16-distilled": _list("timm/deit_base_distilled_patch16_", "224.fb_in1k 384.fb_in1k"),
    "deit3-s16": _list("timm/deit3_small_patch16_", DEIT3),
    "deit3-m16": _list("timm/deit3_medium_patch16_", "224.fb_in22k_ft_in1k 224.fb_in1k"),
    "deit3-b16": _list("timm/deit3_base_patch16_", DEIT3),
    "deit3-l16": _list("timm/deit3_large_patch16_", DEIT3),
    "deit3-h14": _list("timm/deit3_huge_patch14_", "224.fb_in22k_ft_in1k 224.fb_in1k"),
    "r-vit-ti16": _list("timm/vit_tiny_r_s16_p8_", AUGREG),
    "r26-vit-s32": _list("timm/vit_small_r26_s32_", AUGREG),
    "r50-vit-b16": _list("timm/vit_base_r50_s16_", "384.orig_in21k_ft_in1k 224.orig_in21k"),
    "r50-vit-l32": _list("timm/vit_large_r50_s32_", AUGREG),
    "dinov3-s16": ("timm/vit_small_patch16_dinov3.lvd1689m", "facebook/dinov3-vits16-pretrain-lvd1689m"),
    "dinov3-s16plus": ("timm/vit_small_plus_patch16_dinov3.lvd1689m", "facebook/dinov3-vits16plus-pretrain-lvd1689m"),
    "dinov3-b16": ("timm/vit_base_patch16_dinov3.lvd1689m", "facebook/dinov3-vitb16-pretrain-lvd1689m"),
    "dinov3-l16": _list("timm/vit_large_patch16_dinov3.", "lvd1689m sat493m")
    + _list("facebook/dinov3-vitl16-pretrain-", "lvd1689m sat493m"),
    "dinov3-h16plus": ("timm/vit_huge_plus_patch16_dinov3.lvd1689m", "facebook/dinov3-vith16plus-pretrain-lvd1689m"),
    "dinov3-7b16": _list("timm/vit_7b_patch16_dinov3.", "lvd1689m sat493m")
    + _list("facebook/dinov3-vit7b16-pretrain-", "lvd1689m sat493m"),
    "eupe-ti16": ("timm/vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m",),
    "eupe-s16": ("timm/vit_small_patch16_dinov3_qkvb.eupe_lvd1689m",),
    "eupe-b16": ("timm/vit_base_patch16_dinov3_qkvb.eupe_lvd1689m",),
    "dinov2-giant14": _list("facebook/", "dinov2-giant dinov2-with-registers-giant"),
    "clip-b32": ("openai/clip-vit-base-patch32", *_list("timm/vit_base_patch32_clip_224.", CLIP)),
    "clip-b16": ("openai/clip-vit-base-patch16", *_list("timm/vit_base_patch16_clip_224.", f"{CLIP} dfn2b")),
    "clip-l14": _list("openai/clip-vit-large-", "patch14 patch14-336")
    + _list("timm/vit_large_patch14_clip_224.", f"{CLIP} dfn2b_s39b"),
    "clip-h14": _list("timm/vit_huge_patch14_clip_224.", "laion2b metaclip_altogether"),
    "clip-giant14": ("timm/vit_giant_patch14_clip_224.laion2b",),
    "clip-gigantic14": ("timm/vit_gigantic_patch14_clip_224.laion2b",),
    "siglip-b16": _list("google/siglip-base-patch16-", "224 256 384 512"),
    "siglip-l16": _list("google/siglip-large-patch16-", "256 384"),
    "siglip-so400m14": ("google/siglip-so400m-patch14-224",),
    "siglip2-b16": _list("google/siglip2-base-patch16-", "224 256 384 512"),
    "siglip2-l16": _list("google/siglip2-large-patch16-", "256 384 512"),
    "siglip2-so400m14": ("google/siglip2-so400m-patch14-224",),
    "siglip2-so400m16": _list("google/siglip2-so400m-patch16-", "256 384 512"),
    "siglip2-giantopt16": _list("google/siglip2-giant-opt-patch16-", "256 384"),
    "eva02-ti14": ("timm/eva02_tiny_patch14_224.mim_in22k", "timm/eva02_tiny_patch14_336.mim_in22k_ft_in1k"),
    "eva02-s14": ("timm/eva02_small_patch14_224.mim_in22k", "timm/eva02_small_patch14_336.mim_in22k_ft_in1k"),
    "eva02-b14": ("timm/eva02_base_patch14_224.mim_in22k", "timm/eva02_base_patch14_448.mim_in22k_ft_in22k_in1k"),
    "eva02-l14": ("timm/eva02_large_patch14_224.mim_m38m", "timm/eva02_large_patch14_448.mim_m38m_ft_in22k_in1k"),
    "pe-core-ti16": ("timm/vit_pe_core_tiny_patch16_384.fb",),
    "pe-core-s16": ("timm/vit_pe_core_small_patch16_384.fb",),
    "pe-core-b16": ("timm/vit_pe_core_base_patch16_224.fb",),
    "pe-core-l14": ("timm/vit_pe_core_large_patch14_336.fb",),
    "pe-core-gigantic14": ("timm/vit_pe_core_gigantic_patch14_448.fb",),
    "aimv2-l14": _list("timm/aimv2_large_patch14_", "224.apple_pt 336.apple_pt 448.apple_pt"),
    "aimv2-h14": _list("timm/aimv2_huge_patch14_", "224.apple_pt 336.apple_pt 448.apple_pt"),
    "aimv2-1b14": _list("timm/aimv2_1b_patch14_", "224.apple_pt 336.apple_pt 448.apple_pt"),
    "aimv2-3b14": _list("timm/aimv2_3b_patch14_", "224.apple_pt 336.apple_pt 448.apple_pt"),
    "cait-xxs24": _list("timm/cait_xxs24_", "224.fb_dist_in1k 384.fb_dist_in1k"),
    "cait-xxs36": _list("timm/cait_xxs36_", "224.fb_dist_in1k 384.fb_dist_in1k"),
    "cait-xs24": ("timm/cait_xs24_384.fb_dist_in1k",),
    "cait-s24": _list("timm/cait_s24_", "224.fb_dist_in1k 384.fb_dist_in1k"),
    "cait-s36": ("timm/cait_s36_384.fb_dist_in1k",),
    "cait-m36": ("timm/cait_m36_384.fb_dist_in1k",),
    "cait-m48": ("timm/cait_m48_448.fb_dist_in1k",),
    "beit-b16": _list("timm/beit_base_patch16_", BEIT),
    "beit-l16": _list("timm/beit_large_patch16_", BEIT),
    "swin-t": _list("timm/swin_tiny_patch4_window7_", "224.ms_in22k_ft_in1k 224.ms_in1k 224.ms_in22k"),
    "swin-s": _list("timm/swin_small_patch4_window7_", "224.ms_in22k_ft_in1k 224.ms_in1k 224.ms_in22k"),
    "swin-b": _list("timm/swin_base_patch4_window7_", "224.ms_in22k_ft_in1k 224.ms_in1k 224.ms_in22k"),
    "swin-l": _list("timm/swin_large_patch4_window7_", "224.ms_in22k_ft_in1k 224.ms_in22k"),
    "swin-b-384": _list("timm/swin_base_patch4_window12_", "384.ms_in22k_ft_in1k 384.ms_in1k 384.ms_in22k"),
    "swin-l-384": _list("timm/swin_large_patch4_window12_", "384.ms_in22k_ft_in1k 384.ms_in22k"),
    "pvt-v2-b0": ("timm/pvt_v2_b0.in1k",),
    "pvt-v2-b1": ("timm/pvt_v2_b1.in1k",),
    "pvt-v2-b2": ("timm/pvt_v2_b2.in1k",),
    "pvt-v2-b2-li": ("timm/pvt_v2_b2_li.in1k",),
    "pvt-v2-b3": ("timm/pvt_v2_b3.in1k",),
    "pvt-v2-b4": ("timm/pvt_v2_b4.in1k",),
    "pvt-v2-b5": ("timm/pvt_v2_b5.in1k",),
    "bit-r50x1": _list("timm/resnetv2_50x1_bit.", "goog_in21k_ft_in1k goog_distilled_in1k"),
    "bit-r50x3": _list("timm/resnetv2_50x3_bit.", BIT),
    "bit-r101x1": _list("timm/resnetv2_101x1_bit.", BIT),
    "bit-r101x3": _list("timm/resnetv2_101x3_bit.", BIT),
    "bit-r152x2": _list("timm/resnetv2_152x2_bit.", BIT),
    "bit-r152x4": _list("timm/resnetv2_152x4_bit.", BIT),
}
SIZE = re.compile(r"[-_](\d{3})(?=[-_.]|$)")
# by the name of a repository, the first that fits; of others the licence is `APACHE`
LICENCES = {
    r"/swin_|/eva02_|^openai/": "MIT",
    r"\.mae$|metaclip": "CC-BY-NC-4.0",
    r"eupe": "FAIR Noncommercial Research License",
    r"dinov3": "DINOv3 License",
    r"/aimv2_|dfn2b": "Apple Sample Code License",
}
APACHE = "Apache-2.0"
GATED = re.compile(r"facebook/dinov3-")  # repositories whose owner must admit a user first


@dataclass(frozen=True)
class PublicWeights:
    """A repository of the hub with weights of the model ``model``."""

    model: str
    repository: str

    @property
    def source(self) -> str:
        """The name that `vitrail.load` and ``--init`` take."""
        return f"hf:{self.repository}"

    @property
    def tag(self) -> str:
        """The training, such as "augreg-in21k-ft-in1k"; with the image size where it is not the model's own."""
        owner, _, name = self.repository.partition("/")
        size = SIZE.search(name)
        other = size and int(size[1]) != KNOWN[self.model].image_size[0]
        if owner == "timm":
            return name.partition(".")[2].replace("_", "-") + (f"-{size[1]}" if other else "")
        if "-pretrain-" in name:
            return f"{owner}-{name.rpartition('-')[2]}"
        if owner == "facebook":
            return "dinov2-registers" if "with-registers" in name else "dinov2"
        return owner + ("-in21k" if name.endswith("in21k") else "") + (f"-{size[1]}" if other else "")

    @property
    def licence(self) -> str:
        """As timm and the owner state it."""
        fitting = (licence for pattern, licence in LICENCES.items() if re.search(pattern, self.repository))
        return next(fitting, APACHE)

    @property
    def is_gated(self) -> bool:
        """Whether the owner must admit a user before the weights can be downloaded."""
        return GATED.match(self.repository) is not None

    @property
    def terms(self) -> str:
        """The licence, and whether the weights are gated."""
        return self.licence + (", gated" if self.is_gated else "")


def list_public(model: str) -> dict[str, PublicWeights]:
    """The public weights of a model by tag, the default first; empty if none are known."""
    weights = (PublicWeights(model, repository) for repository in PUBLIC.get(model, ()))
    return {each.tag: each for each in weights}


def find_repository(name: str) -> PublicWeights | None:
    """The public weights that timm or their owner call ``name``, with or without the owner, or ``hf:owner/name@revision``."""
    name = name[3:].partition("@")[0] if name.startswith("hf:") else name
    for model in PUBLIC:
        for weights in list_public(model).values():
            if name in (weights.repository, weights.repository.partition("/")[2]):
                return weights
    return None


def find_weights(name: str) -> PublicWeights | None:
    """The public weights that ``name`` refers to: a model (its default ones), MODEL:TAG, or a repository's name.

    None for any other name, and for a model without known weights. Raises `ConfigError` for an unknown tag, with the nearest.
    """
    model, separator, tag = name.partition(":")
    if model in PUBLIC:
        return find_public(model, tag if separator else None)
    return find_repository(name)


def find_public(model: str, tag: str | None = None) -> PublicWeights:
    """The public weights of a model with this tag, or its default ones. Raises `ConfigError`, which lists the tags."""
    known = list_public(model)
    if not known:
        others = f"models with known weights: {', '.join(PUBLIC)}"
        raise ConfigError(f"no public weights of {model} are known", f"load a file or hf:owner/name; {others}")
    if tag is None:
        return next(iter(known.values()))
    if tag not in known:
        raise ConfigError(f"{model} has no public weights {tag!r}", nearest(tag, known))
    return known[tag]
