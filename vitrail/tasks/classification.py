"""Classification: a backbone with the names of its outputs and the preprocessing it was trained for; its losses.

B images, C channels, H and W their size, K classes, D width. Figures from answers are in `metrics`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitrail.data.decode import BadImage, decode
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError, DataError
from vitrail.models import AttentionGrid, AttentionRecord, Backbone, Config, Patches, Tokens, create_backbone, device_of

Picture = bytes | Image.Image | np.ndarray | Tensor
REMEDY = (
    "give Pillow images, the bytes of image files, or arrays (H, W, C) or tensors (C, H, W) of uint8 or of floats in "
    "[0, 1]; normalised images go to model(images), paths to `vitrail predict`"
)
AT_ONCE = 32  # pictures that `Classifier.predict` shows the network at one time


def softmax_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in fp32, the mean over images.

    Args:
        logits: (B, K), of any precision.
        targets: (B,) indices of classes, or (B, K) probabilities, as mixing and smoothing make them.
    """
    return F.cross_entropy(logits.float(), targets.float() if targets.ndim == 2 else targets)


def sigmoid_loss(logits: Tensor, targets: Tensor, *, binarise: bool = False) -> Tensor:
    """Binary cross-entropy of every class in fp32, the mean over images and classes.

    Args:
        logits: (B, K), of any precision.
        targets: (B,) indices of classes, or (B, K) values in [0, 1].
        binarise: every target above 0 counts as 1, so a mixed image shows all its classes (Touvron et al. 2022,
            DeiT III). Smoothed targets are all above 0: leave one of the two out.
    """
    if targets.ndim == 1:
        targets = F.one_hot(targets, logits.shape[1])
    targets = (targets > 0 if binarise else targets).float()
    return F.binary_cross_entropy_with_logits(logits.float(), targets)


@dataclass(frozen=True)
class Prediction:
    """The answer for one picture: the best label, its probability, and the best few as (label, probability)."""

    label: str
    score: float
    top: tuple[tuple[str, float], ...]


class Classifier(nn.Module):
    """A backbone that knows what its outputs mean and how its inputs are made. Calling it gives logits.

    Args:
        backbone: any architecture of `vitrail.models`; its verbs pass through.
        classes: one name for each output.
        preprocessing: how a picture becomes its input.
        multi_label: each output is a yes or no of its own, not one choice among all.
        temperature: what logits are divided by before they become probabilities (Guo et al. 2017); 1 is none.
        provenance: plain facts on where the weights come from; stored with the model.

    Raises:
        ConfigError: names that repeat, or whose number is not that of the outputs.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        preprocessing: Preprocessing,
        *,
        multi_label: bool = False,
        temperature: float = 1.0,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.classes = check_classes(classes, outputs=backbone.config.classes)
        if preprocessing.channels != backbone.config.in_channels:
            raise ConfigError(
                f"the preprocessing has {preprocessing.channels} channels, the model {backbone.config.in_channels}",
                "give one mean and one std for each channel of the model",
            )
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature is {temperature}", "give a number above 0; 1 leaves the logits as they are")
        self.backbone = backbone
        self.preprocessing = preprocessing
        self.multi_label = multi_label
        self.temperature = temperature
        self.provenance = dict(provenance or {})

    def preprocess(self, pictures: Picture | Iterable[Picture]) -> Tensor:
        """Pictures as the network takes them, on its device: (B, C, H, W) float32.

        Args:
            pictures: one or several of: Pillow images of any mode and size; the bytes of image files; arrays (H, W, C)
                or (H, W); tensors (C, H, W); uint8, or floats in [0, 1]. Four dimensions are several pictures.

        Raises:
            DataError: names the picture that cannot be used, and why.
        """
        device = device_of(self)
        pictures = _as_list(pictures)
        if not pictures:
            return torch.empty(0, self.preprocessing.channels, *self.preprocessing.size, device=device)
        return torch.cat([self._input(place, picture) for place, picture in enumerate(pictures)]).to(device)

    def _input(self, place: int, picture: Picture) -> Tensor:
        try:
            pixels = self.picture(picture)
        except BadImage as error:
            raise DataError(f"picture {place} cannot be used: {error.reason}", REMEDY) from error
        return self.preprocessing.normalise(torch.from_numpy(pixels)[None])  # (1, C, H, W)

    def picture(self, picture: Picture) -> np.ndarray:
        """One picture resized and cropped but not normalised, as a person would look at what the network sees.

        Returns:
            uint8 (C, H, W), or float32 in [0, 1] where floats were given.

        Raises:
            BadImage: it cannot be used.
        """
        return self.preprocessing.picture(opened(picture, self.preprocessing.channels))

    def predict(self, pictures: Picture | Iterable[Picture], top: int = 5) -> list[Prediction]:
        """The answer for each picture, best first.

        Args:
            pictures: what `preprocess` takes.
            top: how many labels an answer lists, at most.
        """
        self.check_can_answer(top)
        pictures = _as_list(pictures)
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                parts = [self(self.preprocess(pictures[at : at + AT_ONCE])) for at in range(0, len(pictures), AT_ONCE)]
        finally:
            self.train(was_training)
        return [answer for logits in parts for answer in self._answers(logits, min(top, len(self.classes)))]

    def check_can_answer(self, top: int) -> None:
        """Raises `ConfigError` where there is no head, or ``top`` asks for no label."""
        if not self.classes:
            remedy = "train one: `vitrail train DATA --init MODEL`; `vitrail embed` gives its features"
            raise ConfigError("the model has no head to predict with", remedy)
        if top < 1:
            raise ConfigError(f"top is {top}", "ask for at least one label")

    def _answers(self, logits: Tensor, top: int) -> list[Prediction]:
        scores, places = self.probabilities(logits).topk(top, dim=1)  # (B, top) each
        ranked = [
            tuple((self.classes[place], score) for place, score in zip(*row))
            for row in zip(places.tolist(), scores.tolist())
        ]
        return [Prediction(*best[0], best) for best in ranked]

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, K) twice, in fp32: softmax of logits / temperature; with several labels the sigmoid of each."""
        scaled = logits.float() / self.temperature
        return scaled.sigmoid() if self.multi_label else scaled.softmax(1)

    # What follows is the backbone's; see `vitrail.models`.

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) to logits (B, K)."""
        return self.backbone(images)

    def features(self, images: Tensor) -> Tensor:
        return self.backbone.features(images)

    def forward_features(self, images: Tensor) -> Tokens:
        return self.backbone.forward_features(images)

    def feature_maps(self, images: Tensor) -> list[Tensor]:
        return self.backbone.feature_maps(images)

    def forward_recording(self, images: Tensor, on_attention: Callable[[AttentionRecord], None]) -> Tensor:
        return self.backbone.forward_recording(images, on_attention)

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.backbone.forward_with_attention(images)

    def patchify(self, images: Tensor) -> Patches:
        return self.backbone.patchify(images)

    def place(self, patches: Patches) -> Patches:
        return self.backbone.place(patches)

    def encode(self, patches: Patches) -> Tokens:
        return self.backbone.encode(patches)

    def pool(self, tokens: Tokens) -> Tensor:
        return self.backbone.pool(tokens)

    def pooling_shares(self, tokens: int) -> Tensor:
        return self.backbone.pooling_shares(tokens)

    def head(self, features: Tensor) -> Tensor:
        return self.backbone.head(features)

    def heads(self, features: Tensor) -> dict[str, Tensor]:
        return self.backbone.heads(features)

    def layers(self) -> list[dict[str, nn.Parameter]]:
        return self.backbone.layers()

    def no_decay(self) -> set[str]:
        return self.backbone.no_decay()

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        return self.backbone.attention_grids(size)

    @property
    def config(self) -> Any:
        return self.backbone.config

    @property
    def about(self) -> str:
        return self.backbone.about

    @property
    def width(self) -> int:
        return self.backbone.width

    @property
    def patch_width(self) -> int:
        return self.backbone.patch_width

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.backbone.prefix

    @property
    def first_layer(self) -> str:
        """A name as `layers` and `no_decay` give them: the backbone's."""
        return self.backbone.first_layer


def create_model(
    name: str | Config,
    *,
    classes: int | Sequence[str] = 1000,
    preprocessing: Preprocessing | None = None,
    multi_label: bool = False,
    **changes: Any,
) -> Classifier:
    """A freshly initialised classifier.

    Args:
        name: a name of `vitrail.models.MODELS`, or a config.
        classes: the names of the outputs, or their number.
        preprocessing: by default the paper's, at the model's image size.
        changes: fields of the model's config, such as ``image_size=384`` or ``in_channels=5``.

    Raises:
        ConfigError: an unknown model or field, with the nearest names; a value that cannot be meant.
    """
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else classes
    backbone = create_backbone(name, classes=len(names), **changes)
    if preprocessing is None:
        preprocessing = Preprocessing.paper(backbone.config.image_size, channels=backbone.config.in_channels)
    return Classifier(backbone, names, preprocessing, multi_label=multi_label)


def check_classes(classes: Sequence[str], *, outputs: int) -> tuple[str, ...]:
    """The names as a tuple. Raises `ConfigError` where they repeat or are not as many as the outputs."""
    names = tuple(map(str, classes))
    if len(names) != outputs:
        raise ConfigError(f"{len(names)} class names for {outputs} outputs", "give one name for each output, in order")
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ConfigError(f"class names repeat: {', '.join(repeated[:5])}", "give each output a name of its own")
    return names


def opened(picture: Any, channels: int) -> Image.Image | np.ndarray:
    """A Pillow image or an array (H, W, C), uint8 or float32 in [0, 1]. Raises `BadImage` for anything else."""
    if isinstance(picture, bytes):
        return decode(picture, channels=channels)
    if isinstance(picture, Tensor):
        picture = picture.detach().cpu()
        picture = (picture.movedim(0, -1) if picture.ndim == 3 else picture).numpy()
    if isinstance(picture, Image.Image):
        return picture
    if not isinstance(picture, np.ndarray):
        raise BadImage(f"it is a {type(picture).__name__}")
    if picture.dtype == np.uint8:
        return picture
    if not np.issubdtype(picture.dtype, np.floating):
        raise BadImage(f"it holds {picture.dtype}")
    low, high = picture.min(initial=0), picture.max(initial=1)
    if not (low >= 0 and high <= 1):
        raise BadImage(f"its values run from {low:g} to {high:g}")
    return picture.astype(np.float32)


def _as_list(pictures: Any) -> list[Any]:
    """Several pictures as a list, one as a list of one; what is no picture is refused by name where it is looked at."""
    if isinstance(pictures, np.ndarray | Tensor):
        return list(pictures) if pictures.ndim == 4 else [pictures]
    several = isinstance(pictures, Iterable) and not isinstance(pictures, Image.Image | str | bytes)
    return list(pictures) if several else [pictures]
