"""The loss of EoMT, that of Mask2Former (Cheng et al. 2022): queries are matched with objects one to one, and learn these.

B images, A answers, Q queries, K classes, M objects at most, S cells of a mask, n matched pairs.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.layers import by_hand

CLASS_WEIGHT, MASK_WEIGHT, DICE_WEIGHT = 2.0, 5.0, 5.0
NONE_WEIGHT = 0.1  # of a query without an object, in the loss of classes


def query_loss(
    classes: Tensor, masks: Tensor, labels: Tensor, shares: Tensor, known: Tensor, weight: Tensor, *, strict: bool
) -> Tensor:
    """The mean over images of 2 CE + 5 BCE + 5 Dice, summed over the answers; a scalar.

    The cross-entropy is averaged over all queries of the batch by their weights, of which those without an object have 0.1. The
    losses of masks are averaged over the objects of the batch; they are computed in full, where the authors draw 12,544 points.
    All normalisers depend on the targets only, so that micro-batches and ranks add up to the batch.

    Args:
        classes: logits (B, A, Q, K + 1), the last of no object.
        masks: logits (B, A, Q, S).
        labels: (B, M) of the objects, -1 where there is none.
        shares: (B, M, S) the share of each object in each cell.
        known: (B, S) the share of each cell that counts.
        weight: (B,) images of the batch for each of its objects.
        strict: whether more objects of an image than queries are an error; otherwise the best matched ones count.

    Raises:
        ConfigError: there are more objects than queries.
    """
    queries, none = classes.shape[2], classes.shape[3] - 1
    most = int((labels >= 0).sum(1).max())
    if strict and most > queries:
        remedy = f"give it more: --set 'model.head={{queries: {2 * most}}}'"
        raise ConfigError(f"an image has {most} objects, and the model {queries} queries", remedy)
    image, answer, query, row = match_queries(classes, masks, labels, shares, known)
    wanted = torch.full(classes.shape[:3], none, device=classes.device)  # (B, A, Q)
    wanted[image, answer, query] = labels[image, row]
    importance = classes.new_ones(none + 1)
    importance[none] = NONE_WEIGHT
    entropy = F.cross_entropy(classes.flatten(0, 2), wanted.flatten(), importance, reduction="none").view_as(wanted)
    # that of all queries of an image on average, with 1 / weight objects
    total = NONE_WEIGHT * queries + (1 - NONE_WEIGHT) / weight  # (B,)
    losses = CLASS_WEIGHT * entropy.sum((1, 2)) / total
    logits, shares, cover = masks[image, answer, query], shares[image, row], known[image]  # (n, S) each
    crossed = F.binary_cross_entropy_with_logits(logits, shares, weight=cover, reduction="none").sum(1)
    crossed = crossed / cover.sum(1).clamp(min=1e-6)
    found = logits.sigmoid() * cover
    dice = 1 - (2 * (found * shares).sum(1) + 1) / (found.sum(1) + (shares * cover).sum(1) + 1)
    of_masks = MASK_WEIGHT * crossed + DICE_WEIGHT * dice  # (n,)
    return (losses + weight * torch.zeros_like(losses).index_add(0, image, of_masks)).mean()


@torch.no_grad()
def match_queries(
    classes: Tensor, masks: Tensor, labels: Tensor, shares: Tensor, known: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns image, answer, query and row of object of each pair, (n,) each: those of the least total cost for each answer.

    The cost of a pair is its loss, with minus the probability of the class in place of the cross-entropy. Arguments are those of
    `query_loss`.
    """
    from scipy.optimize import linear_sum_assignment  # a dependency of scikit-learn

    cover, wanted = known[:, None, None], (shares * known[:, None])[:, None].mT  # (B, 1, 1, S), (B, 1, S, M)
    softened, found = F.softplus(masks) * cover, masks.sigmoid() * cover  # (B, A, Q, S)
    with by_hand(masks):  # sums over cells exceed the numbers of fp16
        shared, inside = found @ wanted, masks @ wanted  # (B, A, Q, M)
    crossed = (softened.sum(3, keepdim=True) - inside) / cover.sum(3, keepdim=True).clamp(min=1e-6)
    dice = 1 - (2 * shared + 1) / (found.sum(3, keepdim=True) + wanted.sum(2, keepdim=True) + 1)
    chosen = labels.clamp(min=0)[:, None, None].expand(-1, *classes.shape[1:3], -1)
    cost = MASK_WEIGHT * crossed + DICE_WEIGHT * dice - CLASS_WEIGHT * classes.softmax(3).gather(3, chosen)
    largest = torch.finfo(cost.dtype).max
    costs = cost.nan_to_num(largest, largest, -largest).cpu().numpy()  # (B, A, Q, M)
    pairs = [np.empty((4, 0), np.int64)]
    for image, real in enumerate((labels >= 0).cpu().numpy()):
        rows = np.flatnonzero(real)
        for answer, each in enumerate(costs[image]):
            queries, columns = linear_sum_assignment(each[:, rows])
            where = np.full_like(queries, image), np.full_like(queries, answer)
            pairs.append(np.stack([*where, queries, rows[columns]]))
    image, answer, query, row = torch.from_numpy(np.concatenate(pairs, 1)).to(classes.device)
    return image, answer, query, row
