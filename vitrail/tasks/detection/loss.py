"""The losses of a detector: what its cells should answer, given the objects of each image.

B images, M objects at most, N cells, K classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.tasks.detection.assignment import assign, find_ignored
from vitrail.tasks.detection.boxes import box_gious


def sum_losses(outputs: Tensor, objects: Tensor) -> tuple[Tensor, Tensor]:
    """The losses of classes and boxes, each the sum over the cells of an image, (B,), in fp32 at least.

    Classes: binary cross-entropy with the scores that `assign` gives; no class of a cell counts whose centre lies in a crowd,
    unless it has an object. Boxes: 1 - GIoU with the object of the cell, times its score.

    Args:
        outputs: (B, N, 7 + K) of a `Detector`.
        objects: (B, M, 6) label, crowd, box; -1 is the label of rows that fill up.
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    found, centres, logits = outputs[..., :4], outputs[..., 4:6], outputs[..., 7:]
    labels, crowd, boxes = objects[..., 0], objects[..., 1] > 0, objects[..., 2:].to(outputs.dtype)
    is_object = (labels >= 0) & ~crowd
    assigned = assign(found, logits.sigmoid(), centres, boxes, labels, is_object)
    is_taken, objects_of = assigned.objects >= 0, assigned.objects.clamp(min=0)

    own = labels.long().clamp(min=0).gather(1, objects_of)  # (B, N)
    wanted = torch.zeros_like(logits).scatter_(2, own[..., None], assigned.scores[..., None])
    is_counted = is_taken | ~find_ignored(centres, boxes, (labels >= 0) & crowd)
    classes = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(2) * is_counted
    apart = 1 - box_gious(found, boxes.gather(1, objects_of[..., None].expand(-1, -1, 4)))
    return classes.sum(1), (apart * assigned.scores).sum(1)
