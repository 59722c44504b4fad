"""The loss of queries against its equations, written out in float64; the annealing of the masks of attention.

B images, A answers, Q queries, K classes, M objects, S cells of a mask.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.models.conftest import shaken
from tests.models.tiny import SHALLOW
from tests.tasks.dense_models import draw_images
from vitrail.errors import ConfigError
from vitrail.models.config import changed
from vitrail.models.queries import QueryHead
from vitrail.objectives.supervised import Supervised
from vitrail.tasks import QueryInstances, create_task
from vitrail.tasks.queries.loss import match_queries, query_loss

ANSWERS, QUERIES, CLASSES, CELLS = 2, 4, 3, 20
LABELS = torch.tensor([[2, 0, 1], [1, -1, -1], [-1, -1, -1]])


def draw(seed=0):
    """Logits of three images with 3, 1 and no objects, their objects, and the share of each cell that counts."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    classes = 4 * random(3, ANSWERS, QUERIES, CLASSES + 1) - 2
    masks = 6 * random(3, ANSWERS, QUERIES, CELLS) - 3
    shares, known = random(3, 3, CELLS) / 3, random(3, CELLS)
    known[:, :4] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    weight = torch.full((3,), 3 / 4, dtype=torch.float64)  # images for each of 4 objects
    return {"classes": classes, "masks": masks, "labels": LABELS, "shares": shares, "known": known, "weight": weight}


def mask_losses(logits, share, known):
    """The binary cross-entropy and the Dice loss of one mask, cell by cell."""
    entropy = covered = both = found = real = 0.0
    for logit, target, cover in zip(logits.tolist(), share.tolist(), known.tolist()):
        p = 1 / (1 + math.exp(-logit))
        entropy -= cover * (target * math.log(p) + (1 - target) * math.log(1 - p))
        covered, both = covered + cover, both + cover * p * target
        found, real = found + cover * p, real + cover * target
    return entropy / covered, 1 - (2 * both + 1) / (found + real + 1)


def match(batch, image, answer):
    """The pairs of the least total cost: for each object its query, of all arrangements."""
    labels = [label for label in batch["labels"][image].tolist() if label >= 0]
    probabilities = batch["classes"][image, answer].softmax(1)

    def cost(query, row):
        losses = mask_losses(batch["masks"][image, answer, query], batch["shares"][image, row], batch["known"][image])
        return 5 * sum(losses) - 2 * float(probabilities[query, labels[row]])

    costs = [[cost(query, row) for row in range(len(labels))] for query in range(QUERIES)]
    arrangements = itertools.permutations(range(QUERIES), len(labels))
    return min(arrangements, key=lambda queries: sum(costs[query][row] for row, query in enumerate(queries)))


def expected_loss(batch):
    total, objects = 0.0, int((batch["labels"] >= 0).sum())
    for answer in range(ANSWERS):
        entropy = weights = of_masks = 0.0
        for image in range(len(batch["labels"])):
            owner = {query: row for row, query in enumerate(match(batch, image, answer))}
            for query in range(QUERIES):
                row = owner.get(query)
                label = CLASSES if row is None else int(batch["labels"][image, row])
                weight = 0.1 if row is None else 1.0
                entropy -= weight * float(batch["classes"][image, answer, query].log_softmax(0)[label])
                weights += weight
                if row is not None:
                    mask = batch["masks"][image, answer, query], batch["shares"][image, row], batch["known"][image]
                    of_masks += 5 * sum(mask_losses(*mask))
        total += 2 * entropy / weights + of_masks / objects
    return total


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_that_of_the_equations_and_pairs_are_the_best_of_all(seed):
    batch = draw(seed)
    assert float(query_loss(**batch, strict=True)) == pytest.approx(expected_loss(batch), rel=1e-10)
    pairs = match_queries(**{name: batch[name] for name in ("classes", "masks", "labels", "shares", "known")})
    found = {}
    for image, answer, query, row in torch.stack(pairs).T.tolist():
        found.setdefault((image, answer), {})[row] = query
    for image, answer in itertools.product((0, 1), range(ANSWERS)):
        assert found[image, answer] == dict(enumerate(match(batch, image, answer)))
    assert not any(image == 2 for image, _ in found)


def gradients(batch, rows):
    """Of the loss of some of the images."""
    part = {name: value[rows] for name, value in batch.items()}
    logits = {name: part[name].clone().requires_grad_() for name in ("classes", "masks")}
    query_loss(**{**part, **logits}, strict=True).backward()
    return [each.grad for each in logits.values()]


def test_cells_that_do_not_count_have_no_gradient_and_empty_images_learn_that_they_are():
    of_classes, of_masks = gradients(draw(), [0, 1, 2])
    assert not of_masks[..., [0, 2]].any() and of_masks[0, ..., 1].any()
    assert not of_masks[2].any()
    assert (of_classes[2, ..., CLASSES] < 0).all() and (of_classes[2, ..., :CLASSES] > 0).all()
    alone = {name: value[2:] for name, value in draw().items()}  # a batch without objects
    assert math.isfinite(query_loss(**alone, strict=True))


def test_more_objects_than_queries_are_an_error_in_training_only():
    batch = draw()
    few = {**batch, "classes": batch["classes"][:, :, :2], "masks": batch["masks"][:, :, :2]}
    with pytest.raises(ConfigError, match="an image has 3 objects, and the model 2 queries"):
        query_loss(**few, strict=True)
    assert math.isfinite(query_loss(**few, strict=False))


def create_queries(queries, **changes):
    arguments = {"classes": ("ant", "bee", "cat"), "queries": queries, "query_blocks": 2}
    return shaken(create_task(QueryInstances, changed(SHALLOW["vit"], **changes), arguments)).train()


def numbered_targets(images, size):
    """Objects (B, 16, 6), the weight (B,), and the row of each pixel's object (B, h, w); the last image has none."""
    generator = torch.Generator().manual_seed(3)
    numbers = torch.zeros(images, *size, dtype=torch.int16)
    objects = torch.zeros(images, 16, 6)
    objects[..., 0] = -1
    counts = [*(1 + image % 3 for image in range(images - 1)), 0]
    for image, count in enumerate(counts):
        for row in range(count):
            top, left = torch.randint(0, 20, (2,), generator=generator).tolist()
            numbers[image, top : top + 12, left : left + 9] = row + 1
            objects[image, row, 0] = torch.randint(0, 3, (), generator=generator)
    return objects, torch.full((images,), images / sum(counts)), numbers


def test_micro_batches_have_the_gradients_of_the_batch():
    model = create_queries(6, depth=3)
    model.own["head"].masking.fill_(1)
    images, targets = draw_images(model, 8), numbered_targets(8, model.config.image_size)
    found = []
    for size in (8, 2):
        model.zero_grad()
        for begin in range(0, 8, size):
            rows = slice(begin, begin + size)
            (model.loss(model(images[rows]), tuple(part[rows] for part in targets)) * size / 8).backward()
        found.append({name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None})
    assert found[0].keys() == found[1].keys() and any("query" in name for name in found[0])
    largest = max(float(gradient.abs().max()) for gradient in found[0].values())
    for name, gradient in found[0].items():
        assert (gradient - found[1][name]).abs().max() <= 1e-6 * largest, name


@pytest.mark.slow  # loads the compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # between two graphs
def test_a_compiled_step_has_the_same_loss_and_gradients():
    step = Supervised(create_queries(6, depth=3))
    images, targets = draw_images(step.encoder, 4), numbered_targets(4, step.encoder.config.image_size)
    torch.compiler.reset()
    found = []
    for each in (step, torch.compile(step, backend="eager")):
        step.zero_grad()
        loss, _ = each(images, *targets)
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in step.parameters() if parameter.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_attention_is_unmasked_block_by_block_as_the_authors_do():
    """The steps of their models on COCO; theirs and ours differ by the rounding of an epoch's steps."""
    head = QueryHead(changed(SHALLOW["vit"], depth=3), CLASSES, queries=4, blocks=3, upscales=1)
    steps, start, end = 88_700, (14_782, 36_955, 59_128), (29_564, 51_737, 73_910)
    assert head.masking.tolist() == [1, 1, 1]
    for block in range(3):
        for step in (0, start[block] // 2, start[block]):
            head.after_step(step / steps)
            assert head.masking[block] == 1
        for share in (0.1, 0.5, 0.9):
            step = round(start[block] + share * (end[block] - start[block]))
            head.after_step(step / steps)
            expected = ((end[block] - step) / (end[block] - start[block])) ** 0.9
            assert float(head.masking[block]) == pytest.approx(expected, abs=1e-3)
        head.after_step((end[block] + 8) / steps)
        assert head.masking[block] == 0
        assert head.masking[block + 1 :].tolist() == [1] * (2 - block)
    head.after_step(1)
    assert not head.masking.any()


@pytest.mark.parametrize("prefix", [("cls",), ()])
def test_queries_whose_masks_are_closed_everywhere_still_attend(prefix):
    model = create_queries(3, depth=2, prefix=prefix, pool="cls" if prefix else "gap")
    head = model.own["head"]
    head.masking.fill_(1)
    torch.nn.init.zeros_(head.embed[2].weight)
    torch.nn.init.zeros_(head.embed[2].bias)  # every mask logit is 0: closed
    closed = []
    close = head.close
    head.close = lambda *arguments: closed.append(close(*arguments)) or closed[-1]
    outputs = model(draw_images(model))
    assert len(closed) == 2
    first = 3 + len(prefix)  # of the patches
    assert all(not each[..., :first].any() and each[..., first:].all() for each in closed)
    assert outputs.isfinite().all()
    outputs.sum().backward()
    assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)
    head.masking.zero_()
    closed.clear()
    model(draw_images(model))
    assert not any(each.any() for each in closed)
