"""Contrastive learning: the features of two views of an image should be similar, and different from those of other images.

`MoCo` is MoCo v3 (Chen, Xie & He 2021, "An Empirical Study of Training Self-Supervised Vision Transformers"), `SimCLR`
is by Chen, Kornblith, Norouzi & Hinton 2020 ("A Simple Framework for Contrastive Learning of Visual Representations").
Both use the pooled features, the input of the encoder's head, so they support every architecture.

The loss of an image depends on all others, so the losses of micro-batches would be a different objective. Gradient caching
(Gao et al. 2021) computes the gradient of the whole batch with the memory of a micro-batch: first the features of all images
without a graph; then the loss of all features and its gradient with respect to them; then for each micro-batch the features
again, with a graph, and the backward pass with the cached gradient.

B images, C channels, H and W, F width of the pooled features, Z width of the projections.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, DataError
from vitrail.models import Backbone, sketch
from vitrail.models.cost import image_for
from vitrail.models.layers import by_hand
from vitrail.objectives.objective import Objective
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.torch_private import lerp_


class ContrastiveObjective(Objective):
    """An objective in two parts: the features of each image, and a loss that compares the features of all images.

    Backbones use no batch statistics, so `features` and `references` can be computed for a few images at a time. Batch norm
    belongs in `compare`, which sees the whole batch and must be deterministic.
    """

    views = 2
    compares_images: bool = True  # otherwise the loss is a mean over images

    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the features through which the encoder gets its gradient, (B, F) of each view (B, C, H, W)."""
        return tuple(self.encoder.features(images) for images in inputs)

    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns features without a gradient, such as those of a momentum encoder."""
        return ()

    @abstractmethod
    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and measurements, as of `forward`, from the `features` and then the `references` of the whole batch."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the mean loss of the batch in fp32, and measurements: detached scalars by name."""
        return self.compare(*self.features(*inputs), *self.references(*inputs))


def cached_backward(
    objective: ContrastiveObjective,
    inputs: Sequence[Tensor],
    micro: int,
    *,
    seed: Callable[[int], object],
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    ranks: Ranks = SINGLE,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Adds the gradient of the loss of the whole batch to ``.grad``, with the activations of ``micro`` images in memory.

    Features are computed twice, references once. The caller's autocast applies to the forward passes.

    On several ranks every rank has a part of the batch, computes the features of it, and compares those of all ranks. The
    gradients of the ranks add up to that of the batch: that of what compares is in W equal parts, that of the features comes from
    the rank that has the images. Nothing is differentiated across ranks.

    Args:
        inputs: the inputs of `ContrastiveObjective.forward`.
        micro: size of a micro-batch; if the batch is not larger, this is a plain forward and backward pass.
        seed: called with the index of a micro-batch before each computation of its features, so that dropout and drop
            path draw the same numbers both times.
        scale: scales the loss before the backward pass, such as ``GradScaler.scale``.
        ranks: the processes that have the other parts of the batch.

    Returns:
        The detached, unscaled loss, and the measurements.

    Raises:
        DataError: too few images of this rank's part are good.
    """
    micro_batches = list(zip(*(tensor.split(micro) for tensor in inputs)))
    if not ranks.is_single:
        (count,) = ranks.largest(len(micro_batches))  # an exchange of one rank needs one of each other
        if len(inputs[0]) < count:
            raise DataError(f"{len(inputs[0])} images are left for {count} micro-steps", "see `vitrail data check`")
        micro_batches = list(zip(*(tensor.tensor_split(count) for tensor in inputs)))
    elif len(micro_batches) == 1:
        seed(0)
        loss, measurements = objective(*inputs)
        with by_hand(loss):
            scale(loss).backward()
        return loss.detach(), measurements
    seeds = range(ranks.rank * len(micro_batches), (ranks.rank + 1) * len(micro_batches))
    own, references = _compute_without_graph(objective, micro_batches, seeds, seed)
    gathered = [ranks.gather_rows(part) for part in own]
    features = [torch.cat(parts).requires_grad_() for parts in gathered]  # leaves of a new graph
    loss, measurements = objective.compare(*features, *(torch.cat(ranks.gather_rows(part)) for part in references))
    with by_hand(loss):
        scale(loss / ranks.world).backward()
    start = sum(map(len, gathered[0][: ranks.rank]))
    sizes = [len(micro_batch[0]) for micro_batch in micro_batches]
    mine = slice(start, start + sum(sizes))
    gradients = zip(*(leaf.grad[mine].mul(ranks.world).split(sizes) for leaf in features))  # type: ignore[index]
    for index, micro_batch, gradient in zip(seeds, micro_batches, gradients):
        seed(index)
        again = objective.features(*micro_batch)
        with by_hand(loss):
            torch.autograd.backward(again, gradient)
    return loss.detach(), measurements


@torch.no_grad()
def _compute_without_graph(
    objective: ContrastiveObjective,
    micro_batches: Sequence[tuple[Tensor, ...]],
    seeds: Sequence[int],
    seed: Callable[[int], object],
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the features of all micro-batches, and the references."""
    features, references = [], []
    for index, micro_batch in zip(seeds, micro_batches):
        seed(index)
        features.append(objective.features(*micro_batch))
        references.append(objective.references(*micro_batch))
    return [torch.cat(parts) for parts in zip(*features)], [torch.cat(parts) for parts in zip(*references)]


class MoCo(ContrastiveObjective):
    """MoCo v3: a view by the encoder has to match the other view of the same image by the momentum encoder.

    The momentum encoder and its projector are moving averages of the trained ones. They get no gradient and use no dropout,
    not in training either. (The authors' runs use no dropout at all.)

    Args:
        encoder: a backbone.
        hidden, out: hidden and output widths of projector and predictor.
        temperature: divisor of the cosine similarities.
        momentum: initial coefficient of the moving average; it increases to 1 along a cosine.
        freeze_patches: freeze the first layer on pixels, `Backbone.first_layer` with its bias, at its initial values,
            which makes training stable (section 4.2). In a stem or a convolutional network this is the first
            convolution.
    """

    about = (
        "Pulls two views of an image together and pushes other images apart; the second view is encoded by a slow average "
        "of the encoder (Chen, Xie and He 2021)."
    )

    def __init__(
        self,
        encoder: Backbone,
        *,
        hidden: int = 4096,
        out: int = 256,
        temperature: float = 0.2,
        momentum: float = 0.99,
        freeze_patches: bool = True,
    ) -> None:
        super().__init__(encoder)
        self.temperature = temperature
        self.momentum = momentum
        self.projector = make_head(pooled_width(encoder), hidden, hidden, out)
        self.predictor = make_head(out, hidden, out)
        if freeze_patches:
            freeze_first_layer(encoder)
        self.momentum_encoder = deepcopy(encoder).requires_grad_(False).eval()
        self.momentum_projector = deepcopy(self.projector).requires_grad_(False)

    def train(self, mode: bool = True) -> MoCo:
        super().train(mode)
        self.momentum_encoder.eval()
        return self

    @torch.no_grad()
    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the features by the momentum encoder."""
        return tuple(self.momentum_encoder.features(images) for images in inputs)

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the symmetric loss from `features` and `references`, (B, F) each: the sum over both directions; ``accuracy``,
        the fraction of queries whose most similar key is the right one; and ``batch_spread``, the `spread` of the features.
        """
        _check_batch(features[0])
        with torch.no_grad():
            first, second = (self.momentum_projector(reference) for reference in features[2:])  # (B, Z) each
        searches = [
            moco_loss(self.predictor(self.projector(queries)), keys, self.temperature)
            for queries, keys in zip(features[:2], (second, first))
        ]
        losses, accuracies = map(torch.stack, zip(*searches))
        return losses.sum(), {"accuracy": accuracies.mean(), "batch_spread": spread(features[0])}

    @torch.no_grad()
    def after_step(self, share: float) -> None:
        """Updates the moving averages: the momentum encoder and its projector."""
        slow: list[Tensor] = [*self.momentum_encoder.parameters(), *self.momentum_projector.parameters()]
        trained: list[Tensor] = [*self.encoder.parameters(), *self.projector.parameters()]
        lerp_(slow, trained, rate_of_average(self.momentum, share))


class SimCLR(ContrastiveObjective):
    """SimCLR: each of 2B views has to match the other view of its image among the 2B - 1 other views.

    Args:
        encoder: a backbone.
        hidden, out: hidden and output widths of the projector.
        temperature: divisor of the cosine similarities.
    """

    about = "Pulls two views of an image together and pushes other images apart (Chen et al. 2020)."

    def __init__(self, encoder: Backbone, *, hidden: int = 2048, out: int = 128, temperature: float = 0.1) -> None:
        super().__init__(encoder)
        self.temperature = temperature
        self.projector = make_head(pooled_width(encoder), hidden, out)

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss from the features of the two views, (B, F) each; measurements as in `MoCo.compare`."""
        _check_batch(features[0])
        first, second = self.projector(torch.cat(features)).chunk(2)  # (B, Z) each; batch norm over both views together
        loss, accuracy = nt_xent(first, second, self.temperature)
        return loss, {"accuracy": accuracy, "batch_spread": spread(features[0])}


def moco_loss(queries: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Returns 2 tau times the cross-entropy of each query's own key among all keys, as in the paper's code, and the fraction of
    queries (B, Z) whose own key (B, Z), that of the same row, is the most similar; in fp32 or better.
    """
    logits = cosine_similarity(queries, keys) / temperature  # (B, B)
    own = torch.arange(len(logits), device=logits.device)
    return 2 * temperature * F.cross_entropy(logits, own), _accuracy(logits, own)


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Returns the normalised, temperature-scaled cross-entropy of SimCLR, section 2.1, for two views (B, Z): the mean over 2B
    views of that of the other view among all views but itself, and the fraction of views whose most similar view is the other
    one; in fp32 or better.
    """
    both = torch.cat([first, second])
    logits = (cosine_similarity(both, both) / temperature).fill_diagonal_(-math.inf)  # (2B, 2B)
    other = torch.arange(len(both), device=both.device).roll(len(first))
    return F.cross_entropy(logits, other), _accuracy(logits, other)


def cosine_similarity(queries: Tensor, others: Tensor) -> Tensor:
    """Returns the cosine similarities of (A, Z) and (B, Z), (A, B), in fp32 also under autocast."""
    with by_hand(queries):
        return _unit_vectors(queries) @ _unit_vectors(others).mT


@torch.no_grad()
def spread(features: Tensor) -> Tensor:
    """Returns the spread of features (B, F): 0 if all are equal, 1 if their directions are uniform on the sphere.

    The mean over dimensions of the standard deviation of the directions, times sqrt(F) (Chen & He 2021, SimSiam, section
    4.1). It is computed on the features of the encoder, because a batch norm would spread even collapsed features.
    """
    return _unit_vectors(features).std(0, correction=0).mean() * math.sqrt(features.shape[1])


def freeze_first_layer(encoder: Backbone) -> None:
    """Freezes the first layer on pixels with its bias."""
    encoder.get_submodule(encoder.first_layer.rpartition(".")[0]).requires_grad_(False)


def rate_of_average(momentum: float, share: float) -> float:
    """Returns the weight of the newest value in a moving average, after ``share`` of a run: 1 minus a coefficient that increases
    from ``momentum`` to 1 along a cosine.
    """
    return (1 - momentum) * (1 + math.cos(math.pi * share)) / 2


def make_head(*widths: int) -> nn.Sequential:
    """Creates an MLP: linear layers from each width to the next, each followed by batch norm, with ReLU in between.

    No layer has a bias, and the last norm has neither scale nor shift (as in MoCo v3; SimCLR's has a scale). There are no
    running statistics, because heads always see whole batches. Weights are initialised uniformly in +-sqrt(1 / inputs).
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.Linear(before, after, bias=False)
        nn.init.uniform_(linear.weight, -math.sqrt(1 / before), math.sqrt(1 / before))
        layers += [linear, nn.BatchNorm1d(after, track_running_stats=False), nn.ReLU()]
    return nn.Sequential(*layers[:-2], nn.BatchNorm1d(widths[-1], affine=False, track_running_stats=False))


@torch.no_grad()
def pooled_width(encoder: Backbone) -> int:
    """Returns F, which differs from `Backbone.width` if pooling concatenates several tokens."""
    twin = sketch(encoder.config)
    return twin.features(image_for(twin)).shape[1]


def _unit_vectors(x: Tensor) -> Tensor:
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=1)


def _accuracy(logits: Tensor, right: Tensor) -> Tensor:
    return (logits.detach().argmax(1) == right).float().mean()


def _check_batch(features: Tensor) -> None:
    if len(features) < 2:
        what = f"a contrastive loss of a batch of {len(features)}"
        raise ConfigError(what, "it compares images: use a batch of two or more")
