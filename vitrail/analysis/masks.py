"""What the masks of objects are made of: the attention of the queries that answer, or the prototypes that are summed.

B images, Q queries, n of them shown, P prototypes, h x w cells of the last feature map, r x c cells of a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.attention import AttentionRecord
from vitrail.models.backbone import eval_mode
from vitrail.models.queries import QueryHead
from vitrail.models.vit import ViT
from vitrail.tasks import Task
from vitrail.tasks.instances.segmenter import InstanceSegmenter
from vitrail.tasks.queries.task import QueryTask


class AskedQuery(NamedTuple):
    """A query on one image: its class, the probability of it, and its maps: ``query``, its attention to patches in the last block
    (h, w), mean over heads, and ``mask``, the probability of each cell (r, c).
    """

    label: str
    score: float
    maps: dict[str, np.ndarray]


def measure_queries(task: Task, images: Tensor, *, most: int = 3) -> list[list[AskedQuery]]:
    """Returns for each image the ``most`` queries with the highest probability of a class, the most certain first.

    Attention to queries and prefix tokens is omitted; the rest is not renormalised.

    Args:
        task: a model with a head of queries.
        images: normalised, (B, C, H, W).

    Raises:
        ConfigError: the model has no queries.
    """
    if not isinstance(task, QueryTask):
        raise ConfigError(f"{task.about} has no queries", "take a model that was trained with --head queries")
    head, backbone, records = task.own["head"], task.backbone, list[AttentionRecord]()
    assert isinstance(head, QueryHead) and isinstance(backbone, ViT), "checked by the task"
    with eval_mode(task):
        tokens = backbone.encode_queries(images, head.query, head.blocks, on_attention=records.append)
        classes, masks = head.answer(tokens)  # (B, Q, K + 1), (B, Q, r, c)
        attention = records[-1].weights(slice(0, task.queries)).mean(1)  # (B, Q, T)
    height, width = tokens.grid
    patches = attention[..., attention.shape[2] - height * width :].unflatten(2, tokens.grid)
    scores, labels = classes.softmax(2)[..., :-1].max(2)  # (B, Q)
    best = scores.topk(min(most, task.queries), dim=1).indices.tolist()

    def list_queries(image: int) -> Iterator[AskedQuery]:
        for query in best[image]:
            read, mask = patches[image, query].cpu().numpy(), masks[image, query].sigmoid().cpu().numpy()
            label, score = task.classes[int(labels[image, query])], float(scores[image, query])
            yield AskedQuery(label, score, {"query": read, "mask": mask})

    return [list(list_queries(image)) for image in range(len(images))]


def measure_prototypes(task: Task, images: Tensor) -> np.ndarray:
    """Returns the prototypes of each of the normalised images (B, C, H, W), from which masks are summed: (B, P, r, c) in fp32.

    Raises:
        ConfigError: the model has no prototypes.
    """
    if not isinstance(task, InstanceSegmenter):
        raise ConfigError(f"{task.about} has no prototypes", "take a model that was trained with --task instances")
    with eval_mode(task):
        maps = task.backbone.dense_maps(images, task.dense_layers)
        return task.find_cells(maps)[1].float().cpu().numpy()
