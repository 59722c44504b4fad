"""The head of EoMT (Kerssies et al. 2025, "Your ViT is Secretly an Image Segmentation Model"): queries among the tokens of a ViT.

B images, Q queries, L last blocks, K classes, D width, T tokens of the network, N patches, r x c cells of a mask.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone
from vitrail.models.config import Config
from vitrail.models.dense import Upscale
from vitrail.models.initialise import fill_truncated
from vitrail.models.layers import Dense, Tokens, as_map, by_hand
from vitrail.models.vit import ViT, ViTConfig

# shares of a training, appendix of EoMT: the masks of attention of a block are opened within so much of it, those of the first
# block from the first share on, of the last from the second
OPENING, FIRST, LAST = 1 / 6, 1 / 6, 4 / 6
POWER = 0.9


class QueryHead(nn.Module):
    """Queries that enter a ViT before its last ``blocks``, and what they answer: a class, or none, and a mask each.

    A mask is the product of an embedding of the query with the map of the patches, upscaled. In training every one of the last
    blocks is preceded by an answer, and a query attends only to the patches of its mask so far, with the probability
    ``masking`` of the block, which falls from 1 to 0 in the course of a training (section 3.3).

    Args:
        config: of the network.
        classes: K.
        queries: Q.
        blocks: L.
        upscales: how many times rows and columns of the map are doubled.
    """

    masking: Tensor  # (L,)

    def __init__(self, config: Config, classes: int, *, queries: int, blocks: int, upscales: int) -> None:
        super().__init__()
        width = config.widths[-1]
        self.blocks = blocks
        self.query = nn.Parameter(torch.empty(queries, width))
        self.classifier = Dense(width, classes + 1)
        self.embed = nn.ModuleList(Dense(width, width) for _ in range(3))
        self.upscale = nn.Sequential(*(Upscale(width, width, bias=False) for _ in range(upscales)))
        self.register_buffer("masking", torch.ones(blocks))
        fill_truncated(self)
        nn.init.normal_(self.query)

    def forward(self, backbone: Backbone, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) to logits of the classes, the last of none, (B, A, Q, K + 1), and of the masks, (B, A, Q, r, c).

        A is the number of answers: L + 1 in training, 1 otherwise.
        """
        assert isinstance(backbone, ViT)
        answers: list[tuple[Tensor, Tensor]] = []

        def close(tokens: Tokens) -> Tensor:
            answers.append(self.answer(tokens))
            return self.close(answers[-1][1], tokens, self.masking[len(answers) - 1])

        tokens = backbone.encode_queries(images, self.query, self.blocks, close if self.training else None)
        classes, masks = zip(*answers, self.answer(tokens))
        return torch.stack(classes, 1), torch.stack(masks, 1)

    def answer(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Returns the logits of classes (B, Q, K + 1) and masks (B, Q, r, c) from normalised tokens (B, Q + T, D), in fp32."""
        x, y = tokens.x, tokens.x[:, : len(self.query)]
        dtype = torch.promote_types(self.classifier.weight.dtype, torch.float32)
        with by_hand(x):
            classes = self.classifier(y.to(self.classifier.weight.dtype)).to(dtype)
        first, second, last = self.embed
        embeddings = last(second(first(y, "exact"), "exact"))  # (B, Q, D)
        cells = self.upscale(as_map(x[:, x.shape[1] - math.prod(tokens.grid) :], tokens.grid))  # (B, D, r, c)
        masks = (embeddings @ cells.flatten(2)).unflatten(2, cells.shape[2:])
        return classes, masks.to(dtype)

    @torch.no_grad()
    def close(self, masks: Tensor, tokens: Tokens, masking: Tensor) -> Tensor:
        """Returns which tokens queries do not attend to: patches outside of their mask (B, Q, r, c), with the probability
        ``masking`` for each query of each image. A query always attends to queries and prefix tokens: (B, Q, Q + T).
        """
        outside = F.interpolate(masks, tokens.grid, mode="bilinear").flatten(2) <= 0  # (B, Q, N)
        outside &= torch.rand(masks.shape[:2], device=masks.device)[..., None] < masking
        return F.pad(outside, (tokens.x.shape[1] - outside.shape[2], 0))

    def after_step(self, share: float) -> None:
        """Sets ``masking`` for the next step, after this share of a training."""
        starts = torch.linspace(FIRST, LAST, self.blocks, dtype=torch.float64)
        self.masking.copy_(((starts + OPENING - share) / OPENING).clamp(0, 1) ** POWER)


def check_queries(config: Config, blocks: int) -> None:
    """Raises `ConfigError` for a network whose last ``blocks`` cannot take queries."""
    wrong = {f"it is {config.about}": True}
    if isinstance(config, ViTConfig):
        wrong = {
            f"positions={config.positions!r}": config.positions == "relative",
            f"positions_at={config.positions_at!r}": config.positions_at != "stem",
            f"query_blocks is {blocks}, and it has {config.depth} blocks": not 1 <= blocks <= config.depth,
            f"window={config.window} in one of the last {blocks} blocks": not all(config.attends_globally[-blocks:]),
        }
    if part := next((part for part, is_wrong in wrong.items() if is_wrong), None):
        remedy = (
            "take a ViT, such as vit-s16, and query_blocks of its last blocks, which attend globally; or another head"
        )
        raise ConfigError(f"queries cannot enter the network: {part}", remedy)


def choose_upscales(patch: tuple[int, int]) -> int:
    """Returns the doublings of a map of patches: 2 for patches of 16 pixels, at least 1."""
    return max(1, int(math.log2(math.sqrt(patch[0] * patch[1]))) - 2)
