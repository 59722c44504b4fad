"""Explanations of the prediction for one image: heat maps and contact sheets of attention heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.analysis.attention import attention_map, check_index, compute_head_maps, compute_reach, select_head
from vitrail.analysis.occlusion import choose_window, measure_class, occlusion
from vitrail.analysis.render import Box, draw_contact_sheet, find_light_range, overlay, to_rgb, to_uint8
from vitrail.analysis.rollout import relevance, relevance_of_score, rollout
from vitrail.analysis.similarity import patch_similarity
from vitrail.data.augment.placement import Frames
from vitrail.data.imagenet import index_classes
from vitrail.errors import ConfigError, nearest
from vitrail.images.decode import MAX_PIXELS, BadImage
from vitrail.markup import image_uri, tag
from vitrail.models.backbone import device_of, eval_mode
from vitrail.rows import show_facts
from vitrail.tasks import Task
from vitrail.tasks.dense.answer import Subject
from vitrail.tasks.dense.task import DenseTask
from vitrail.tasks.task import check_head
from vitrail.tasks.user_images import to_pixels

WIDEST = 720  # maximum side of a tile in pixels before it is placed on a contact sheet
SHOWN_SIDE = 240  # maximum side in pixels of the picture that a notebook shows


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Options of an explanation.

    Args:
        method: one of `METHODS`.
        layer: index of the attention layer, for the method ``attention`` and for the contact sheet of any method.
        head: index of a head, "mean" or "all", for the method ``attention``.
        target: name of the class to explain; by default the predicted class. Of a detector its most certain object is explained,
            of a segmenter the region where it is the answer.
        box: number of the object to explain among those that a detector answers with, from 0; by default the most certain.
        window: (height, width) in pixels of the regions that the method ``occlusion`` covers; by default `choose_window`.
        patch: row and column of the patch that the method ``similarity`` compares with all; by default that in the centre.
    """

    method: str = "attention"
    layer: int = -1
    head: int | str = "mean"
    target: str | None = None
    box: int | None = None
    window: tuple[int, int] | None = None
    patch: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"unknown method {self.method!r}", nearest(self.method, METHODS))
        if self.box is not None and self.target is not None:
            raise ConfigError(f"box is {self.box} and target {self.target!r}", "give one of them: a box has a class")
        if isinstance(self.head, str) and self.head not in ("mean", "all"):
            raise ConfigError(f"head is {self.head!r}", "give a number from 0, or 'mean' or 'all'")
        if self.head != "mean" and self.method != "attention":
            what = f"the method {self.method} takes no head, but head is {self.head}"
            raise ConfigError(what, "use the method attention, or omit the head")
        if self.patch is not None and self.method != "similarity":
            what = f"the method {self.method} compares no patch, but patch is {self.patch}"
            raise ConfigError(what, "use the method similarity, or omit the patch")

    @property
    def one_head(self) -> int | None:
        """The index of the head, or None for the mean of all heads."""
        return self.head if isinstance(self.head, int) else None


Method = Callable[[Task, Tensor, Tensor, ExplainOptions, int], Tensor]  # model, images, targets, options, batch


METHODS: dict[str, Method] = {
    "attention": lambda model, images, _, options, batch: attention_map(model, images, options.layer, options.one_head),
    "rollout": lambda model, images, targets, options, batch: rollout(model, images),
    "gradient": lambda model, images, targets, options, batch: relevance(model, images, targets),
    "occlusion": lambda model, images, targets, options, batch: occlusion(
        model, images, measure_class(model, targets), window=options.window, batch=batch
    ),
    "similarity": lambda model, images, _, options, batch: patch_similarity(model, images, options.patch),
}
OF_PREDICTIONS = tuple(method for method in METHODS if method != "similarity")  # which shows no cause of a prediction
# of a subject: model, images, subject, options, batch
PLACED: dict[str, Callable[[DenseTask, Tensor, Subject, ExplainOptions, int], Tensor]] = {
    "gradient": lambda model, images, subject, options, batch: relevance_of_score(model, images, subject.logit),
    "occlusion": lambda model, images, subject, options, batch: occlusion(
        model, images, lambda outputs, _: subject.probability(outputs), window=options.window, batch=batch
    ),
}
NEEDS_ATTENTION = ("attention", "rollout", "gradient")
NEEDS_ANSWER = ("gradient", "occlusion")  # they explain the prediction of a class, or one score of a dense task


@dataclass(frozen=True)
class ExplainedAnswer:
    """The predicted class with its probability, and the explained class with its probability."""

    label: str
    score: float
    target: str
    target_score: float

    def row(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The explanation of one image: the prediction (None without a head), the heat map, and the written files.

    ``heat`` is (h, w), ``heads`` (H, h, w) for models with attention, ``box`` the visible part of the image. The ``answer`` of
    a detector or a segmenter is what was explained, a `Subject`.
    ``reach`` and ``heads_reach`` are the height and width of the maps relative to the box, as in `overlay`.
    """

    key: str
    answer: ExplainedAnswer | Subject | None
    heat: np.ndarray = field(repr=False)
    heads: np.ndarray | None = field(repr=False)
    box: tuple[float, float, float, float]
    reach: tuple[float, float] = (1.0, 1.0)
    heads_reach: tuple[float, float] = (1.0, 1.0)
    files: Mapping[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Returns a table row: path, label, score, target, and file names."""
        return {"path": self.key, **(self.answer.row() if self.answer is not None else {}), **self.files}

    def _repr_html_(self) -> str:
        """Shows the picture under its heat map, if the file can still be read, beside the row."""
        try:
            picture, box = shrink(to_rgb(np.asarray(to_pixels(self.key))), self.box, SHOWN_SIDE)
        except BadImage:
            return show_facts(self.row().items())
        lit = overlay(picture, self.heat, box=box, reach=self.reach, range=find_light_range(self.heat))
        image = tag("img", src=image_uri(Image.fromarray(lit), "png"), alt="", style="margin:0")
        style = "display:flex;gap:12px;align-items:center"
        return tag("div", image, show_facts(self.row().items()), style=style)


@dataclass(frozen=True)
class PreparedImage:
    """An image, uint8 (H, W, 3), the box that the model input covers, and the model input (1, C, h, w)."""

    picture: np.ndarray
    box: tuple[float, float, float, float]
    images: Tensor

    @property
    def frames(self) -> Frames:
        """What the model input shows of the image."""
        top, left, bottom, right = self.box
        return Frames(np.array([[left, top, right, bottom]]), np.array([self.picture.shape[:2]], np.float64))


def prepare_image(
    model: Task, content: bytes | Image.Image | np.ndarray, *, max_pixels: int = MAX_PIXELS
) -> PreparedImage:
    """Prepares an image file of at most ``max_pixels``, or a decoded image of a source. Raises `BadImage`."""
    preprocessing, device = model.preprocessing, device_of(model)
    image = preprocessing.decode(content, max_pixels=max_pixels) if isinstance(content, bytes) else content
    pixels = preprocessing.picture(image)
    picture = to_uint8(np.asarray(image))
    images = preprocessing.normalise(torch.from_numpy(pixels)[None].to(device))
    return PreparedImage(to_rgb(picture), preprocessing.visible_box(*picture.shape[:2]), images)


def resolve_options(model: Task, options: ExplainOptions) -> ExplainOptions:
    """Returns the options with a non-negative layer. Raises `ConfigError` if the model does not support them."""
    is_placed = isinstance(model, DenseTask)
    if options.box is not None and not is_placed:
        raise ConfigError(f"box is {options.box}, and the model finds no boxes", "leave the box out")
    if options.target is not None and options.method == "similarity":
        raise ConfigError("the method similarity explains no class", "leave the target out")
    if is_placed and options.method not in PLACED and (options.box is not None or options.target is not None):
        what = f"the method {options.method} explains no single box or class"
        raise ConfigError(what, f"use --method {' or '.join(PLACED)}")
    if options.method in NEEDS_ANSWER or options.target is not None:
        check_head(model)
        if not model.answers_classes and not is_placed:
            what = f"a model of the task {model.name} has no classes to explain"
            raise ConfigError(what, "use the method attention, rollout or similarity, without a target")
    if options.target is not None and options.target not in index_classes(model.classes):
        raise ConfigError(f"the model has no class {options.target!r}", nearest(options.target, model.classes))
    layers = len(model.attention_grids(model.preprocessing.size))
    if layers:
        return replace(options, layer=check_index("layer", options.layer, layers))
    if options.method in NEEDS_ATTENTION:
        what = f"{model.about} has no attention, which the method {options.method} requires"
        raise ConfigError(what, "use --method occlusion, which works for any model")
    return options


def explain_image(model: Task, key: str, prepared: PreparedImage, options: ExplainOptions, batch: int) -> Explanation:
    """Explains one image without writing files, with options from `resolve_options` and ``batch`` perturbed versions per pass.

    Raises `ConfigError` if a detector has no such box on this image, or a segmenter no pixel of such a class.
    """
    subject = _find_subject(model, prepared, options)
    answer, target = _predict(model, prepared.images, options) if model.answers_classes else (subject, 0)
    size = prepared.images.shape[2], prepared.images.shape[3]
    maps, heads_cell, cell = None, (1, 1), options.window or choose_window(model.config, size)
    if grids := model.attention_grids(size):
        maps, heads_cell = compute_head_maps(model, prepared.images, options.layer), grids[options.layer].cell
    if options.method == "similarity":
        cell = model.config.cell
    elif options.method in NEEDS_ATTENTION:
        cell = heads_cell if options.method == "attention" else grids[0].cell
    if options.method == "attention" and maps is not None:
        heat = select_head(maps, options.one_head)  # avoids a second forward pass
    elif subject is not None:
        assert isinstance(model, DenseTask), model.name
        heat = PLACED[options.method](model, prepared.images, subject, options, batch)
    else:
        heat = METHODS[options.method](model, prepared.images, torch.tensor([target]), options, batch)
    heads = None if maps is None else maps[0].float().cpu().numpy()
    return Explanation(
        key=key,
        answer=answer,
        heat=heat[0].float().cpu().numpy(),
        heads=heads,
        box=prepared.box,
        reach=compute_reach(heat.shape[1:], cell, size),
        heads_reach=(1.0, 1.0) if heads is None else compute_reach(heads.shape[1:], heads_cell, size),
    )


def _find_subject(model: Task, prepared: PreparedImage, options: ExplainOptions) -> Subject | None:
    """Returns what is explained of a dense task; None for other tasks, and for methods that explain no answer."""
    if not isinstance(model, DenseTask) or options.method not in PLACED:
        return None
    with eval_mode(model):
        outputs = model(prepared.images).float()
    return model.find_subject(outputs, prepared.frames, target=options.target, box=options.box)


@torch.no_grad()
def _predict(model: Task, images: Tensor, options: ExplainOptions) -> tuple[ExplainedAnswer, int]:
    """Returns the prediction for one image and the index of the explained class."""
    scores = model.probabilities(model(images))[0]
    best = int(scores.argmax())
    target = best if options.target is None else index_classes(model.classes)[options.target]
    names = model.classes
    return ExplainedAnswer(names[best], float(scores[best]), names[target], float(scores[target])), target


def draw_heads(picture: np.ndarray, explanation: Explanation, options: ExplainOptions) -> np.ndarray:
    """Draws a contact sheet of the image and all heads of the layer, each with its own scale."""
    assert explanation.heads is not None
    plain, box = shrink(picture, explanation.box, WIDEST)
    answer = explanation.answer
    tiles, captions = [plain], [f"{answer.label}, {answer.score:.0%}" if answer is not None else "the image"]
    for head, heat in enumerate(explanation.heads):
        tiles.append(overlay(plain, heat, box=box, reach=explanation.heads_reach, range=find_light_range(heat)))
        strongest = heat.max() * heat.size / max(heat.sum(), 1e-12)
        captions.append(f"head {head}: peak {strongest:.1f} × mean")
    columns = min(len(tiles), 4 if len(tiles) in (4, 7, 8) or len(tiles) > 9 else 3)
    title = f"{Path(explanation.key).name}: heads of layer {options.layer}"
    note = "Brighter areas receive more attention; each head has its own brightness scale."
    return draw_contact_sheet(tiles, captions, columns=columns, title=title, footnote=note)


def shrink(picture: np.ndarray, box: Box, longest: int) -> tuple[np.ndarray, Box]:
    """Scales an image (H, W, 3) down to at most ``longest`` pixels on its longer side, together with a box."""
    small = Image.fromarray(picture)
    small.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    down, across = small.height / picture.shape[0], small.width / picture.shape[1]
    top, left, bottom, right = box
    return np.asarray(small), (top * down, left * across, bottom * down, right * across)
