"""Augmentation policies: the settings, and the named policies. Needs neither numpy nor torch, so that the settings load fast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, get_args

from vitrail.errors import ConfigError, nearest

OPERATIONS = (
    "auto_contrast", "equalise", "invert", "rotate", "posterise", "solarise", "solarise_add", "colour", "contrast",
    "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y", "cutout",
)  # fmt: skip
Crop = Literal["none", "squash", "inception", "pad", "jitter"]
CropRule = Literal["area", "height"]
PadMode = Literal["reflect", "zero"]
EraseFill = Literal["noise", "constant"]
MixEach = Literal["batch", "image"]
CHOICES = {"crop": Crop, "crop_rule": CropRule, "pad_mode": PadMode, "erase_fill": EraseFill, "mix_each": MixEach}


class LocalViews(NamedTuple):
    """The last ``count`` views of each image, which are smaller than the others, of ``size`` (height, width)."""

    count: int
    size: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Augment:
    """An augmentation policy. The order is crop, flip, three-augment, jitter, grey, blur, solarise, RandAugment, erasing;
    then, on batches, mixing. The views of an image are independent; blur and solarise may differ in even and odd views.

    Attributes:
        crop: ``inception`` is a part of random area and aspect ratio, scaled; ``squash`` a part of random area with the
            aspect ratio of the image, scaled to the required one; ``pad`` a shift over a padded border; ``jitter`` the image
            scaled by a random factor, at a random position, with a border where it is smaller than the crop (for boxes and
            maps of classes); ``none`` the largest centred part of the required aspect ratio.
        crop_rule: ``area`` draws the area and the logarithm of the aspect ratio uniformly (torchvision); ``height`` draws
            the aspect ratio and then the height, which favours small parts (TensorFlow, and so the papers from Google).
        crop_major: a crop is drawn ten times at most; 1 accepts every crop.
        pad: 0.125 is 4 pixels of 32.
        layers, magnitude: N and M of RandAugment (Cubuk et al. 2020). A drawn M is clipped to 0 ... max(10, magnitude).
        increasing: otherwise as in the original code, where a larger M posterises and solarises less, and M = 5 does not
            change colour, contrast, brightness and sharpness.
        jitter: brightness, contrast and saturation are each multiplied by 1 - j ... 1 + j, in random order.
        hue: the hues of an image are shifted by -hue ... hue of the colour circle, as a fourth part of the jitter.
        mix_major: the weight is max(w, 1 - w).

    Raises:
        ConfigError: a value out of range, or an unknown name.
    """

    crop: Annotated[
        Crop, "random part of the image, or the image shifted or scaled at random, or the largest centred part"
    ] = "inception"
    crop_area: Annotated[tuple[float, float], "range of the area of the crop, relative to the image"] = (0.08, 1.0)
    local_crop_area: Annotated[tuple[float, float], "crop_area of the small views of dino and ibot"] = (0.05, 0.3)
    crop_aspect: Annotated[tuple[float, float], "range of the width / height of the crop"] = (3 / 4, 4 / 3)
    crop_rule: Annotated[CropRule, "draw the area (torchvision) or the height (TensorFlow) uniformly"] = "area"
    crop_scale: Annotated[tuple[float, float], "range of the factor of jitter; at 1 the image just fits"] = (0.5, 2.0)
    crop_major: Annotated[float, "share of one class of pixels above which a crop of jitter is drawn again"] = 1.0
    pad: Annotated[float, "largest shift of the crop over a padded border, relative to the side"] = 0.125
    pad_mode: Annotated[PadMode, "border of reflected pixels, or of zeros"] = "reflect"
    flip: Annotated[float, "probability of a horizontal flip"] = 0.5
    layers: Annotated[int, "operations of RandAugment per image; 0 disables it"] = 0
    magnitude: Annotated[float, "strength of RandAugment, on a scale of 10"] = 9.0
    magnitude_std: Annotated[float, "standard deviation of the strength over images"] = 0.0
    increasing: Annotated[bool, "every operation gets stronger with the magnitude (timm's inc1)"] = False
    probability: Annotated[float, "probability of each operation of RandAugment"] = 1.0
    operations: Annotated[tuple[str, ...], "operations of RandAugment, drawn uniformly"] = OPERATIONS
    fill: Annotated[int, "level of uncovered pixels, 0 to 255"] = 128
    three_augment: Annotated[bool, "one of grey, solarise and blur per image (DeiT III)"] = False
    blur: Annotated[tuple[float, float], "range of the standard deviation of the blur in pixels"] = (0.1, 2.0)
    jitter: Annotated[tuple[float, float, float], "strengths of jitter: brightness, contrast, saturation"] = (0.0,) * 3
    hue: Annotated[float, "largest shift of the hue, relative to the colour circle"] = 0.0
    jitter_probability: Annotated[float, "probability of jittering an image"] = 1.0
    grey: Annotated[float, "probability of converting an image to grey"] = 0.0
    blur_views: Annotated[tuple[float, float], "probability of blurring even and odd views"] = (0.0, 0.0)
    local_blur: Annotated[float, "probability of blurring the small views of dino and ibot"] = 0.0
    solarise_views: Annotated[tuple[float, float], "probability of solarising even and odd views"] = (0.0, 0.0)
    erase: Annotated[float, "probability of random erasing"] = 0.0
    erase_area: Annotated[tuple[float, float], "range of the erased area, relative to the image"] = (0.02, 1 / 3)
    erase_aspect: Annotated[tuple[float, float], "range of the height / width of the erased box"] = (0.3, 1 / 0.3)
    erase_fill: Annotated[EraseFill, "noise per pixel, or the level `fill`"] = "noise"
    mixup: Annotated[float, "parameter of the Beta distribution of mixup; 0 disables it"] = 0.0
    cutmix: Annotated[float, "parameter of the Beta distribution of CutMix; 0 disables it"] = 0.0
    switch: Annotated[float, "probability of CutMix if mixup is enabled, too"] = 0.5
    mix_probability: Annotated[float, "probability of mixing a batch or an image"] = 1.0
    mix_each: Annotated[MixEach, "draw the mixture per batch, or per image"] = "batch"
    mix_major: Annotated[bool, "each image keeps the larger share of a mixture (big_vision)"] = False
    smoothing: Annotated[float, "label smoothing"] = 0.0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise ConfigError(f"augment.{name} is {value!r}", nearest(str(value), get_args(choices)))
        for name in (
            "flip",
            "probability",
            "jitter_probability",
            "grey",
            "local_blur",
            "erase",
            "switch",
            "mix_probability",
        ):
            self._demand(name, 0 <= getattr(self, name) <= 1, "give a probability, 0 to 1")
        for name in ("blur_views", "solarise_views"):
            views = getattr(self, name)
            are_shares = len(views) == 2 and all(0 <= view <= 1 for view in views)
            self._demand(name, are_shares, "give two probabilities, 0 to 1")
        for name in ("crop_area", "local_crop_area", "crop_aspect", "crop_scale", "erase_area", "erase_aspect", "blur"):
            low, high = getattr(self, name)
            self._demand(name, 0 < low <= high, "give two numbers above 0 in increasing order")
        for name in ("crop_area", "local_crop_area", "erase_area"):
            self._demand(name, getattr(self, name)[1] <= 1, "give fractions of the image, at most 1")
        for name in ("magnitude", "magnitude_std", "mixup", "cutmix"):
            self._demand(name, 0 <= getattr(self, name) < float("inf"), "give a number, 0 or more")
        self._demand("jitter", all(0 <= strength <= 1 for strength in self.jitter), "give three numbers from 0 to 1")
        self._demand("hue", 0 <= self.hue <= 0.5, "give a fraction of the colour circle, at most 0.5")
        self._demand("crop_major", 0 < self.crop_major <= 1, "give a share of the crop, at most 1")
        self._demand("pad", 0 <= self.pad <= 0.5, "give a fraction of the side, at most 0.5")
        self._demand("fill", 0 <= self.fill <= 255, "give a level from 0 to 255")
        self._demand("smoothing", 0 <= self.smoothing < 1, "give a number from 0 to below 1, such as 0.1")
        self._demand("layers", self.layers >= 0, "give the number of operations per image; 0 disables them")
        self._demand("operations", len(self.operations) > 0, "name at least one, or set augment.layers to 0")
        for name in self.operations:
            if name not in OPERATIONS:
                raise ConfigError(f"augment.operations has {name!r}", nearest(name, OPERATIONS))

    def _demand(self, name: str, holds: bool, remedy: str) -> None:
        if not holds:
            raise ConfigError(f"augment.{name} is {getattr(self, name)}", remedy)

    @property
    def only_flips(self) -> bool:
        """Whether an image is never changed but by a flip, before images are mixed."""
        changes = (*self.jitter, self.hue, self.grey, *self.blur_views, *self.solarise_views, self.layers, self.erase)
        return self.crop == "none" and not (self.three_augment or any(changes))

    @property
    def local(self) -> Augment:
        """The policy of small views, which are never solarised."""
        blur = (self.local_blur, self.local_blur)
        return replace(self, crop_area=self.local_crop_area, blur_views=blur, solarise_views=(0.0, 0.0))

    @property
    def mixes(self) -> bool:
        """Whether images of a batch are ever mixed."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0


GOOGLE = Augment(crop_area=(0.05, 1.0), crop_rule="height")  # the inception crop of the ViT papers, and a flip
RANDAUGMENT = Augment(layers=2, magnitude_std=0.5, increasing=True, probability=0.5, operations=OPERATIONS[:-1])
# for two views of each image: Chen et al. 2020, appendix A, strength 1
SIMCLR = Augment(jitter=(0.8, 0.8, 0.8), hue=0.2, jitter_probability=0.8, grey=0.2, blur_views=(0.5, 0.5))
# the views of BYOL (Grill et al. 2020, appendix B)
BYOL = replace(SIMCLR, jitter=(0.4, 0.4, 0.2), hue=0.1, blur_views=(1.0, 0.1), solarise_views=(0.0, 0.2))


def _augreg(magnitude: float, mixup: float) -> Augment:
    return replace(GOOGLE, layers=2, magnitude=magnitude, mixup=mixup, mix_major=True)


POLICIES: dict[str, Augment] = {
    "none": Augment(crop="none", flip=0.0),
    "flip": Augment(crop="none"),
    "inception": GOOGLE,
    # AugReg (Steiner et al. 2022), section 3.2: (layers, magnitude, mixup); the magnitude 0 of light1 is the paper's
    "light1": _augreg(0, 0.0),
    "light2": _augreg(10, 0.2),
    "medium1": _augreg(15, 0.2),
    "medium2": _augreg(15, 0.5),
    "strong1": _augreg(20, 0.5),
    "strong2": _augreg(20, 0.8),
    "plain_vit": _augreg(10, 0.2),  # Beyer et al. 2022
    # Touvron et al. 2021, table 9: rand-m9-mstd0.5-inc1
    "deit": replace(RANDAUGMENT, erase=0.25, mixup=0.8, cutmix=1.0, smoothing=0.1),
    # DeiT III (Touvron et al. 2022), section 3
    "three_augment": Augment(three_augment=True, jitter=(0.3, 0.3, 0.3), mixup=0.8, cutmix=1.0),
    "mae": Augment(crop_area=(0.2, 1.0)),  # He et al. 2022, section 3
    "moco": BYOL,  # Chen et al. 2021
    "dino": replace(BYOL, crop_area=(0.3, 1.0), local_blur=0.5),  # Caron et al. 2021; the areas are DINOv2's
    "simclr": SIMCLR,
    # Chen et al. 2020, appendix B.9: CIFAR-10, half the strength and no blur
    "simclr32": replace(SIMCLR, jitter=(0.4, 0.4, 0.4), hue=0.1, blur_views=(0.0, 0.0)),
    # ours: small images from scratch; photographs with pre-trained weights
    "small": Augment(crop="pad", pad_mode="zero"),
    "finetune": Augment(crop_area=(0.25, 1.0)),
}
