"""Networks that are not trained and compute a part of an objective's inputs: teachers, and the tokenizer of BEiT.

B images, K classes, C channels, h x w pixels as the network takes them, N patches, G features and E width of a teacher's map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.data.imagenet import index_classes
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.models import device_of
from vitrail.models.cost import count_operations, on_meta
from vitrail.models.layers import as_tokens
from vitrail.models.tokenizer import Tokenizer
from vitrail.runtime.device import in_precision
from vitrail.tasks.task import Task
from vitrail.weights.tokenizers import SavedTokenizer

NEAR = 4 / 3  # largest ratio of the side of an image to the side that the teacher was trained on
CHUNK = 128  # images that a frozen network sees at once, whatever the batch: it has no micro-steps to save memory by


class Teacher:
    """A frozen classifier that gives its logits for the student's ``classes``, in their order, computed in ``precision``.

    Images with the student's ``preprocessing`` are scaled and normalised for the teacher, which is on the student's device.

    Raises `ConfigError` if the teacher has no head, lacks a class, gives several labels an image, or takes other channels.
    """

    def __init__(
        self, model: Task, classes: Sequence[str], preprocessing: Preprocessing, precision: str = "fp32"
    ) -> None:
        remedy = "train it on these data first: vitrail train DATA --init TEACHER"
        if not model.classes:
            raise ConfigError("the teacher has no head, so it knows no classes", remedy)
        number = index_classes(model.classes)
        missing = [name for name in classes if name not in number]
        if missing:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            knows = f"it knows {len(model.classes)} classes: {', '.join(model.classes[:5])}, ..."
            what = f"the teacher does not know {len(missing)} of the {len(classes)} classes: {shown}"
            raise ConfigError(what, remedy, value=knows)
        if model.multi_label:
            raise ConfigError("the teacher gives every image several labels", "take one that chooses among the classes")
        check_channels(model, preprocessing)
        self.model, self.preprocessing, self.precision = model.eval().requires_grad_(False), preprocessing, precision
        self.columns = torch.tensor([number[name] for name in classes], device=device_of(model))

    @torch.no_grad()
    def operations(self, size: tuple[int, int]) -> int:
        """Returns the floating-point operations for one image of any ``size``, which is scaled to the teacher's."""
        own = self.model.preprocessing
        network, image = on_meta(self.model).eval(), torch.empty(1, own.channels, *own.size, device="meta")
        return count_operations(lambda: network(image))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, h, w) as the student takes them to logits (B, K)."""
        own = self.model.preprocessing
        seen = renormalise(images, self.preprocessing, own, own.size)
        with in_precision(self.precision, images.device):
            logits = self.model(seen)
        return logits.float()[:, self.columns]


class FeatureTeacher:
    """A frozen backbone that gives its features and its last map for images with the student's ``preprocessing``, computed in
    ``precision``; its head, if there is one, is not used.

    Images are scaled so that the teacher's map has the student's ``grid`` where that is about the teacher's own size, as with
    patches of 14 and 16 pixels; otherwise they are given in its own size, and its map is scaled.

    Raises `ConfigError` if the teacher takes other channels.
    """

    def __init__(
        self, model: Task, preprocessing: Preprocessing, grid: tuple[int, int], precision: str = "fp32"
    ) -> None:
        check_channels(model, preprocessing)
        self.model, self.preprocessing, self.precision = model.eval().requires_grad_(False), preprocessing, precision
        self.grid, self.size = grid, choose_teacher_size(model, grid)

    @torch.no_grad()
    def operations(self, size: tuple[int, int]) -> int:
        """Returns the floating-point operations for one image of any ``size``, which is scaled to the teacher's."""
        backbone = on_meta(self.model.backbone).eval()
        image = torch.empty(1, self.model.preprocessing.channels, *self.size, device="meta")
        return count_operations(lambda: backbone.features_and_map(image))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, h, w) as the student takes them to (B, G + N E): features, then cells of the map, as unit vectors in fp32."""
        seen = renormalise(images, self.preprocessing, self.model.preprocessing, self.size)
        with in_precision(self.precision, images.device):
            features, x = self.model.backbone.features_and_map(seen)
        x = x.float()  # (B, E, h, w)
        if x.shape[2:] != self.grid:
            x = nn.functional.interpolate(x, self.grid, mode="bilinear", antialias=True, align_corners=False)
        cells = as_tokens(nn.functional.normalize(x, dim=1))  # (B, N, E)
        return torch.cat([nn.functional.normalize(features.float(), dim=1), cells.flatten(1)], 1)


class TokenizerCodes:
    """The codes of images that were normalised for an encoder, one code for each of the encoder's patches.

    Raises `ConfigError` if the tokenizer takes other channels.
    """

    def __init__(
        self, saved: SavedTokenizer, preprocessing: Preprocessing, patch_size: tuple[int, int], device: torch.device
    ) -> None:
        if saved.preprocessing.channels != preprocessing.channels:
            what = f"the tokenizer takes {saved.preprocessing.channels} channels, the encoder {preprocessing.channels}"
            raise ConfigError(what, "train a tokenizer on these images")
        self.tokenizer: Tokenizer = saved.tokenizer.to(device).eval().requires_grad_(False)
        self.own, self.preprocessing, self.patch_size = saved.preprocessing, preprocessing, patch_size

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to codes (B, N), of the images scaled so that each patch of the encoder is one of the tokenizer's."""
        size = self._size(images.shape[2:])
        return self.tokenizer.encode(renormalise(images, self.preprocessing, self.own, size)).flatten(1)

    @torch.no_grad()
    def operations(self, size: tuple[int, int]) -> int:
        """Returns the floating-point operations for one image of ``size`` (height, width)."""
        tokenizer = on_meta(self.tokenizer).eval()
        image = torch.empty(1, self.own.channels, *self._size(size), device="meta")
        return count_operations(lambda: tokenizer.encode(image))

    def _size(self, size: Sequence[int]) -> tuple[int, int]:
        """Returns the size to which images of ``size`` are scaled for the tokenizer."""
        grid, patch = self._grid(size), self.tokenizer.config.patch_size
        return grid[0] * patch[0], grid[1] * patch[1]

    def _grid(self, size: Sequence[int]) -> tuple[int, int]:
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]

    @torch.no_grad()
    def decode(self, codes: Tensor, size: tuple[int, int]) -> Tensor:
        """Decodes codes (B, N) to images of ``size`` (height, width): (B, C, H, W), normalised for the encoder."""
        decoded = self.tokenizer.decode(codes.unflatten(1, self._grid(size)))
        return renormalise(decoded, self.own, self.preprocessing, size)


# not trained; an objective takes its outputs for the images of a batch
FrozenNetwork = Teacher | FeatureTeacher | TokenizerCodes


def check_channels(model: Task, preprocessing: Preprocessing) -> None:
    """Raises `ConfigError` if the teacher ``model`` takes other channels than the student; grey images it sees as colours."""
    if preprocessing.channels not in (1, model.preprocessing.channels):
        what = f"the teacher takes {model.preprocessing.channels} channels, the student {preprocessing.channels}"
        raise ConfigError(what, "give them images of as many, with data.channels")


def choose_teacher_size(model: Task, grid: tuple[int, int]) -> tuple[int, int]:
    """Returns the size (height, width) in which a teacher sees images for a map on the student's ``grid``.

    It is that of as many cells, if its area is within `NEAR` of the teacher's own; else it has the area of its own size and the
    shape of the grid. Where the teacher does not support that, it is its own size.
    """
    own, cell = model.preprocessing.size, model.config.cell
    size = (grid[0] * cell[0], grid[1] * cell[1])
    scale = math.sqrt(math.prod(own) / math.prod(size))
    if not 1 / NEAR <= scale <= NEAR:
        size = tuple(max(round(side * scale / part), 1) * part for side, part in zip(size, cell))  # type: ignore[assignment]
    backbone = on_meta(model.backbone).eval()
    try:
        backbone.features_and_map(torch.empty(1, model.preprocessing.channels, *size, device="meta"))
    except ConfigError:
        return own
    return size


def renormalise(images: Tensor, source: Preprocessing, target: Preprocessing, size: tuple[int, int]) -> Tensor:
    """Converts images (B, C, H, W) that were normalised for ``source``: scaled to ``size`` and normalised for ``target``; a
    single channel is repeated for those of ``target``.
    """
    pictures = source.denormalise(images)
    if pictures.shape[1] == 1:
        pictures = pictures.expand(-1, target.channels, -1, -1)
    if pictures.shape[2:] != size:
        pictures = nn.functional.interpolate(pictures, size, mode="bilinear", antialias=True, align_corners=False)
    return target.normalise(pictures)


def apply_in_chunks(network: FrozenNetwork, images: Tensor) -> Tensor:
    """Returns the outputs of ``network`` for images (B, ...), computed `CHUNK` images at a time."""
    return torch.cat([network(chunk) for chunk in images.split(CHUNK)])
