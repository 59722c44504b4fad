"""Training step and inference of detectors and segmenters beside transformers' of similar size, in turns.

YOLOS-Ti against a detector on ViT-Ti/16; SegFormer-B0 against segmenters on PVT v2 B0, whose encoder is of the same kind and
size, and on ViT-Ti/16; EoMT against queries in the same ViT-Ti/16, and Mask2Former against prototypes on the same Swin-T, for
instances. All have random weights and images of 512 x 512. The networks differ, so outputs cannot be compared;
their sizes stand in the record. A training step is forward, each library's own loss, backward and AdamW. An answer of a
detector is the boxes without duplicates (YOLOS: its 100 queries), that of a segmenter the class of every pixel, that of instances
the 100 best objects with their masks (transformers: the logits of 100 queries). Objects are boxes, which are learned as masks.

    make bench BENCH=dense_step        or, by hand:        python benchmarks/dense_step.py --batch 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    EomtConfig,
    EomtForUniversalSegmentation,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    YolosConfig,
    YolosForObjectDetection,
)

import vitrail
from vitrail.data.augment.placement import Frames, place
from vitrail.data.sources.annotations import LABEL_BITS, Objects
from vitrail.tasks import Task

SIZE, OBJECTS = 512, 10
NAMES = tuple(f"class {number}" for number in range(20))
Step = Callable[[], object]


def yolos() -> nn.Module:
    """YOLOS-Ti (Fang et al. 2021, table 1) at 512 x 512."""
    tiny = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    config = YolosConfig(
        **tiny,
        image_size=[SIZE, SIZE],
        num_labels=len(NAMES),
        num_detection_tokens=100,
        use_mid_position_embeddings=False,
    )
    return YolosForObjectDetection(config)


def segformer() -> nn.Module:
    """SegFormer-B0, the defaults of transformers."""
    return SegformerForSemanticSegmentation(SegformerConfig(num_labels=len(NAMES)))


def eomt() -> nn.Module:
    """EoMT on ViT-Ti/16, with queries in the last quarter of the blocks."""
    tiny = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3}
    own = {"num_queries": 100, "num_blocks": 3, "num_register_tokens": 0}
    config = EomtConfig(**tiny, **own, image_size=SIZE, patch_size=16, num_labels=len(NAMES))
    model = EomtForUniversalSegmentation(config)
    model.attn_mask_probs.zero_()  # as after a training
    return model


def mask2former() -> nn.Module:
    """Mask2Former on Swin-T, the defaults of transformers."""
    return Mask2FormerForUniversalSegmentation(Mask2FormerConfig(num_labels=len(NAMES)))


def of_vitrail(name: str, task: str, **arguments: Any) -> Task:
    """A model whose head answers by chance and not by zeros."""
    model = vitrail.create_model(name, task=task, classes=list(NAMES), image_size=SIZE, arguments=arguments)
    for parameter in model.own.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model


def draw_boxes(batch: int, generator: np.random.Generator) -> np.ndarray:
    corners = generator.uniform(0, SIZE / 2, (batch, OBJECTS, 2))
    return np.concatenate([corners, corners + generator.uniform(16, SIZE / 2, corners.shape)], -1)


def draw_masks(boxes: np.ndarray) -> np.ndarray:
    """The pixels of each box (n, 4): (n, H, W)."""
    masks = np.zeros((len(boxes), SIZE, SIZE), bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int)):
        mask[top:bottom, left:right] = True
    return masks


def targets_of(task: Task, batch: int) -> Any:
    """Ten objects or a whole map for each image, as a batch of the training has them."""
    generator = np.random.default_rng(0)
    if task.name == "detection":
        labels = generator.integers(len(NAMES), size=OBJECTS)
        rows: Any = Objects.join([Objects.of_image(boxes, labels) for boxes in draw_boxes(batch, generator)])
    elif task.name == "instances":
        labels = generator.integers(len(NAMES), size=OBJECTS)
        rows = [np.zeros((SIZE, SIZE), np.int32) for _ in range(batch)]
        for values, boxes in zip(rows, draw_boxes(batch, generator)):
            for number, (label, mask) in enumerate(zip(labels, draw_masks(boxes)), start=1):
                values[mask] = number << LABEL_BITS | label
    else:
        rows = list(generator.integers(0, len(NAMES), (batch, SIZE, SIZE)).astype(np.uint8))
    placement = place(Frames.whole(batch, (SIZE, SIZE)), (SIZE, SIZE), np.tile(np.eye(3), (batch, 1, 1)), (SIZE, SIZE))
    return task.targets.move(task.targets.collate(rows), placement)


def labels_of(model: nn.Module, batch: int, device: str) -> Any:
    """The same for a model of transformers."""
    generator = np.random.default_rng(0)
    if isinstance(model, SegformerForSemanticSegmentation):
        return torch.from_numpy(generator.integers(0, len(NAMES), (batch, SIZE, SIZE))).to(device)
    if isinstance(model, EomtForUniversalSegmentation | Mask2FormerForUniversalSegmentation):
        labels = torch.from_numpy(generator.integers(len(NAMES), size=OBJECTS)).to(device)
        masks = [torch.from_numpy(draw_masks(boxes)).float().to(device) for boxes in draw_boxes(batch, generator)]
        return {"mask_labels": masks, "class_labels": [labels] * batch}
    left, top, right, bottom = np.moveaxis(draw_boxes(batch, generator) / SIZE, -1, 0)
    boxes = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], -1).astype(np.float32)
    labels = torch.from_numpy(generator.integers(len(NAMES), size=OBJECTS)).to(device)
    return [{"class_labels": labels, "boxes": torch.from_numpy(each).to(device)} for each in boxes]


def training(model: nn.Module, images: Tensor) -> Step:
    device = str(images.device)
    model.train().to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    if isinstance(model, Task):
        targets = tuple(each.to(device) for each in targets_of(model, len(images)))
        loss: Callable[[], Tensor] = lambda: model.loss(model(images), targets)  # noqa: E731
    else:
        labels = labels_of(model, len(images), device)
        labels = labels if isinstance(labels, dict) else {"labels": labels}
        loss = lambda: model(images, **labels).loss  # noqa: E731

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()
        optimiser.step()

    return step


def inference(model: nn.Module, images: Tensor) -> Step:
    model.eval().to(images.device)

    @torch.inference_mode()
    def step() -> object:
        if isinstance(model, Task):
            return model(images).argmax(1) if model.name == "segmentation" else model.detect(model(images))
        answer = model(images)
        if isinstance(model, EomtForUniversalSegmentation | Mask2FormerForUniversalSegmentation):
            return answer.class_queries_logits.softmax(-1), answer.masks_queries_logits.sigmoid()
        if isinstance(model, SegformerForSemanticSegmentation):
            logits = nn.functional.interpolate(answer.logits, (SIZE, SIZE), mode="bilinear", align_corners=False)
            return logits.argmax(1)
        scores, labels = answer.logits.softmax(-1)[..., :-1].max(-1)
        return scores, labels, answer.pred_boxes

    return step


CONTENDERS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "detection": {
        "vitrail, ViT-Ti/16": partial(of_vitrail, "vit-ti16", "detection"),
        "transformers, YOLOS-Ti": yolos,
    },
    "segmentation": {
        "vitrail, PVT v2 B0": partial(of_vitrail, "pvt-v2-b0", "segmentation"),
        "vitrail, ViT-Ti/16": partial(of_vitrail, "vit-ti16", "segmentation"),
        "transformers, SegFormer-B0": segformer,
    },
    "queries": {
        "vitrail, ViT-Ti/16, queries": partial(of_vitrail, "vit-ti16", "instances", head="queries"),
        "transformers, EoMT-Ti": eomt,
    },
    "instances": {
        "vitrail, Swin-T, prototypes": partial(of_vitrail, "swin-t", "instances"),
        "vitrail, ViT-Ti/16, prototypes": partial(of_vitrail, "vit-ti16", "instances"),
        "transformers, Mask2Former, Swin-T": mask2former,
    },
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tasks", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--batch", type=int, help="4 on a CPU, else 32")
    arguments.add_argument("--blocks", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    batch = given.batch or (4 if given.device == "cpu" else 32)
    torch.manual_seed(0)
    images = torch.randn(batch, 3, SIZE, SIZE, device=given.device)
    turns = partial(harness.take_turns, images=batch, device=given.device, blocks=given.blocks, block_seconds=2.0)
    for task in given.tasks:
        for mode, make in {"training": training, "inference": inference}.items():
            models = {name: build() for name, build in CONTENDERS[task].items()}
            sizes = {name: sum(each.numel() for each in model.parameters()) for name, model in models.items()}
            notes = {"batch": batch, "image": SIZE, "parameters": sizes, "transformers": transformers.__version__}
            found = turns({name: make(model, images) for name, model in models.items()})
            harness.report(f"{task}-{mode}-{given.device}", found, device=given.device, notes=notes)


if __name__ == "__main__":
    main()
