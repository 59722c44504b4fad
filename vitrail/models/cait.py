"""CaiT, class-attention in image Transformers (Touvron et al. 2021, "Going deeper with Image Transformers").

Patches attend to each other through talking heads, without a class token; then the class token is the only query.

B images, C channels, H x W pixels, h x w = N patches, D width, A heads, E = D / A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.models import positions
from vitrail.models.attention import ALL, AttentionGrid, AttentionRecord, OnAttention, attend
from vitrail.models.backbone import Backbone, last
from vitrail.models.config import Config, IsotropicConfig, Pair, Share, grid_of
from vitrail.models.initialise import fill_truncated
from vitrail.models.layers import (
    Dense,
    LayerNorm,
    Mlp,
    PatchEmbed,
    Patches,
    ResidualBlock,
    Tokens,
    by_hand,
    residual_stream,
    scale_channels,
)


@dataclass(frozen=True, kw_only=True)
class CaiTConfig(IsotropicConfig):
    """The fields of a CaiT in addition to those of `IsotropicConfig`; the defaults are CaiT-XXS24.

    Args:
        depth: number of blocks of self-attention between patches.
        class_depth: number of subsequent blocks of class attention.
        layer_scale: initial value of LayerScale, smaller for deeper models (paper, section 2).
        drop_path: rate of each self-attention block; class attention has none.
        patch_dropout: fraction of patches dropped in training, the same number for each image.
    """

    architecture: ClassVar[str] = "cait"
    about: ClassVar[str] = "a CaiT"
    attention: ClassVar[str] = "N^2"

    width: int = 192
    depth: int = 24
    class_depth: int = 2
    heads: int = 4
    mlp_width: int = 768
    position_resize: str = "bicubic"
    gelu: str = "exact"
    qkv_bias: bool = True
    layer_scale: float = 1e-5
    patch_dropout: Share = 0.0

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("cls",)

    @property
    def blocks(self) -> int:
        return self.depth + self.class_depth


class TalkingHeads(nn.Module):
    """Self-attention whose heads are mixed before and after the softmax (Shazeer et al. 2020; paper, section 4).

    There is no fused kernel for it. The mixing is a product (A, A) times (A, N N). A dense layer over heads as the last axis
    would copy all matrices twice, and is 2 to 7 times slower on a CPU, 1.5 to 2.3 times with its gradient.
    """

    def __init__(self, width: int, heads: int, *, qkv_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Dense(width, 3 * width, bias=qkv_bias)
        self.proj_l = Dense(heads, heads)  # of the logits
        self.proj_w = Dense(heads, heads)  # of the weights
        self.proj = Dense(width, width)

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        q, k, v = self._split(x)
        with by_hand(q):
            weights = mix_heads(self.softmax(q, k), self.proj_w)  # (B, A, N, N)
            output = weights @ v
        if on_attention is not None:
            on_attention(TalkingRecord(self, partial(self._split, x), output))
        return self.proj(output.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects (B, N, D) to q, k and v: (B, A, N, E) each."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def softmax(self, q: Tensor, k: Tensor) -> Tensor:
        """Returns the weights before mixing by ``proj_w``: (B, A, Q, E), (B, A, N, E) to (B, A, Q, N), rows that sum to one."""
        with by_hand(q):
            return mix_heads(q * q.shape[-1] ** -0.5 @ k.mT, self.proj_l).softmax(-1)


class TalkingRecord(AttentionRecord):
    """The softmax of talking heads, before ``proj_w``. The factors of v are ``mix_heads(record.weights(),
    block.attn.proj_w)``, which may be negative and do not sum to one.
    """

    def __init__(
        self, attention: TalkingHeads, split: Callable[[], tuple[Tensor, Tensor, Tensor]], output: Tensor | None
    ) -> None:
        super().__init__(split, output)
        self.attention = attention

    def weights(self, rows: slice = ALL) -> Tensor:
        q, k, _ = self.parts
        return self.attention.softmax(q[:, :, rows], k)

    def gradient(self, of_output: Tensor, rows: slice = ALL) -> Tensor:
        of_mixed = super().gradient(of_output, rows)  # (B, A, R, N)
        with by_hand(of_mixed):
            return torch.einsum("barn,ac->bcrn", of_mixed, self.attention.proj_w.weight.to(of_mixed))


def mix_heads(matrices: Tensor, layer: nn.Linear) -> Tensor:
    """Applies a dense layer over heads: (B, A, N, N) to (B, A, N, N), in the type of ``matrices``."""
    weight, bias = layer.weight.to(matrices.dtype), layer.bias.to(matrices.dtype)
    weight = weight.expand(matrices.shape[0], -1, -1)  # (B, A, A), without a copy
    return torch.baddbmm(bias[:, None], weight, matrices.flatten(2)).view_as(matrices)


class ClassAttention(nn.Module):
    """Class attention: from the class token to itself and the patches (paper, section 3, equations 3 to 6)."""

    def __init__(self, width: int, heads: int, *, qkv_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q = Dense(width, width, bias=qkv_bias)
        self.k = Dense(width, width, bias=qkv_bias)
        self.v = Dense(width, width, bias=qkv_bias)
        self.proj = Dense(width, width)

    def forward(self, x: Tensor, on_attention: OnAttention | None = None) -> Tensor:
        """The class token and the patches (B, 1 + N, D) to the output of the token (B, 1, D)."""
        q, k, v = self._split(x)
        output = attend(q, k, v)
        if on_attention is not None:
            on_attention(AttentionRecord(partial(self._split, x), output))
        return self.proj(output.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, A, 1, E), k and v (B, A, 1 + N, E)."""
        q, k, v = self.q(x[:, :1]), self.k(x), self.v(x)
        return tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))  # type: ignore[return-value]


class Block(ResidualBlock):
    """z' = diag(gamma_1) attention(LN(z)) + z, z = diag(gamma_2) MLP(LN(z')) + z' (paper, section 2, equation 2)."""

    def __init__(self, config: CaiTConfig, attention: type[TalkingHeads | ClassAttention], drop_path: float) -> None:
        super().__init__()
        width = config.width
        self.drop_path = drop_path
        self.norm1 = LayerNorm(width, eps=config.norm_eps)
        self.attn = attention(width, config.heads, qkv_bias=config.qkv_bias)
        self.norm2 = LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, config.mlp_width, gelu=config.gelu)
        self.gamma_1 = nn.Parameter(torch.empty(width))
        self.gamma_2 = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, patches: Tensor | None = None, on_attention: OnAttention | None = None) -> Tensor:
        """Patches (B, N, D), or the class token (B, 1, D) with fixed ``patches`` (B, N, D); of the shape of ``x``."""
        tokens = x if patches is None else torch.cat([x, patches], 1)

        def attention(tokens: Tensor) -> Tensor:
            return scale_channels(self.attn(self.norm1(tokens), on_attention), self.gamma_1)

        def mlp(x: Tensor) -> Tensor:
            return scale_channels(self.mlp(self.norm2(x)), self.gamma_2)

        return self.add_branches(tokens, attention, mlp, whole=on_attention is not None, queries=x.shape[1])


class CaiT(Backbone):
    """CaiT: ``blocks`` on the patches, then ``blocks_token_only`` on the class token."""

    config: CaiTConfig
    blocks: Any  # a list of `Block`, as the other
    blocks_token_only: Any

    def __init__(self, config: CaiTConfig) -> None:
        super().__init__(config)
        rows, columns = config.grid
        self.patch_embed = PatchEmbed(config.in_channels, config.width, config.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.pos_embed = nn.Parameter(torch.empty(1, rows * columns, config.width))
        self.blocks = nn.ModuleList(Block(config, TalkingHeads, config.drop_path) for _ in range(config.depth))
        self.blocks_token_only = nn.ModuleList(Block(config, ClassAttention, 0.0) for _ in range(config.class_depth))
        self.norm = LayerNorm(config.width, eps=config.norm_eps)
        self.head = self._make_head()
        # as in the authors' code
        fill_truncated(self, config.head_bias, uniform=("patch_embed.proj",))
        for name, parameter in self.named_parameters():
            if name.endswith(("gamma_1", "gamma_2")):
                nn.init.constant_(parameter, config.layer_scale)

    def _add_positions(self, patches: Patches) -> Patches:
        x, grid, ids = patches
        places = positions.resize(self.pos_embed, self.config.grid, grid, self.config.position_resize)
        return Patches(x + positions.take(places.to(x), ids), grid, ids)

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Applies all blocks and the norm: (B, K, D) to (B, 1 + K, D), the class token first."""
        x, _ = last(self._outputs(patches, on_attention))
        token = self.cls_token.to(x.dtype).expand(x.shape[0], -1, -1)
        for block in self.blocks_token_only:
            token = self._run(block, token, x, on_attention=on_attention)
        return Tokens(self.norm(torch.cat([token, x], 1)), patches.grid, patches.ids)

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Pair]]:
        x = residual_stream(patches.x)
        for block in self.blocks:
            x = self._run(block, x, on_attention=on_attention)
            yield x, patches.grid

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns the grids of the matrices of `forward_with_attention`: for each self-attention block (B, A, N, N), the softmax
        of its talking heads; then for each class attention block (B, A, 1, 1 + N).
        """
        grid, cell = grid_of(size, self.config.patch_size), self.config.patch_size
        of_patches = [AttentionGrid(0, grid, grid, cell)] * self.config.depth
        return of_patches + [AttentionGrid(1, (0, 0), grid, cell)] * self.config.class_depth

    def _layer(self, name: str) -> int:
        if name.startswith("blocks_token_only."):
            return self.config.depth + int(name.split(".")[1]) + 1
        return super()._layer(name)

    @classmethod
    def resize_tensors(cls, tensors: Mapping[str, Tensor], old: CaiTConfig, new: CaiTConfig) -> dict[str, Tensor]:
        return positions.resize_tables(tensors, old.grid, new.grid, prefix=0, rule=new.position_resize)


def _cait(width: int, depth: int, layer_scale: float, image: int) -> CaiTConfig:
    sizes = {"width": width, "depth": depth, "heads": width // 48, "mlp_width": 4 * width}
    return CaiTConfig(**sizes, layer_scale=layer_scale, image_size=(image, image))


# the paper's table 3; initial values of LayerScale and image sizes from the authors' code
CAITS: dict[str, Config] = {
    "cait-xxs24": _cait(192, 24, 1e-5, 224),
    "cait-xxs36": _cait(192, 36, 1e-5, 224),
    "cait-xs24": _cait(288, 24, 1e-5, 384),
    "cait-s24": _cait(384, 24, 1e-5, 224),
    "cait-s36": _cait(384, 36, 1e-6, 384),
    "cait-m36": _cait(768, 36, 1e-6, 384),
    "cait-m48": _cait(768, 48, 1e-6, 448),
}
