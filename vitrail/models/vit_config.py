"""The config of ViTs, and the published ViTs as configs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

from vitrail.models.config import (
    GELUS,
    GROUPS,
    KINDS,
    PLACES,
    RESIZES,
    STANDARDISATIONS,
    Config,
    check_divides,
    is_number,
    is_whole,
)

INITIALS = ("paper", "truncated", "mimetic", "identity")
PREFIXES = ((), ("cls",), ("cls", "dist"))


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Config):
    """The fields of a ViT; the defaults are ViT-B/16 as in the paper.

    Args:
        patch_size: (height, width) in pixels of the image, or one number for a square.
        stem: number of blocks per stage of a ResNet whose map is split into patches, see `vitrail.models.hybrid`. The map has
            stride 4 with (), i.e. only the root, or with one stage; each further stage doubles it. None for no stem.
        stem_width: number of channels of the root; those of the stages are 4, 8, 16 ... times as many.
        standardise: rule of kernel standardisation in the stem, one of `config.STANDARDISATIONS`.
        group_norm_eps: added to the variance in each group norm of the stem.
        prefix: learned tokens before the patches: none, the class token, or also DeiT's distillation token.
        registers: number of additional learned tokens without position, which pooling ignores (Darcet et al. 2024).
        pool: the prefix tokens ("cls"), only the class token of two ("cls-only"), the mean of the patches, the class token
            concatenated with that mean (DINOv2), or attention with a learned query.
        pool_norm: apply the last norm after the mean of the patches, not before (MAE's fine-tuning).
        positions: see `vitrail.models.positions`.
        positions_at: added at the stem, at every layer from separate tables, or at every layer from one shared table
            (appendix D.4). Relative positions are part of attention: "shared" is one table, otherwise each layer has its own.
        prefix_positions: whether prefix tokens have positions, too; DeiT III has none.
        position_resize: interpolation of tables for other image sizes; one of `config.RESIZES`.
        pre_logits: the head of pretraining, with a hidden layer and tanh.
        gelu: "tanh", the approximation in the paper's code, or "exact".
        initial: initialisation, see `vitrail.models.initialise`: as in the paper; "truncated", as in DeiT; "mimetic", which
            learns faster from little data; or "identity", which networks without skips need.
        window: longest side, in patches, of the windows in which blocks attend (ViTDet, Li et al. 2022); 0 for global attention
            in every block. There are as few windows as this allows, all of one size. Patches also attend to the prefix tokens
            and registers, and these to all tokens, so no parameter depends on the windows.
        global_blocks: number of blocks that attend globally where others attend in windows: evenly spaced, and the last one.
        skips: whether branches are added to their input; without skips they replace it (an ablation).
        layer_scale: initial value of LayerScale; None disables it.
        dropout: rate after every dense layer except q, k, v, and after adding positions; ``attention_dropout`` is that of the
            attention matrices.
        drop_path: rate of the last block; increases linearly from 0 at the first.
        patch_dropout: fraction of patches dropped in training, the same number for each image.
        pad: pad images to whole patches with zeros at the bottom and on the right.
    """

    architecture: ClassVar[str] = "vit"
    about: ClassVar[str] = "a ViT"
    attention: ClassVar[str] = "N^2"
    PAIRS: ClassVar = ("image_size", "patch_size")
    LEAST: ClassVar = {
        **Config.LEAST,
        "width": 1,
        "depth": 1,
        "heads": 1,
        "mlp_width": 1,
        "registers": 0,
        "window": 0,
        "global_blocks": 1,
        "stem_width": 1,
    }
    SHARES: ClassVar = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
    POSITIVE: ClassVar = ("norm_eps", "group_norm_eps")
    CHOICES: ClassVar = {
        "pool": ("cls", "cls-only", "gap", "cls+gap", "map"),
        "positions": KINDS,
        "positions_at": PLACES,
        "position_resize": tuple(RESIZES),
        "gelu": GELUS,
        "initial": INITIALS,
        "standardise": tuple(STANDARDISATIONS),
    }

    patch_size: tuple[int, int] = (16, 16)
    stem: tuple[int, ...] | None = None
    stem_width: int = 64
    standardise: str = "vit"
    group_norm_eps: float = 1e-6
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_width: int = 3072
    prefix: tuple[str, ...] = ("cls",)
    registers: int = 0
    pool: str = "cls"
    pool_norm: bool = False
    positions: str = "learned"
    positions_at: str = "stem"
    position_resize: str = "paper"
    prefix_positions: bool = True
    pre_logits: bool = False
    gelu: str = "tanh"
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    initial: str = "paper"
    window: int = 0
    global_blocks: int = 4
    skips: bool = True
    layer_scale: float | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    patch_dropout: float = 0.0
    pad: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", tuple(self.prefix))
        if self.stem is not None:
            listed = isinstance(self.stem, tuple | list) and all(is_whole(depth, 1) for depth in self.stem)
            self._check("stem", listed, "None, or the blocks of each stage, such as (3, 4, 9)")
            object.__setattr__(self, "stem", tuple(self.stem))
        super().__post_init__()

    def _check_together(self) -> None:
        scaled = self.layer_scale is None or is_number(self.layer_scale)
        self._check("layer_scale", scaled, "None or a number, as 1e-4")
        self._check("heads", self.width % self.heads == 0, f"a divisor of width={self.width}")
        learned = 4 if self.initial in ("mimetic", "identity") else 1
        parts = {"sincos2d": 4, "learned2d": 2, "learned": learned}.get(self.positions, 1)
        what = f"a multiple of {parts}, for positions={self.positions!r} and initial={self.initial!r}"
        self._check("width", self.width % parts == 0, what)
        self._check("prefix", self.prefix in PREFIXES, "one of " + ", ".join(map(str, PREFIXES)))
        what = "('cls',), as required by pool='cls'; or set pool='gap'"
        self._check("prefix", self.prefix != () or self.pool not in ("cls", "cls+gap"), what)
        what = "'cls', unless there is a second token that the head ignores"
        self._check("pool", self.pool != "cls-only" or len(self.prefix) > 1, what)
        what = "False, or pool = 'gap': it normalises the mean of the patches"
        self._check("pool_norm", not self.pool_norm or self.pool == "gap", what)
        what = "0 without skips, because a dropped branch would have no output"
        self._check("drop_path", self.skips or self.drop_path == 0, what)
        what = "False, because with classes=0 there is no head"
        self._check("pre_logits", not self.pre_logits or self.classes > 0, what)
        self._check_windows()
        if self.stem is not None:
            self._check("stem_width", self.stem_width % GROUPS == 0, f"a multiple of {GROUPS}, the groups of its norms")
            divides = all(length % self.stem_stride == 0 for length in self.patch_size)
            self._check("patch_size", divides, f"multiples of {self.stem_stride}, the stride of stem={self.stem}")
        if not self.pad:
            check_divides(self.image_size, self.patch_size)

    def _check_windows(self) -> None:
        if not self.window:
            return
        what = f"less than depth={self.depth} with window={self.window}, or window=0: no block would attend in windows"
        self._check("global_blocks", self.global_blocks < self.depth, what)
        what = f"other than 'relative' with window={self.window}, because its table is one for all pairs of patches"
        self._check("positions", self.positions != "relative", what)
        what = f"0 with window={self.window}, because windows need every patch of the grid; or window = 0"
        self._check("patch_dropout", self.patch_dropout == 0, what)

    @property
    def attends_globally(self) -> list[bool]:
        """Whether each block attends to all patches, not only to those of a window."""
        if not self.window:
            return [True] * self.depth
        # the numbers from 1 of the last blocks of ``global_blocks`` equal parts
        parts = [block * self.global_blocks // self.depth for block in range(self.depth + 1)]
        return [before < after for before, after in pairwise(parts)]

    @property
    def prefix_slots(self) -> int:
        """Number of prefix tokens with a position."""
        return len(self.prefix) if self.prefix_positions else 0

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width,) * self.depth

    @property
    def blocks(self) -> int:
        return self.depth

    @property
    def stem_stride(self) -> int:
        """Stride in pixels of the map that is split into patches."""
        return 1 if self.stem is None else 4 * 2 ** max(len(self.stem) - 1, 0)

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def _vit(width: int, depth: int, heads: int, mlp_width: int, patch: int) -> ViTConfig:
    return ViTConfig(width=width, depth=depth, heads=heads, mlp_width=mlp_width, patch_size=(patch, patch))


# B, L, H: the paper's table 1. Ti, S: DeiT and AugReg. M: DeiT III. So400m: Alabdulmohsin et al. 2023.
# giant, gigantic: Zhai et al. 2022, their g and G. e: Chen et al. 2022 (PaLI).
VITS: dict[str, ViTConfig] = {
    "vit-ti16": _vit(192, 12, 3, 768, 16),
    "vit-s32": _vit(384, 12, 6, 1536, 32),
    "vit-s16": _vit(384, 12, 6, 1536, 16),
    "vit-s14": _vit(384, 12, 6, 1536, 14),
    "vit-s8": _vit(384, 12, 6, 1536, 8),
    "vit-m16": _vit(512, 12, 8, 2048, 16),
    "vit-b32": _vit(768, 12, 12, 3072, 32),
    "vit-b16": _vit(768, 12, 12, 3072, 16),
    "vit-b14": _vit(768, 12, 12, 3072, 14),
    "vit-b8": _vit(768, 12, 12, 3072, 8),
    "vit-l32": _vit(1024, 24, 16, 4096, 32),
    "vit-l16": _vit(1024, 24, 16, 4096, 16),
    "vit-l14": _vit(1024, 24, 16, 4096, 14),
    "vit-h32": _vit(1280, 32, 16, 5120, 32),
    "vit-h16": _vit(1280, 32, 16, 5120, 16),
    "vit-h14": _vit(1280, 32, 16, 5120, 14),
    "vit-so400m14": _vit(1152, 27, 16, 4304, 14),
    "vit-giant14": _vit(1408, 40, 16, 6144, 14),
    "vit-gigantic14": _vit(1664, 48, 16, 8192, 14),
    "vit-e14": _vit(1792, 56, 16, 15360, 14),
}


def _deit(like: str, **changes: Any) -> ViTConfig:
    numerics: dict[str, Any] = {"gelu": "exact", "position_resize": "bicubic", "initial": "truncated"}
    return replace(VITS[like], **{**numerics, **changes})


# Touvron et al. 2021a, DeiT; the distilled models have a second token with a separate head
DEITS: dict[str, ViTConfig] = {
    "deit-ti16": _deit("vit-ti16"),
    "deit-s16": _deit("vit-s16"),
    "deit-b16": _deit("vit-b16"),
    "deit-ti16-distilled": _deit("vit-ti16", prefix=("cls", "dist")),
    "deit-s16-distilled": _deit("vit-s16", prefix=("cls", "dist")),
    "deit-b16-distilled": _deit("vit-b16", prefix=("cls", "dist")),
    # Touvron et al. 2022, DeiT III
    "deit3-s16": _deit("vit-s16", layer_scale=1e-4, prefix_positions=False),
    "deit3-m16": _deit("vit-m16", layer_scale=1e-4, prefix_positions=False),
    "deit3-b16": _deit("vit-b16", layer_scale=1e-4, prefix_positions=False),
    "deit3-l16": _deit("vit-l16", layer_scale=1e-4, prefix_positions=False),
    "deit3-h14": _deit("vit-h14", layer_scale=1e-4, prefix_positions=False),
}

# R50 (3, 4, 9) has the blocks of its fourth stage in the third (paper, section 4.1). R26, and R with only the root, are from
# AugReg (Steiner et al. 2022); their R+Ti/16 has patches of 32 pixels, because the root has stride 4 instead of 2.
HYBRIDS: dict[str, Config] = {
    "r-vit-ti16": replace(VITS["vit-ti16"], stem=(), patch_size=(32, 32)),
    "r26-vit-s32": replace(VITS["vit-s32"], stem=(2, 2, 2, 2)),
    "r26-vit-b32": replace(VITS["vit-b32"], stem=(2, 2, 2, 2)),
    "r50-vit-b16": replace(VITS["vit-b16"], stem=(3, 4, 9)),
    "r50-vit-b32": replace(VITS["vit-b32"], stem=(3, 4, 6, 3)),
    "r50-vit-l16": replace(VITS["vit-l16"], stem=(3, 4, 9)),
    "r50-vit-l32": replace(VITS["vit-l32"], stem=(3, 4, 6, 3)),
}
