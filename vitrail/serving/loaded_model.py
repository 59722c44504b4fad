"""A loaded model with a name and a version, and its results as plain values.

C channels, K classes, F features, H heads, h x w pixels of the input or cells of a layer's attention map.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.attention import Lift, Place, check_index, compute_layer_maps, compute_query_shares, compute_reach
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
from vitrail.analysis.occlusion import choose_window, coarsen_window
from vitrail.analysis.similarity import check_patch
from vitrail.data.augment.placement import Frames
from vitrail.data.prepare import Picture
from vitrail.errors import ConfigError
from vitrail.images.decode import size_of
from vitrail.inference.features import digest_of
from vitrail.inference.options import InferenceOptions, tune_options
from vitrail.inference.precision import settle_precision
from vitrail.markup import encode_image
from vitrail.models import device_of
from vitrail.models.config import grid_of
from vitrail.runtime.progress import LogFunction
from vitrail.tasks import Answer, Task
from vitrail.tasks.dense.answer import PlacedAnswer
from vitrail.tasks.user_images import open_image
from vitrail.weights.folders import CONFIG
from vitrail.weights.onnx import ExportedBackbone
from vitrail.weights.resolve import ResolvedModel, hash_model, resolve_model
from vitrail.weights.tensors import read_json

SHOWN = 1024  # maximum length in pixels of the longer side of a returned picture
NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
VERSIONS = 8  # occluded versions of an image per forward pass
OCCLUSION_SHARE = 0.6  # of the time to the deadline, for the forward passes of an occlusion map
FEWEST_REGIONS = 4  # of an occlusion map, however short the time


class Output(NamedTuple):
    """The model's output for one picture, and the region of the picture that the input shows, if known."""

    values: Tensor
    frames: Frames | None


class LayerMaps(NamedTuple):
    """Attention maps of one layer, (H, h, w), or the map of a method without layers, (1, h, w)."""

    layer: int | None
    heads: list[int] | None  # indices; None for the mean or a method without heads
    values: np.ndarray
    reach: tuple[float, float]  # of `analysis.render.overlay`
    note: str | None = None  # what is special about them


@dataclass(frozen=True, kw_only=True)
class ExplanationRequest:
    """Options of an explanation: `ExplainOptions`, and options of the method attention."""

    options: ExplainOptions = field(default_factory=ExplainOptions)
    every_layer: bool = False
    query: Place | None = None  # row and column of the query patch in the layer's map

    def __post_init__(self) -> None:
        if self.options.method != "attention" and (self.every_layer or self.query is not None):
            what = f"the method {self.options.method} has no layer and no query"
            raise ConfigError(what, "leave layer and query out, or choose the method attention")


class Abandoned(Exception):
    """The computation was cancelled because no client waits for it."""


class LoadedModel:
    """A model on its device, in evaluation mode, that is ready to serve under a ``name`` in URLs and replies.

    Outputs and features are computed by the precision and plan of ``options``. ``about`` are data stored with the weights:
    metrics, card, parity. `prepare` and `prepare_explanation` are thread-safe, the other methods are not.
    """

    def __init__(
        self,
        model: Task,
        name: str,
        *,
        options: InferenceOptions = InferenceOptions(),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.name, self.options = model, name, options
        self.about = dict(about or {})
        # 12 digits of the SHA-256 of everything that determines outputs: weights, preprocessing, classes, temperature
        determining = (digest_of(model), model.classes, *model.describe().values())
        self.version = hashlib.sha256(repr(determining).encode()).hexdigest()[:12]
        self.attention = _describe_attention(model)
        lacking = (*(() if self.attention else NEEDS_ATTENTION), *(() if model.answers_classes else NEEDS_ANSWER))
        lacking += ("similarity",) if isinstance(model.backbone, ExportedBackbone) else ()
        self.feature_map = None if "similarity" in lacking else grid_of(model.preprocessing.size, model.config.cell)
        self.methods = [method for method in METHODS if method not in lacking]
        self.sample = self._try()  # raises for a model that does not run
        start = time.monotonic()
        self._try()
        self.seconds = time.monotonic() - start  # of a forward pass of one picture

    @property
    def identity(self) -> dict[str, str]:
        """Name and version, as in replies."""
        return {"name": self.name, "version": self.version}

    def _try(self) -> dict[str, np.ndarray | list[str]]:
        """Runs the model on one black picture. Returns the result of `encode`; empty for a model without a head."""
        size = self.model.preprocessing.size
        pixels = np.zeros((self.model.preprocessing.channels, *size), np.uint8)
        blank = Picture(pixels, (0.0, 0.0, size[1], size[0]), size)
        if self.model.classes:
            return self.encode(self.answer([blank]))
        self.features([blank])
        return {}

    def prepare(self, content: bytes, *, most_pixels: int) -> Picture:
        """Decodes and resizes an image file to the model's input, uint8, not normalised. Raises `BadImage`."""
        preprocessing = self.model.preprocessing
        image = preprocessing.decode(content, max_pixels=most_pixels)
        top, left, bottom, right = preprocessing.visible_box(*size_of(image))
        return Picture(preprocessing.picture(image), (left, top, right, bottom), size_of(image))

    def answer(self, pictures: list[Picture]) -> list[Output]:
        """Returns the output for each picture of `prepare`. Raises `ArithmeticError` if an output is not finite."""
        values = self._run(self.model, self._normalise(pictures))
        frames = (None if picture.crop is None else Frames.of([picture]) for picture in pictures)
        return list(map(Output, values, frames))

    def answer_normalised(self, pictures: list[np.ndarray]) -> list[Output]:
        """Returns the output for each normalised image, float32 (C, h, w)."""
        values = self._run(self.model, torch.from_numpy(np.stack(pictures)).to(device_of(self.model)))
        return [Output(row, None) for row in values]

    def decode(self, output: Output, options: Mapping[str, Any]) -> Answer:
        """Returns the answer of an output; ``options`` are those of `choose_decode_options`. Thread-safe."""
        (answer,) = self.model.decode(output.values[None], output.frames, **options)
        return answer

    def draw(self, content: bytes, output: Output, options: Mapping[str, Any]) -> bytes:
        """Returns the answer drawn over its image file: a PNG with at most `SHOWN` pixels on the longer side. Thread-safe."""
        answer, image = self.decode(output, options), open_image(content)
        assert isinstance(answer, PlacedAnswer)
        image.thumbnail((SHOWN, SHOWN))
        return encode_image(answer.draw_over(image), "PNG")

    def encode(self, outputs: list[Output]) -> dict[str, np.ndarray | list[str]]:
        """Returns outputs as named arrays with the images on the first axis."""
        frames = [output.frames for output in outputs if output.frames is not None]
        joined = Frames.join(frames) if len(frames) == len(outputs) else None
        return self.model.reply_arrays(torch.stack([output.values for output in outputs]), joined)

    def features(self, pictures: list[Picture]) -> list[np.ndarray]:
        """Returns the features of each picture of `prepare`: (F,) float32. Raises `ArithmeticError`."""
        return list(self._run(self.model.features, self._normalise(pictures)).numpy())

    def _normalise(self, pictures: list[Picture]) -> Tensor:
        stacked = torch.from_numpy(np.stack([picture.pixels for picture in pictures]))  # (B, C, h, w)
        return self.model.preprocessing.normalise(stacked.to(device_of(self.model)))

    @torch.inference_mode()
    def _run(self, verb: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        outputs = self.options.compute(verb, images).cpu()
        if not outputs.isfinite().all():
            raise ArithmeticError("the model's output is not finite")
        return outputs

    def prepare_explanation(self, content: bytes, *, most_pixels: int) -> PreparedImage:
        """Prepares an image file for an explanation; the returned picture is shrunk to `SHOWN`. Raises `BadImage`."""
        prepared = prepare_image(self.model, content, max_pixels=most_pixels)
        picture, box = shrink(prepared.picture, prepared.box, SHOWN)
        return replace(prepared, picture=picture, box=box)

    def check_request(self, request: ExplanationRequest) -> ExplanationRequest:
        """Returns the request with its layer counted from 0. Raises `ConfigError` if the model does not support it."""
        if (method := request.options.method) not in self.methods:
            what = f"this model does not support the method {method}"
            if self.model.draws_answers and method in NEEDS_ANSWER:
                what += f", which explains the class of an image: the task is {self.model.name}"
            raise ConfigError(what, f"supported methods: {', '.join(self.methods) or 'none'}")
        request = replace(request, options=resolve_options(self.model, request.options))
        if (patch := request.options.patch) is not None and self.feature_map is not None:
            check_patch(patch, self.feature_map)
        if request.query is not None and not self._layers_of(request):
            where = "any layer" if request.every_layer else f"layer {request.options.layer}"
            maps = sorted({"{} x {}".format(*layer["map"]) for layer in self.attention if layer["asks"] == "all"})
            what = f"there is no query patch {request.query} in {where}"
            raise ConfigError(what, f"give row,column from 0 in a map of {' or '.join(maps) or 'patch queries'}")
        if isinstance(head := request.options.head, int):
            for layer in self._layers_of(request):
                check_index("head", head, self.attention[layer]["heads"])
        return request

    @contextmanager
    def until(self, over: threading.Event) -> Iterator[None]:
        """Within the block, raises `Abandoned` at the model's next forward pass after ``over`` is set."""

        def check(*_: Any) -> None:
            if over.is_set():
                raise Abandoned

        hook = self.model.register_forward_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()

    def explain(self, prepared: PreparedImage, request: ExplanationRequest, deadline: float) -> Explanation:
        """Explains one image as `vitrail.explain` does. ``request`` is a result of `check_request`.

        Occlusion covers larger regions where the usual ones would take longer than the ``deadline`` (by time.monotonic).
        """
        options = request.options
        if options.method == "occlusion":
            options = replace(options, window=self._choose_window(prepared.images, deadline))
        return explain_image(self.model, "image", prepared, options, VERSIONS)

    @torch.inference_mode()
    def _choose_window(self, images: Tensor, deadline: float) -> tuple[int, int]:
        """Returns the smallest window for which there is time, after measuring one forward pass."""
        start = time.monotonic()
        self.model(images.expand(VERSIONS, -1, -1, -1))
        now = time.monotonic()
        passes = OCCLUSION_SHARE * (deadline - now) / max(now - start, 1e-6)
        regions = max(int(passes) * VERSIONS, FEWEST_REGIONS)
        return coarsen_window(self.model.config, self.model.preprocessing.size, regions)

    def maps(self, prepared: PreparedImage, request: ExplanationRequest, deadline: float) -> list[LayerMaps]:
        """Returns the values of an explanation, one entry per layer; ``deadline`` as in `explain`."""
        if request.options.method != "attention":
            explanation = self.explain(prepared, request, deadline)
            note = self._note_coarse(explanation) if request.options.method == "occlusion" else None
            return [LayerMaps(None, None, explanation.heat[None], explanation.reach, note)]
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

    def _note_coarse(self, explanation: Explanation) -> str | None:
        """Says if the map has fewer regions than usual."""
        size, (rows, columns) = self.model.preprocessing.size, explanation.heat.shape
        usual = [-(-length // side) for length, side in zip(size, choose_window(self.model.config, size))]
        if [rows, columns] == usual:
            return None
        return f"{rows} x {columns} regions; {usual[0]} x {usual[1]} would take longer than the deadline"

    def _layers_of(self, request: ExplanationRequest) -> list[int]:
        """Returns the indices of the requested layers; with a query, only those whose map contains it."""
        layers = range(len(self.attention)) if request.every_layer else [request.options.layer]
        if request.query is None:
            return list(layers)
        row, column = request.query
        maps = {layer: self.attention[layer]["map"] for layer in layers if self.attention[layer]["asks"] == "all"}
        return [layer for layer, (rows, columns) in maps.items() if 0 <= row < rows and 0 <= column < columns]


def _describe_attention(model: Task) -> list[dict[str, Any]]:
    """Returns the heads, the map size, the queries ("asks") and the default query ("reads") of each layer."""
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


def load_model(model: str, *, name: str | None, options: InferenceOptions, log: LogFunction) -> LoadedModel:
    """Loads a model onto its device, tunes it for batches of ``options``, and tests it on one picture.

    Raises the errors of `vitrail.load`.
    """
    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r} is not valid in a URL", "use letters, digits, dots and dashes")
    resolved = resolve_model(model)
    task = options.load(model, log)
    about = _read_about(resolved)
    log(f"sha256   {about['sha256']}  {resolved.path.name}")
    if isinstance(task.backbone, ExportedBackbone):
        about["parity"] = task.backbone.parity
    options, _ = settle_precision(options, task, log)
    options = tune_options(options, task, log)
    return LoadedModel(task, name or _choose_name(resolved.name), options=options, about=about)


def _choose_name(name: str) -> str:
    """Returns the name with only URL-safe characters."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII) or "model"  # the path is /model, as in the container


def _read_about(resolved: ResolvedModel) -> dict[str, Any]:
    """Reads the data stored with the weights: evaluation metrics, the source's name and hash, the model card."""
    path = resolved.path
    about: dict[str, Any] = {"source": path.name, "sha256": hash_model(resolved)}
    if (path / CONFIG).is_file():
        about["metrics"] = read_json(path / CONFIG).get("metrics", {})
    for card in (path.parent / "card.md", path / "README.md"):
        if path.is_dir() and card.is_file():
            text = card.read_text(encoding="utf-8", errors="replace")
            # the commands in the card contain the absolute path, which must not be sent
            for folder in (card.parent.resolve(), card.parent):
                text = text.replace(str(folder), card.parent.name)
            about.setdefault("card", text)
    return about
