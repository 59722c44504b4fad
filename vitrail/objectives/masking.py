"""Learning by predicting hidden patches, from the mask embedding in their place: colours, or the codes of a tokenizer.

`MaskedPatch` is masked patch prediction (Dosovitskiy et al. 2021, section 4.6 and appendix B.1.2), `MaskedCodes` masked image
modelling (Bao et al. 2022, "BEiT: BERT Pre-Training of Image Transformers").

Cells are hidden as a whole. A cell is the area of one output token of the encoder: a patch, or in a pyramid r x s patches, as
in SimMIM (Xie et al. 2022), where the cells of Swin are 32 pixels wide.

B images, C channels, M cells of r x s patches, N = M r s patches of P x Q pixels, n corrupted or hidden patches of the batch,
D width, S colours per patch, K outputs per patch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.rng import integers, uniforms
from vitrail.errors import ConfigError, nearest
from vitrail.models import Backbone, Config, Tokens
from vitrail.models.config import is_whole
from vitrail.models.initialise import fill_parameter, fills
from vitrail.models.layers import Dense, LayerNorm, as_map, as_tokens, cut_patches, gather_rows, join_patches
from vitrail.objectives.objective import Objective

Grid = tuple[int, int]  # rows, columns
ATTEMPTS = 10  # to draw a block
MIN_AREA = 16 / 196  # smallest area of a block, relative to the grid
NARROWEST = 0.3  # smallest height / width of a block; the largest is its inverse


def random_ranks(ids: NDArray[np.int64], cells: int, seed: int, stream: str) -> NDArray[np.int64]:
    """Returns the ranks of the cells of each image in a random order: (B, M). Ranks below k are a random subset of k cells."""
    return uniforms(seed, stream, *ids.T, count=cells).argsort(1, kind="stable").argsort(1)


def block_mask(ids: NDArray[np.int64], grid: Grid, count: int, seed: int) -> NDArray[np.bool_]:
    """Hides exactly ``count`` cells per image, in rectangles (BEiT, Bao et al. 2022, algorithm 1): (B, M) bool.

    A rectangle that would hide too many cells, or no new ones, is drawn again, up to ten times. The authors' code then stops
    below the count; here random cells are added, so that all images of a batch have the same number of hidden cells.
    """
    hidden = np.zeros((len(ids), *grid), bool)
    failures = np.zeros(len(ids), np.int64)  # consecutive
    for attempt in itertools.count():
        missing = count - hidden.sum((1, 2))
        drawn = np.flatnonzero((missing > 0) & (failures < ATTEMPTS))
        if not len(drawn):
            break
        chances = uniforms(seed, f"block {attempt}", *ids[drawn].T, count=4)
        blocks = _rectangles(chances, missing[drawn], grid)
        gained = (blocks & ~hidden[drawn]).sum((1, 2))
        fits = (gained > 0) & (gained <= missing[drawn])
        hidden[drawn[fits]] |= blocks[fits]
        failures[drawn] = np.where(fits, 0, failures[drawn] + 1)
    hidden = hidden.reshape(len(ids), -1)
    order = uniforms(seed, "block rest", *ids.T, count=hidden.shape[1]) - hidden  # hidden cells come first
    return order.argsort(1, kind="stable").argsort(1) < count


def _rectangles(chances: NDArray[np.float64], largest: NDArray[np.int64], grid: Grid) -> NDArray[np.bool_]:
    """One rectangle of up to ``largest`` (B,) cells per four numbers in [0, 1); empty if it exceeds the grid: (B, h, w)."""
    of_area, of_shape, *places = chances.T
    least = max(MIN_AREA * math.prod(grid), 1)
    area = least + of_area * (largest - least)
    aspect = np.exp((2 * of_shape - 1) * math.log(NARROWEST))
    lines = []  # rows, then columns
    for side, whole, place in zip((np.sqrt(area * aspect), np.sqrt(area / aspect)), grid, places):
        side = np.rint(side)
        first = np.floor(place * (whole - side + 1))
        past = np.arange(whole) - first[:, None]
        lines.append((past >= 0) & (past < side[:, None]) & (side <= whole)[:, None])
    return lines[0][:, :, None] & lines[1][:, None, :]


def expand_cells(cells: NDArray, grid: Grid, repeats: Grid) -> NDArray:
    """Repeats the value of each cell for its patches: (B, M) on a ``grid`` of cells of ``repeats`` (r, s) patches to (B, N)."""
    images = cells.reshape(-1, *grid)
    return images.repeat(repeats[0], 1).repeat(repeats[1], 2).reshape(len(cells), -1)


class PatchHead(nn.Module):
    """K outputs per patch: a linear layer on the token of a cell predicts all of its r x s patches.

    If the encoder has no final norm on its tokens (because it normalises their mean), the norm is here.
    """

    def __init__(self, encoder: Backbone, outputs: int) -> None:
        super().__init__()
        config = encoder.config
        self.repeats = patches_per_cell(encoder)
        bare = isinstance(encoder.get_submodule("norm"), nn.Identity)
        self.norm = LayerNorm(encoder.width, eps=config.norm_eps) if bare else nn.Identity()
        self.proj = Dense(encoder.width, math.prod(self.repeats) * outputs)

    def forward(self, tokens: Tokens, chosen: Tensor) -> Tensor:
        """Predictions (n, K) in fp32 for the ``chosen`` (n,) of the B N patches, numbered image by image in row-major order."""
        (rows, columns), (r, s) = tokens.grid, self.repeats
        x = tokens.x[:, -rows * columns :]  # (B, M, D), without the prefix tokens and registers in front
        if self.repeats == (1, 1):
            return self.proj(self.norm(x.flatten(0, 1).index_select(0, chosen))).float()
        y = self.proj(self.norm(x)).unflatten(2, (r, s, -1)).unflatten(1, (rows, columns))  # (B, h, w, r, s, K)
        return y.transpose(2, 3).flatten(0, 4).index_select(0, chosen).float()


def patches_per_cell(encoder: Backbone) -> Grid:
    """Returns the rows and columns of patches in a cell."""
    rows, columns = (cell // patch for cell, patch in zip(encoder.config.cell, encoder.config.patch_size))
    return rows, columns


def cell_grid(encoder: Backbone, size: Grid) -> Grid:
    """Returns rows and columns of the cells of an image of ``size`` (height, width). Raises `ConfigError` for parts of cells."""
    (height, width), cell = size, encoder.config.cell
    if height % cell[0] or width % cell[1]:
        what = f"an image of {height}x{width} pixels does not divide into cells of {cell[0]}x{cell[1]} pixels"
        raise ConfigError(what, f"resize to a multiple of {cell[0]} pixels in height and {cell[1]} in width")
    return height // cell[0], width // cell[1]


def check_whole(objective: Objective) -> None:
    """Raises `ConfigError` if the encoder of an ``objective`` that predicts patches drops some in training."""
    if dropped := getattr(objective.encoder.config, "patch_dropout", 0.0):
        name = type(objective).__name__
        what = f"the encoder drops patches in training, patch_dropout={dropped}, which {name} predicts"
        raise ConfigError(what, "create it with patch_dropout=0.0")


class Masked(Objective):
    """An objective that replaces a fraction of the patches by a learned mask embedding and predicts ``outputs`` values for each.

    A ViT with a stem is supported, but its convolutions see across the borders of patches, so a little of a hidden patch is
    visible in its neighbours. Architectures with overlapping patches, such as PVT v2, are not supported.

    Args:
        encoder: a backbone that processes every patch.
        outputs: K.
        share: fraction of the cells that is hidden, in (0, 1]; the number is rounded and at least one.

    Raises:
        ConfigError: an architecture that is not supported, patch dropout, or an invalid share; from `draw` and forward for
            images that do not divide into cells.
    """

    carried_by: ClassVar = ("vit", "beit", "cait", "axial", "swin", "pvt")

    def __init__(self, encoder: Backbone, outputs: int, share: float) -> None:
        super().__init__(encoder)
        if not 0 < share <= 1:
            raise ConfigError(f"share is {share!r}", "give a number in (0, 1], such as share=0.5")
        check_whole(self)
        self.share = share
        self.mask_token = nn.Parameter(torch.empty(1, 1, encoder.patch_width))
        self.head = PatchHead(encoder, outputs)
        self._initialise()

    @fills
    def _initialise(self) -> None:
        """Initialises mask embedding and matrix: normal with deviation 0.02; bias: 0; norm: 1 and 0."""
        for name, parameter in self._own_parameters().items():
            fill_parameter(name, parameter, 0.0)

    def _count_hidden(self, cells: Grid) -> int:
        return max(round(self.share * math.prod(cells)), 1)

    def _chosen_patches(self, images: Tensor, mask: Tensor) -> Tensor:
        """Returns indices (n,) of the patches in ``mask`` (B, N) among the B N patches of the batch.

        Each image has the number that `draw` chooses, so the shapes are static: no device synchronisation is needed, and a
        compiled model is one graph.
        """
        height, width = images.shape[2:]
        count = self._count_hidden(cell_grid(self.encoder, (height, width))) * math.prod(self.head.repeats)
        assert torch.compiler.is_compiling() or mask.device.type != "cpu" or (mask.sum(1) == count).all(), count
        places = mask.int().argsort(dim=1, descending=True, stable=True)[:, :count]  # (B, n / B)
        return (places + torch.arange(len(mask), device=mask.device)[:, None] * mask.shape[1]).flatten()

    def _predict(self, images: Tensor, hidden: Tensor, chosen: Tensor, source: Tensor | None = None) -> Tensor:
        """Returns predictions (n, K) for the ``chosen`` (n,) patches. Those that are ``hidden`` (B, N) are replaced by the mask
        embedding, the others have the embedding of the patch ``source`` (B, N), by default their own.
        """
        patches = self.encoder.patchify(images)
        x = patches.x  # (B, N, D)
        if source is not None:
            x = gather_rows(x, source.clamp(min=0))
        x = torch.where(hidden[..., None], self.mask_token.to(x.dtype), x)
        return self.head(self.encoder.encode(self.encoder.place(patches._replace(x=x))), chosen)


SIDES = {"mean": 1, "downsized": 4}  # of the square of colours to which a patch is averaged
TARGETS = (*SIDES, "pixels")
LEVELS = 8  # of each channel of a colour, 3 bits
MAX_CHANNELS = 5  # 8^5 colours are 32,768 classes
SWAPPED = KEPT = 0.1  # fractions of the corrupted patches; the others are hidden
GREY = 0.5


class MaskedPatch(Masked):
    """80 % of the corrupted patches become the mask embedding, 10 % another patch, 10 % stay; only they have a loss.

    The paper does not say which other patch; here it is a random different patch of the same image. In a pyramid whole cells
    are corrupted, and each of their patches is predicted.

    Args:
        encoder: a backbone.
        preprocessing: how the images were normalised; the targets are colours in [0, 1].
        target: ``mean``, the mean colour of a patch with 8 levels per channel, as one of 8^C classes; ``downsized``, the same
            for the patch averaged to 4 x 4 colours, 16 predictions; or ``pixels``, the mean squared error of all values in
            [0, 1].
        share: fraction of the cells that is corrupted; one half in the paper.

    Raises:
        ConfigError: as in `Masked`; an unknown target, a colour target with more than five channels, or preprocessing for a
            different number of channels.
    """

    about = (
        "Half of the patches are corrupted, and their mean colour, in 512 steps, is predicted from the others "
        "(Dosovitskiy et al. 2021, appendix B.1.2)."
    )

    def __init__(
        self,
        encoder: Backbone,
        preprocessing: Preprocessing,
        target: Literal["mean", "downsized", "pixels"] = "mean",
        *,
        share: float = 0.5,
    ) -> None:
        super().__init__(encoder, count_outputs(encoder.config, target), share)
        channels = encoder.config.in_channels
        if preprocessing.channels != channels:
            what = f"the preprocessing has {preprocessing.channels} channels, the encoder {channels}"
            raise ConfigError(what, "give one mean and std per channel of the encoder")
        self.preprocessing = preprocessing
        self.target = target

    def draw(self, ids: NDArray[np.int64], size: Grid, seed: int) -> tuple[Tensor, Tensor]:
        """Draws ``corrupted`` and ``source`` of `forward`; all images have the same number of patches of each kind."""
        grid, repeats = cell_grid(self.encoder, size), patches_per_cell(self.encoder)
        cells, count = math.prod(grid), self._count_hidden(grid)
        swapped, kept = round(SWAPPED * count), round(KEPT * count)
        ranks = random_ranks(ids, cells, seed, "corrupted")  # (B, M)
        own = np.arange(cells)
        other = integers(seed, "swapped", *ids.T, count=cells, below=max(cells - 1, 1))
        other += other >= own  # any other cell
        source = np.where(ranks < swapped, other, own)
        source = np.where((ranks >= swapped + kept) & (ranks < count), -1, source)
        corrupted = expand_cells(ranks < count, grid, repeats)  # (B, N)
        return torch.from_numpy(corrupted), torch.from_numpy(expand_sources(source, grid, repeats))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the corrupted patches in fp32, and ``accuracy``, the fraction of correct colours; for
        ``pixels`` ``rmse``, on the scale of [0, 1].

        Args:
            images: normalised (B, C, H, W).
            corrupted: (B, N) bool, the patches to predict; `draw` chooses the same number for each image.
            source: (B, N), the patch whose embedding is used: its own index, another one, or -1 for the mask embedding.
        """
        images, corrupted, source = inputs
        chosen = self._chosen_patches(images, corrupted)
        predicted = self._predict(images, source < 0, chosen, source)  # (n, K)
        patches = cut_patches(self.preprocessing.denormalise(images), self.encoder.config.patch_size)  # (B, N, C, P, Q)
        patches = patches.flatten(0, 1).index_select(0, chosen)  # (n, C, P, Q)
        if self.target == "pixels":
            loss = F.mse_loss(predicted, patches.flatten(1))
            return loss, {"rmse": loss.detach().sqrt()}
        averaged = F.adaptive_avg_pool2d(patches, SIDES[self.target])  # (n, C, side, side)
        labels = quantise_colours(as_tokens(averaged))  # (n, S)
        logits = predicted.unflatten(1, (labels.shape[1], -1))  # (n, S, 8^C)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss, {"accuracy": (logits.detach().argmax(2) == labels).float().mean()}

    @torch.no_grad()
    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Returns ``masked``: the images with the corrupted patches in grey; ``predicted``: with the predicted colours."""
        images, corrupted, source = inputs
        patches = cut_patches(self.preprocessing.denormalise(images), self.encoder.config.patch_size)  # (B, N, C, P, Q)
        masked, predicted = patches.clone(), patches.clone()
        masked[corrupted] = GREY
        answers = self._predict(images, source < 0, self._chosen_patches(images, corrupted), source)  # (n, K)
        predicted[corrupted] = self._colours(answers)
        size = (images.shape[2], images.shape[3])
        named = {"masked": masked, "predicted": predicted}
        return {name: self.preprocessing.normalise(join_patches(values, size)) for name, values in named.items()}

    def _colours(self, predicted: Tensor) -> Tensor:
        """Returns the colours of predictions (n, K), in [0, 1]: (n, C, P, Q)."""
        config = self.encoder.config
        if self.target == "pixels":
            return predicted.unflatten(1, (config.in_channels, *config.patch_size)).clamp(0, 1)
        side = SIDES[self.target]
        best = predicted.unflatten(1, (side**2, -1)).argmax(2)  # (n, S)
        colours = as_map(dequantise_colours(best, config.in_channels), (side, side))  # (n, C, side, side)
        return F.interpolate(colours, config.patch_size)


def count_outputs(config: Config, target: str) -> int:
    """Returns the number of outputs per patch. Raises `ConfigError` for an unknown target."""
    if target not in TARGETS:
        raise ConfigError(f"unknown target {target!r}", nearest(target, TARGETS))
    channels = config.in_channels
    if target == "pixels":
        return channels * math.prod(config.patch_size)
    if channels > MAX_CHANNELS:
        what = f"colours of {channels} channels with {LEVELS} levels each are {LEVELS**channels:,} classes"
        raise ConfigError(what, "set target='pixels'")
    return SIDES[target] ** 2 * LEVELS**channels


def quantise_colours(colours: Tensor) -> Tensor:
    """Converts colours (..., C) in [0, 1] to classes (...): 3 bits per channel, the first channel in the highest bits."""
    levels = (colours * LEVELS).floor().clamp(max=LEVELS - 1).long()  # 1.0 is in the highest level
    return (levels * _weights(colours.shape[-1], colours)).sum(-1)


def dequantise_colours(classes: Tensor, channels: int) -> Tensor:
    """Returns the colour in the middle of each class (...): (..., C)."""
    return (classes[..., None] // _weights(channels, classes) % LEVELS + 0.5) / LEVELS


def _weights(channels: int, like: Tensor) -> Tensor:
    return LEVELS ** torch.arange(channels - 1, -1, -1, device=like.device)  # (C,)


def expand_sources(source: NDArray[np.int64], grid: Grid, repeats: Grid) -> NDArray[np.int64]:
    """Indices of cells (B, M), or -1, to indices of patches (B, N): the patch at the same position in that cell, or -1."""
    (rows, columns), (r, s) = grid, repeats
    cell = expand_cells(source, grid, repeats).reshape(-1, rows * r, columns * s)
    row = cell // columns * r + (np.arange(rows * r) % r)[:, None]
    column = cell % columns * s + np.arange(columns * s) % s
    return np.where(cell < 0, -1, row * columns * s + column).reshape(len(source), -1)


Drawn = Callable[[Tensor, Grid], Tensor]


class MaskedCodes(Masked):
    """Rectangles of patches are replaced by the mask embedding; the loss is the cross-entropy of the codes of these patches.

    Args:
        encoder: a backbone.
        vocabulary: number of codes of the tokenizer; the paper's has 8192.
        share: fraction of the cells that is hidden. The authors' code hides 75 of 196, "40 %" in the paper.
        drawn: decodes codes (B, N) for a size of the images to (B, C, H, W), normalised for the encoder; for the report.

    Raises:
        ConfigError: as in `Masked`, or an invalid vocabulary.
    """

    about = "Blocks of patches are hidden, and the codes that a visual tokenizer gives them are predicted (Bao et al. 2022)."

    def __init__(
        self, encoder: Backbone, vocabulary: int = 8192, *, share: float = 75 / 196, drawn: Drawn | None = None
    ) -> None:
        if not is_whole(vocabulary, 2):
            raise ConfigError(f"vocabulary is {vocabulary!r}", "vocabulary = the number of codes, from 2")
        super().__init__(encoder, vocabulary, share)
        self.drawn = drawn

    def draw(self, ids: NDArray[np.int64], size: Grid, seed: int) -> tuple[Tensor]:
        """Draws ``hidden`` of `forward`, with the same number of patches per image; see `block_mask`."""
        grid = cell_grid(self.encoder, size)
        hidden = block_mask(ids, grid, self._count_hidden(grid), seed)
        return (torch.from_numpy(expand_cells(hidden, grid, patches_per_cell(self.encoder))),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the hidden patches in fp32, and ``accuracy``, the fraction of codes that are right.

        Args:
            images: normalised (B, C, H, W).
            hidden: (B, N) bool, the patches to hide and predict; `draw` chooses the same number for each image.
            codes: (B, N) of the patches, in [0, K).
        """
        images, hidden, codes = inputs
        assert codes.shape == hidden.shape, (codes.shape, hidden.shape)
        chosen = self._chosen_patches(images, hidden)
        logits, labels = self._predict(images, hidden, chosen), codes.flatten()[chosen]  # (n, K), (n,)
        return F.cross_entropy(logits, labels), {"accuracy": (logits.detach().argmax(1) == labels).float().mean()}

    @torch.no_grad()
    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """``masked``: the images with the hidden patches grey. If codes can be decoded, also ``codes``: the decoded codes, and
        ``predicted``: the same with the predicted codes of the hidden patches."""
        images, hidden, codes = inputs
        size = (images.shape[2], images.shape[3])
        patches = cut_patches(images, self.encoder.config.patch_size)  # (B, N, C, P, Q)
        shown = {"masked": join_patches(patches.masked_fill(hidden[..., None, None, None], 0.0), size)}
        if self.drawn is None:
            return shown
        chosen = self._chosen_patches(images, hidden)
        answers = codes.flatten().scatter(0, chosen, self._predict(images, hidden, chosen).argmax(1)).view_as(codes)
        return {**shown, "codes": self.drawn(codes, size), "predicted": self.drawn(answers, size)}
