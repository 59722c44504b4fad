"""Small detectors and segmenters, and batches for them."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import torch

from tests.models.conftest import shaken
from tests.models.tiny import SHALLOW, TINY, shares
from vitrail.data.augment.placement import Frames, place
from vitrail.data.sources.annotations import Objects, OutlinedObjects, PanopticObjects
from vitrail.images.rle import Rle
from vitrail.models import configure
from vitrail.tasks import create_task, find_task

VIT = SHALLOW["vit"]
BACKBONES = {
    "vit": VIT,
    "deit": replace(VIT, prefix=("cls", "dist")),
    "vit, windows": replace(TINY["vit, windows"], image_size=(32, 32), depth=2),
    "swin": TINY["swin"],
    **{name: SHALLOW[name] for name in ("pvt v2", "bit", "cait", "beit")},
}
CLASSES = ("cell", "dot", "line")
QUERIES = ("segmentation", "instances", "panoptic")  # tasks whose answers queries can give
WITH_QUERIES = {
    "vit": VIT,
    "distillation token and registers": replace(VIT, prefix=("cls", "dist"), registers=2),
    "mean of the patches": replace(VIT, pool="gap", prefix=(), pool_norm=True, in_channels=1),
    "rotary positions": replace(VIT, positions="none", rope="dinov3", rope_jitter=2.0, layer_scale=0.5, in_channels=5),
    "windows": replace(TINY["vit, windows"], image_size=(32, 32), depth=2, global_blocks=1),
}


def create(task="detection", config=VIT, *, shake=True, classes=CLASSES, size=None, **arguments):
    """A small model without chance, in evaluation mode; with random weights unless they are to be those of training."""
    config = configure(config, **dict.fromkeys(shares(config), 0.0), **({"image_size": size} if size else {}))
    torch.manual_seed(0)
    own = {"queries": 12} if arguments.get("head") == "queries" else {"head_width": 32}
    model = create_task(find_task(task, arguments), config, {"classes": classes, **own, **arguments})
    if shake:
        shaken(model.own)
    return model.eval()


def create_queries(task, config=VIT, **arguments):
    """The same with a head of queries; low scores are answers."""
    low = {} if task == "segmentation" else {"threshold": 0.01}
    return create(task, config, head="queries", **{**low, **arguments})


def draw_images(model, batch=2, size=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, model.config.in_channels, *(size or model.config.image_size), generator=generator)


def objects_of(boxes, labels, ends, crowd=None):
    """The objects of images that have so many up to and with each."""
    counts = np.diff(ends, prepend=0)
    one = Objects.of_image(boxes, labels, crowd=crowd)
    return replace(one, ends=np.cumsum(counts), sizes=np.zeros((len(counts), 2), np.int32))


def draw_objects(counts, size, classes=len(CLASSES), seed=0):
    """Objects of images of ``size`` (height, width), so many of each."""
    generator = np.random.default_rng(seed)
    height, width = size
    corners = generator.uniform(0, [width * 0.9, height * 0.9], (sum(counts), 2))
    ends = np.minimum(corners + generator.uniform(2, max(size), (sum(counts), 2)), [width, height])
    labels = generator.integers(0, classes, sum(counts))
    return objects_of(np.concatenate([corners, ends], 1), labels, np.cumsum(counts))


def outline_boxes(objects, size, kind=OutlinedObjects):
    """Objects on pictures of one size (height, width), whose masks are their boxes."""
    outlines = []
    for left, top, right, bottom in objects.boxes.round().astype(int).tolist():
        mask = Rle.of_patch(np.ones((bottom - top, right - left), bool), (left, top), size)
        outlines.append(mask.to_text().encode())
    flat = {field.name: getattr(objects, field.name) for field in fields(objects)}
    sizes = np.tile(np.array(size, np.int32), (len(objects), 1))
    flat |= {"things": (True,) * 8} if kind is PanopticObjects else {}
    return kind(**{**flat, "sizes": sizes, "outlines": tuple(outlines)})


def whole(images, size):
    """The placement of images that show whole pictures of their own size."""
    return place(Frames.whole(images, size), size, np.tile(np.eye(3), (images, 1, 1)), size)


def draw_targets(model, counts, size, seed=0):
    """Targets of a batch as the loss takes them: so many objects on each image, or maps with some pixels ignored."""
    if model.name == "detection":
        rows = model.targets.collate(draw_objects(counts, size, len(model.classes), seed))
    elif model.name in ("instances", "panoptic"):
        objects = outline_boxes(draw_objects(counts, size, len(model.classes), seed), size, model.targets.annotations)
        rows = model.targets.collate([objects.read_map(row, size) for row in range(len(counts))])
    else:
        generator = np.random.default_rng(seed)
        rows = torch.from_numpy(generator.integers(0, len(model.classes), (len(counts), *size)).astype(np.uint8))
        rows[:, : size[0] // 3] = 255
    return model.targets.move(rows, whole(len(counts), size))


def micro_batches(model, outputs, targets, parts):
    """The sum over micro-batches of the share of each times its loss, as a training step adds them up."""
    chunks = zip(*(each.split(parts) for each in (outputs, *targets)))
    return sum(len(chunk[0]) / len(outputs) * model.loss(chunk[0], chunk[1:]) for chunk in chunks)


def fit(model, images, targets, *, lr, steps=100):
    """Trains on one batch and returns the loss of every step."""
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=lr), []
    for _ in range(steps):
        losses.append(model.loss(model(images), targets))
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    return losses
