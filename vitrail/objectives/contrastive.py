"""Contrastive learning: two views of an image are to be alike, and unlike those of all other images of the batch.

`MoCo` is its third version (Chen, Xie & He 2021, "An Empirical Study of Training Self-Supervised Vision Transformers"),
`SimCLR` that of Chen, Kornblith, Norouzi & Hinton 2020 ("A Simple Framework for Contrastive Learning of Visual
Representations"). Both read what the encoder's own head would, so that every architecture carries them.

B images, C channels, H and W, F width of what the encoder's pooling gives, Z width of what is compared.
"""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import Backbone, sketch
from vitrail.models.layers import by_hand
from vitrail.objectives.gradient_cache import ContrastiveObjective
from vitrail.torch_private import lerp_


class MoCo(ContrastiveObjective):
    """MoCo v3: the encoder's view of an image finds, among the momentum encoder's, the other view of the same image.

    The momentum encoder, and the projector after it, are moving averages of the trained ones and get no gradient; nothing
    is dropped in them, in training neither. (In the authors' runs nothing is dropped anywhere.)

    Args:
        encoder: a backbone.
        hidden, out: widths of projector and predictor within and at their ends.
        temperature: what cosines are divided by.
        momentum: share of itself that the momentum encoder keeps in an update, at first; it grows to 1 along a cosine.
        freeze_patches: the first linear layer on pixels, `Backbone.first_layer` with its bias, stays as it was
            initialised, which makes training steady (section 4.2). Of a stem or a convolutional network that is the
            first convolution.
    """

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
            encoder.get_submodule(encoder.first_layer.rpartition(".")[0]).requires_grad_(False)
        self.momentum_encoder = deepcopy(encoder).requires_grad_(False).eval()
        self.momentum_projector = deepcopy(self.projector).requires_grad_(False)

    def train(self, mode: bool = True) -> MoCo:
        super().train(mode)
        self.momentum_encoder.eval()
        return self

    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Of two views (B, C, H, W), each (B, F)."""
        return tuple(self.encoder.features(images) for images in inputs)

    @torch.no_grad()
    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The same by the momentum encoder."""
        return tuple(self.momentum_encoder.features(images) for images in inputs)

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """From `features` and `references`, (B, F) each: the loss of either view's search for the other, summed.

        Measured are ``accuracy``, the part of the searches that find their image, and ``batch_spread``, the `spread` of what
        is compared.

        Raises:
            ConfigError: a single image, which has none to be unlike.
        """
        _check_count(features[0])
        with torch.no_grad():
            first, second = (self.momentum_projector(each) for each in features[2:])  # (B, Z) each
        searches = [
            moco_loss(self.predictor(self.projector(each)), keys, self.temperature)
            for each, keys in zip(features[:2], (second, first))
        ]
        losses, accuracies = map(torch.stack, zip(*searches))
        return losses.sum(), {"accuracy": accuracies.mean(), "batch_spread": spread(features[0])}

    @torch.no_grad()
    def after_step(self, share: float) -> None:
        """Moves the momentum encoder and its projector towards the trained ones."""
        moves = (1 - self.momentum) * (1 + math.cos(math.pi * share)) / 2
        slow: list[Tensor] = [*self.momentum_encoder.parameters(), *self.momentum_projector.parameters()]
        trained: list[Tensor] = [*self.encoder.parameters(), *self.projector.parameters()]
        lerp_(slow, trained, moves)


class SimCLR(ContrastiveObjective):
    """SimCLR: each of 2B views finds the other view of its image among all 2B - 1 others.

    Args:
        encoder: a backbone.
        hidden, out: widths of the projector within and at its end.
        temperature: what cosines are divided by.
    """

    def __init__(self, encoder: Backbone, *, hidden: int = 2048, out: int = 128, temperature: float = 0.1) -> None:
        super().__init__(encoder)
        self.temperature = temperature
        self.projector = make_head(pooled_width(encoder), hidden, out)

    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Of two views (B, C, H, W), each (B, F)."""
        return tuple(self.encoder.features(images) for images in inputs)

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """From the features of the two views, (B, F) each: their loss; measured is the same as in `MoCo.compare`.

        Raises:
            ConfigError: a single image, which has none to be unlike.
        """
        _check_count(features[0])
        first, second = self.projector(torch.cat(features)).chunk(2)  # (B, Z) each, normed over both views together
        loss, accuracy = nt_xent(first, second, self.temperature)
        return loss, {"accuracy": accuracy, "batch_spread": spread(features[0])}


def moco_loss(queries: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """2 tau times the cross-entropy of each query's own key among all keys, as the paper's code has it.

    Args:
        queries, keys: (B, Z), of any length and precision; row i of one belongs to row i of the other.
        temperature: tau.

    Returns:
        The mean over queries, and the part of them whose own key is the most alike; in fp32 or better.
    """
    logits = cosines(queries, keys) / temperature  # (B, B)
    own = torch.arange(len(logits), device=logits.device)
    return 2 * temperature * F.cross_entropy(logits, own), _share(logits, own)


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The normalised, temperature-scaled cross-entropy of SimCLR, section 2.1.

    Args:
        first, second: two views (B, Z), of any length and precision.

    Returns:
        The mean over 2B views of the cross-entropy of the other view among all but itself, and the part of the views to
        which the other one is the most alike; in fp32 or better.
    """
    both = torch.cat([first, second])
    logits = (cosines(both, both) / temperature).fill_diagonal_(-math.inf)  # (2B, 2B)
    other = torch.arange(len(both), device=both.device).roll(len(first))
    return F.cross_entropy(logits, other), _share(logits, other)


def cosines(some: Tensor, others: Tensor) -> Tensor:
    """(A, Z) and (B, Z) to (A, B), in fp32 under autocast too."""
    with by_hand(some):
        return _directions(some) @ _directions(others).mT


@torch.no_grad()
def spread(features: Tensor) -> Tensor:
    """How far features (B, F) are from all being one: 0 there, 1 where their directions are spread evenly over the sphere.

    The standard deviation of each dimension of the directions, averaged, times sqrt(F) (Chen & He 2021, SimSiam, section
    4.1). Of what the encoder gives: a batch norm would spread out even what has collapsed.
    """
    return _directions(features).std(0, correction=0).mean() * math.sqrt(features.shape[1])


def make_head(*widths: int) -> nn.Sequential:
    """Linear layers from each width to the next, batch norm after each and ReLU between.

    No layer has a bias and the last norm neither scale nor shift (MoCo v3's; SimCLR's has a scale). There are no running
    statistics: heads are never used on anything but whole batches. Weights begin uniform, +-sqrt(1 / inputs).
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.Linear(before, after, bias=False)
        nn.init.uniform_(linear.weight, -math.sqrt(1 / before), math.sqrt(1 / before))
        layers += [linear, nn.BatchNorm1d(after, track_running_stats=False), nn.ReLU()]
    return nn.Sequential(*layers[:-2], nn.BatchNorm1d(widths[-1], affine=False, track_running_stats=False))


@torch.no_grad()
def pooled_width(encoder: Backbone) -> int:
    """F, which is not `Backbone.width` where pooling puts several tokens beside one another."""
    config = encoder.config
    image = torch.empty(1, config.in_channels, *config.image_size, device="meta")
    return sketch(config).features(image).shape[1]


def _directions(x: Tensor) -> Tensor:
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=1)


def _share(logits: Tensor, right: Tensor) -> Tensor:
    return (logits.detach().argmax(1) == right).float().mean()


def _check_count(features: Tensor) -> None:
    if len(features) < 2:
        raise ConfigError(
            f"a contrastive loss of a batch of {len(features)}", "it compares images: give batches of two at the least"
        )
