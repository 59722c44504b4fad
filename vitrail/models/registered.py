"""Networks of the user's own: a module that maps images to features, registered under a name, is a backbone like the others.

B images, C channels, H x W pixels, F features, h x w cells of a map.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models.attention import AttentionGrid, OnAttention
from vitrail.models.backbone import Backbone
from vitrail.models.config import Config, Pair
from vitrail.models.family import ARCHITECTURES, BACKBONES, MODELS
from vitrail.models.layers import Patches, Tokens, as_tokens

Build = Callable[..., nn.Module]


@dataclass(frozen=True, kw_only=True)
class RegisteredConfig(Config):
    """The config of a registered network; `register_model` makes a class of each. Sizes are those of the module's output."""

    attention: ClassVar[str] = "none"  # as far as is known
    build: ClassVar[Build]

    def _check_together(self) -> None:
        self._check("drop_path", self.drop_path == 0, "0; a registered model decides on its own regularisation")

    @property
    def output(self) -> tuple[int, int, int]:
        """Width F of the features, and the rows and columns of their map; (F, 1, 1) for a vector."""
        return measure_output(type(self).build, self.architecture, self.in_channels, self.image_size)

    @property
    def takes_any_size(self) -> bool:
        """Whether the module also runs on images of twice the size."""
        height, width = self.image_size
        try:
            measure_output(
                type(self).build, self.architecture, self.in_channels, self.image_size, (2 * height, 2 * width)
            )
        except ConfigError:
            return False
        return True

    @property
    def width(self) -> int:
        return self.output[0]

    @property
    def depth(self) -> int:
        return 1

    @property
    def patch_size(self) -> Pair:
        _, rows, columns = self.output
        return -(-self.image_size[0] // rows), -(-self.image_size[1] // columns)


class RegisteredBackbone(Backbone):
    """A registered module with a linear head on the mean of its map. It is one block for layer-wise rates and freezing."""

    config: RegisteredConfig

    def __init__(self, config: RegisteredConfig) -> None:
        super().__init__(config)
        _ = config.output  # refuses what returns no features
        self.module = type(config).build(in_channels=config.in_channels, image_size=config.image_size)
        self.norm = self.fc_norm = nn.Identity()
        self.head = self._make_head()
        for name, parameter in self.head.named_parameters():
            nn.init.constant_(parameter, config.head_bias if name == "bias" else 0.0)

    @property
    def first_layer(self) -> str:
        kernels = (
            name for name, parameter in self.named_parameters() if name.startswith("module.") and parameter.ndim > 1
        )
        return next(kernels, "module")

    def patchify(self, images: Tensor) -> Patches:
        """Applies the module: (B, C, H, W) to the cells of its map, (B, h w, F), or to one cell for a vector."""
        self._check(images)
        x = self._run(self.module, images)
        return Patches(x[:, None], (1, 1)) if x.ndim == 2 else Patches(as_tokens(x), (x.shape[2], x.shape[3]))

    def encode(self, patches: Patches, on_attention: OnAttention | None = None) -> Tokens:
        """Returns the cells. Raises `ConfigError` if ``on_attention`` is given, since there is no attention."""
        if on_attention is not None:
            remedy = "use feature_maps(images), or choose an architecture with attention, such as vit-b16"
            raise ConfigError(f"{self.config.about} records no attention", remedy)
        self._check_subset(patches)
        return Tokens(patches.x, patches.grid)

    def _outputs(self, patches: Patches, on_attention: OnAttention | None = None) -> Iterator[tuple[Tensor, Pair]]:
        tokens = self.encode(patches, on_attention)
        yield tokens.x, tokens.grid

    def attention_grids(self, size: Pair) -> list[AttentionGrid]:
        """Returns an empty list, because no attention is recorded."""
        return []

    def _layer(self, name: str) -> int:
        first = self.first_layer.rpartition(".")[0]
        return -1 if name.startswith("head.") else int(name.rpartition(".")[0] != first)


def register_model(name: str, build: Build, *, image_size: int | Pair = 224) -> None:
    """Registers a network of your own, which is then created, trained, saved, loaded and served by its name.

    Args:
        name: such as "my-net", for ``train(model=name)``, ``create_model(name)`` and ``--model name``.
        build: called with ``in_channels`` and ``image_size`` (height, width), returns a freshly initialised module from
            normalised images (B, C, H, W) to features (B, F) or a map of features (B, F, h, w), of which the head takes the mean.
        image_size: the default size of images in pixels, or (height, width).

    Raises:
        ConfigError: a model or an architecture of vitrail has the name.
    """
    ours = name in MODELS or name in ARCHITECTURES
    if ours and not issubclass(ARCHITECTURES.get(name, Config), RegisteredConfig):
        raise ConfigError(f"{name!r} is a model of vitrail", f"register yours under another name, such as 'my-{name}'")
    about, made = f"the registered model {name}", {"architecture": name, "build": staticmethod(build)}
    config: Any = type(name, (RegisteredConfig,), {**made, "about": about, "__module__": __name__})
    BACKBONES[config] = RegisteredBackbone
    ARCHITECTURES[name] = config
    MODELS[name] = config(image_size=image_size)


@functools.cache
def measure_output(
    build: Build, name: str, channels: int, size: Pair, shown: Pair | None = None
) -> tuple[int, int, int]:
    """Returns (F, h, w) of what a network for images of ``size`` returns for images of the size ``shown``, by default the same.

    Raises `ConfigError` for anything but features.
    """
    height, width = shown or size
    remedy = "return features (B, F) or a map of features (B, F, h, w) for images (B, C, H, W)"
    try:
        with torch.device("meta"), torch.no_grad():
            output = build(in_channels=channels, image_size=size).eval()(torch.empty(2, channels, height, width))
    except Exception as error:
        what = f"the registered model {name} fails on images (2, {channels}, {height}, {width}) without values"
        raise ConfigError(f"{what} (torch's meta device): {type(error).__name__}: {error}", remedy) from error
    if not isinstance(output, Tensor) or output.ndim not in (2, 4) or len(output) != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(f"the registered model {name} returned {shape} for two images", remedy)
    _, features, *grid = output.shape
    rows, columns = grid or (1, 1)
    return features, rows, columns
