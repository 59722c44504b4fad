"""Contrastive learning: the features of two views of an image should be similar, and different from those of other images.

`MoCo` is MoCo v3 (Chen, Xie & He 2021, "An Empirical Study of Training Self-Supervised Vision Transformers"), `SimCLR`
is by Chen, Kornblith, Norouzi & Hinton 2020 ("A Simple Framework for Contrastive Learning of Visual Representations").
Both use the pooled features, the input of the encoder's head, so they support every architecture.

B images, C channels, H and W, F width of the pooled features, Z width of the projections.
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
            encoder.get_submodule(encoder.first_layer.rpartition(".")[0]).requires_grad_(False)
        self.momentum_encoder = deepcopy(encoder).requires_grad_(False).eval()
        self.momentum_projector = deepcopy(self.projector).requires_grad_(False)

    def train(self, mode: bool = True) -> MoCo:
        super().train(mode)
        self.momentum_encoder.eval()
        return self

    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the features of two views (B, C, H, W), (B, F) each."""
        return tuple(self.encoder.features(images) for images in inputs)

    @torch.no_grad()
    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the features by the momentum encoder."""
        return tuple(self.momentum_encoder.features(images) for images in inputs)

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the symmetric loss from `features` and `references`, (B, F) each: the sum over both directions.

        Measurements: ``accuracy``, the fraction of queries whose most similar key is the right one, and ``batch_spread``,
        the `spread` of the features.

        Raises:
            ConfigError: the batch has only one image.
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
        moves = (1 - self.momentum) * (1 + math.cos(math.pi * share)) / 2
        slow: list[Tensor] = [*self.momentum_encoder.parameters(), *self.momentum_projector.parameters()]
        trained: list[Tensor] = [*self.encoder.parameters(), *self.projector.parameters()]
        lerp_(slow, trained, moves)


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

    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the features of two views (B, C, H, W), (B, F) each."""
        return tuple(self.encoder.features(images) for images in inputs)

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss from the features of the two views, (B, F) each; measurements as in `MoCo.compare`.

        Raises:
            ConfigError: the batch has only one image.
        """
        _check_batch(features[0])
        first, second = self.projector(torch.cat(features)).chunk(2)  # (B, Z) each; batch norm over both views together
        loss, accuracy = nt_xent(first, second, self.temperature)
        return loss, {"accuracy": accuracy, "batch_spread": spread(features[0])}


def moco_loss(queries: Tensor, keys: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Returns 2 tau times the cross-entropy of each query's own key among all keys, as in the paper's code.

    Args:
        queries, keys: (B, Z), of any norm and precision; row i of one belongs to row i of the other.
        temperature: tau.

    Returns:
        The mean over queries, and the fraction of queries whose own key is the most similar; in fp32 or better.
    """
    logits = cosine_similarity(queries, keys) / temperature  # (B, B)
    own = torch.arange(len(logits), device=logits.device)
    return 2 * temperature * F.cross_entropy(logits, own), _accuracy(logits, own)


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Returns the normalised, temperature-scaled cross-entropy of SimCLR, section 2.1.

    Args:
        first, second: two views (B, Z), of any norm and precision.

    Returns:
        The mean over 2B views of the cross-entropy of the other view among all views but itself, and the fraction of views
        whose most similar view is the other one; in fp32 or better.
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
    config = encoder.config
    image = torch.empty(1, config.in_channels, *config.image_size, device="meta")
    return sketch(config).features(image).shape[1]


def _unit_vectors(x: Tensor) -> Tensor:
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=1)


def _accuracy(logits: Tensor, right: Tensor) -> Tensor:
    return (logits.detach().argmax(1) == right).float().mean()


def _check_batch(features: Tensor) -> None:
    if len(features) < 2:
        raise ConfigError(
            f"a contrastive loss of a batch of {len(features)}", "it compares images: use a batch of two or more"
        )
