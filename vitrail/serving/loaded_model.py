"""A loaded model as the server uses it: with a name and a version, and results as plain values.

C channels, K classes, F what the head reads, H heads, h x w pixels of the input or places of a layer's map.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.attention import Place, check_index, compute_layer_maps, compute_query_shares, compute_reach
from vitrail.analysis.attention_geometry import Lift
from vitrail.analysis.explanation import (
    METHODS,
    NEEDS_ANSWER,
    NEEDS_ATTENTION,
    ExplainOptions,
    Explanation,
    PreparedImage,
    explain_image,
    prepare_image,
    resolve_options,
    shrink,
)
from vitrail.data.augment.placement import Frames
from vitrail.data.decode import decode
from vitrail.data.pictures import Picture, size_of
from vitrail.errors import ConfigError
from vitrail.inference.features import digest_of
from vitrail.inference.options import InferenceOptions
from vitrail.models import device_of
from vitrail.runtime.precision import in_precision
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.weights.folders import CONFIG
from vitrail.weights.onnx import ExportedBackbone
from vitrail.weights.resolve import resolve_model
from vitrail.weights.tensors import read_json

SHOWN = 1024  # pixels at most of the longer side of a picture that is sent back
NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
VERSIONS = 8  # of an occluded image that the network sees at one time


class Output(NamedTuple):
    """Of one picture: what calling the model gave for it, and what its input shows of the picture, where that is known."""

    values: Tensor
    frames: Frames | None


class LayerMaps(NamedTuple):
    """What is attended to in one layer, (H, h, w), or by a method that knows no layers, (1, h, w).

    ``heads`` are their numbers, or None for a mean or a method without heads; ``reach`` as `analysis.pictures.overlay` has it.
    """

    layer: int | None
    heads: list[int] | None
    values: np.ndarray
    reach: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ExplanationRequest:
    """What is asked about an image: `ExplainOptions`, and whose attention.

    Args:
        every_layer: all layers at once; of the method attention.
        query: row and column of the place that asks, in the layer's map; of the method attention.
    """

    options: ExplainOptions = field(default_factory=ExplainOptions)
    every_layer: bool = False
    query: Place | None = None

    def __post_init__(self) -> None:
        if self.options.method != "attention" and (self.every_layer or self.query is not None):
            what = f"{self.options.method} goes through all layers at once"
            raise ConfigError(what, "leave layer and query out, or take the method attention")


class Abandoned(Exception):
    """Nobody waits for what is computed."""


class LoadedModel:
    """A model that answers. `prepare` and `look` may be called by any thread, all else by one at a time.

    Args:
        model: on its device, in evaluation mode.
        name: what clients call it.
        precision: "fp32" or "bf16".
        about: what lies beside the weights: metrics, card, parity.
    """

    def __init__(
        self, model: Task, name: str, *, precision: str = "fp32", about: Mapping[str, Any] | None = None
    ) -> None:
        self.model, self.name, self.precision = model, name, precision
        self.about = dict(about or {})
        self.version = compute_version(model)
        self.attention = _describe_attention(model)
        self.methods = [
            method
            for method in METHODS
            if (self.attention or method not in NEEDS_ATTENTION)
            and (model.answers_classes or method not in NEEDS_ANSWER)
        ]
        self.sample = self._try()  # a model that cannot answer is refused before it is asked

    @property
    def identity(self) -> dict[str, str]:
        """What replies say of the model."""
        return {"name": self.name, "version": self.version}

    def _try(self) -> dict[str, np.ndarray | list[str]]:
        """The outputs for one blank picture, as `encode` gives them; none of a model without a head."""
        size = self.model.preprocessing.size
        pixels = np.zeros((self.model.preprocessing.channels, *size), np.uint8)
        blank = Picture(pixels, (0.0, 0.0, size[1], size[0]), size)
        if self.model.classes:
            return self.encode(self.answer([blank]))
        self.features([blank])
        return {}

    def prepare(self, content: bytes, *, most_pixels: int) -> Picture:
        """An image file as the model takes it before normalisation, uint8. Raises `BadImage`."""
        preprocessing = self.model.preprocessing
        image = decode(content, channels=preprocessing.channels, max_pixels=most_pixels)
        top, left, bottom, right = preprocessing.visible_box(*size_of(image))
        return Picture(preprocessing.picture(image), (left, top, right, bottom), size_of(image))

    def answer(self, pictures: list[Picture]) -> list[Output]:
        """The output for each picture that `prepare` gave. Raises `ArithmeticError` where one is no finite number."""
        values = self._run(self.model, self._normalise(pictures))
        frames = Frames.of(pictures)
        return [Output(row, frames.take(np.array([index]))) for index, row in enumerate(values)]

    def answer_normalised(self, pictures: list[np.ndarray]) -> list[Output]:
        """The same for what was normalised before: float32 (C, h, w) each."""
        values = self._run(self.model, torch.from_numpy(np.stack(pictures)).to(device_of(self.model)))
        return [Output(row, None) for row in values]

    def decode(self, output: Output, top: int) -> dict[str, Any]:
        """The answer in an output, as the server sends it."""
        (answer,) = self.model.decode(output.values[None], output.frames, top=top)
        return answer.to_json()

    def encode(self, outputs: list[Output]) -> dict[str, np.ndarray | list[str]]:
        """Outputs as named arrays, the images first."""
        return self.model.reply_arrays(torch.stack([output.values for output in outputs]))

    def features(self, pictures: list[Picture]) -> list[np.ndarray]:
        """What the head reads of each picture that `prepare` gave: (F,) float32. Raises `ArithmeticError`."""
        return list(self._run(self.model.features, self._normalise(pictures)).numpy())

    def _normalise(self, pictures: list[Picture]) -> Tensor:
        stacked = torch.from_numpy(np.stack([picture.pixels for picture in pictures]))  # (B, C, h, w)
        return self.model.preprocessing.normalise(stacked.to(device_of(self.model)))

    @torch.inference_mode()
    def _run(self, verb: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        with in_precision(self.precision, images.device):
            outputs: Tensor = verb(images).float().cpu()
        if not outputs.isfinite().all():
            raise ArithmeticError("the model's output is not finite")
        return outputs

    def prepare_explanation(self, content: bytes, *, most_pixels: int) -> PreparedImage:
        """An image file as it is looked at, a large one shrunk for showing. Raises `BadImage`."""
        prepared = prepare_image(self.model, content, max_pixels=most_pixels)
        picture, box = shrink(prepared.picture, prepared.box, SHOWN)
        return replace(prepared, picture=picture, box=box)

    def check_request(self, request: ExplanationRequest) -> ExplanationRequest:
        """The same with its layer counted from 0. Raises `ConfigError` for what this model cannot be asked."""
        if (method := request.options.method) not in self.methods:
            known = ", ".join(self.methods) or "nothing"
            raise ConfigError(f"this model cannot be asked for {method}", f"it can for: {known}")
        request = replace(request, options=resolve_options(self.model, request.options))
        if request.query is not None and not self._layers_of(request):
            where = "any layer" if request.every_layer else f"layer {request.options.layer}"
            maps = sorted({"{} x {}".format(*layer["map"]) for layer in self.attention if layer["asks"] == "all"})
            what = f"no place {request.query} asks in {where}"
            raise ConfigError(what, f"give row,column from 0 in a map of {' or '.join(maps) or 'a layer that asks'}")
        if isinstance(head := request.options.head, int):
            for layer in self._layers_of(request):
                check_index("head", head, self.attention[layer]["heads"])
        return request

    @contextmanager
    def until(self, over: threading.Event) -> Iterator[None]:
        """Inside of it the model stops at its next batch once ``over`` is set, with `Abandoned`."""

        def check(*_: Any) -> None:
            if over.is_set():
                raise Abandoned

        hook = self.model.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()

    def explain(self, prepared: PreparedImage, request: ExplanationRequest) -> Explanation:
        """One image explained, as `workflows.explain` does; ``request`` as `check_request` gives it."""
        return explain_image(self.model, "image", prepared, request.options, VERSIONS)

    def maps(self, prepared: PreparedImage, request: ExplanationRequest) -> list[LayerMaps]:
        """The numbers of an explanation, one entry a layer."""
        if request.options.method != "attention":
            explanation = self.explain(prepared, request)
            return [LayerMaps(None, None, explanation.heat[None], explanation.reach)]
        size = prepared.images.shape[2], prepared.images.shape[3]
        grids, head = self.model.attention_grids(size), request.options.head
        layers = compute_layer_maps(self.model, prepared.images, self._layers_of(request), request.query)
        layer_maps = []
        for layer, maps in layers.items():
            values = maps[0].float().cpu().numpy()  # (H, h, w)
            heads = None if head == "mean" else list(range(len(values))) if head == "all" else [int(head) % len(values)]
            chosen = values.mean(0)[None] if heads is None else values[heads]
            layer_maps.append(LayerMaps(layer, heads, chosen, compute_reach(values.shape[1:], grids[layer].cell, size)))
        return layer_maps

    def _layers_of(self, request: ExplanationRequest) -> list[int]:
        """The layers that are asked, of those in whose map the place is."""
        layers = range(len(self.attention)) if request.every_layer else [request.options.layer]
        return [layer for layer in layers if request.query is None or self._can_ask(layer, request.query)]

    def _can_ask(self, layer: int, query: Place) -> bool:
        attention = self.attention[layer]
        return attention["asks"] == "all" and all(0 <= at < length for at, length in zip(query, attention["map"]))


def _describe_attention(model: Task) -> list[dict[str, Any]]:
    """Of each layer: its heads, the map of its places, whether all of them ask or the class token alone, and who does unasked."""
    size, device = model.preprocessing.size, device_of(model)
    if not (grids := model.attention_grids(size)):
        return []
    heads: list[int] = []
    with torch.inference_mode():
        images = torch.zeros(1, model.config.in_channels, *size, device=device)
        model.forward_recording(images, lambda look: heads.append(look.shape[1]))
    lifts = [Lift(grid, device) for grid in grids]
    shares = [compute_query_shares(model, grid, None, device) for grid in grids]
    return [
        {
            "heads": count,
            "map": list(lift.map),
            "asks": "all" if lift.all_ask else "class token",
            "reads": "class token" if share[: lift.prefix].sum() >= 0.5 else "patches",
        }
        for count, lift, share in zip(heads, lifts, shares, strict=True)
    ]


def compute_version(model: Task) -> str:
    """Twelve digits of a SHA-256 of all that decides an answer: weights, preprocessing, classes and temperature."""
    parts = (digest_of(model), model.classes, *model.describe().values())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def load_model(
    model: str, *, name: str | None, classes: Path | None, options: InferenceOptions, say: Say
) -> LoadedModel:
    """The model that ``model`` names, on its device and tried on one picture. Raises what `vitrail.load` does."""
    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r} cannot stand in an address", "give letters, digits, dots and dashes")
    resolved = resolve_model(model)
    task = options.load(model, classes, say)
    about = _read_about(resolved.path)
    if isinstance(task.backbone, ExportedBackbone):
        about["parity"] = task.backbone.parity
    return LoadedModel(task, name or _choose_name(resolved.path), precision=options.precision, about=about)


def _choose_name(path: Path) -> str:
    """Of a run its folder's name, else that of the file or folder of weights; as it can stand in an address."""
    path = path.resolve()
    path = path.parent if path.name == "model" else path
    name = re.sub(r"[^\w.-]+", "-", path.stem if path.is_file() else path.name, flags=re.ASCII)
    return name or "model"  # of /model, as in the container


def _read_about(path: Path) -> dict[str, Any]:
    """What lies beside the weights: the figures of their judgement, the source's name, the card of a run."""
    about: dict[str, Any] = {"source": path.name}
    if (path / CONFIG).is_file():
        about["metrics"] = read_json(path / CONFIG).get("metrics", {})
    for card in (path.parent / "card.md", path / "README.md"):
        if path.is_dir() and card.is_file():
            words = card.read_text(encoding="utf-8", errors="replace")
            # its commands name the folder by where it lies, which is nobody else's business
            for place in (card.parent.resolve(), card.parent):
                words = words.replace(str(place), card.parent.name)
            about.setdefault("card", words)
    return about
