"""Self-distillation: a student learns to answer parts of an image as its slow average, the teacher, answers the whole.

`DINO` is by Caron et al. 2021 ("Emerging Properties in Self-Supervised Vision Transformers"), `IBOT` by Zhou et al. 2022 ("iBOT:
Image BERT Pre-Training with Online Tokenizer"). An answer is a distribution over K prototypes. It could become the same for all
images in two ways: uniform, which the low temperature of the teacher prevents, or one prototype, which subtracting the mean of
the teacher's outputs, the centre, prevents. The centre of an update is that of the updates before, so the loss is a mean over
images, whatever the micro-batches and ranks. With Sinkhorn's iteration in place of the centre, or with KoLeo (both as in DINOv2,
Oquab et al. 2023), it compares the images of a whole batch, see `ContrastiveObjective`.

B images, V views of each, the first A = 2 of them global, C channels, N patches in M cells, n of them hidden, F width of
features, D of tokens, Z of the bottleneck, K prototypes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.augment.policy import LocalViews
from vitrail.errors import ConfigError
from vitrail.models import Backbone, sketch
from vitrail.models.config import is_number, is_whole
from vitrail.models.initialise import fill_parameter, fills
from vitrail.models.layers import as_tokens, by_hand, cut_patches, gather_rows, join_patches
from vitrail.objectives.contrastive import ContrastiveObjective, freeze_first_layer, pooled_width, rate_of_average
from vitrail.objectives.features import compare_patches
from vitrail.objectives.masking import Grid, Masked, block_mask, cell_grid, check_whole, patches_per_cell
from vitrail.torch_private import lerp_

GLOBAL = 2  # views
LOCAL, LOCAL_SIZE = 4, 0.5  # the number of local views, and their side, relative to that of global ones
FIRST_TEMPERATURE = 0.04  # of the teacher, from which it rises
UNIFORM = 0.01  # of ln K: a loss that is no further below is that of uniform answers
ONE_PROTOTYPE = 0.5  # entropy of the mean answer below which nearly all images have the same
NEAREST = 1e-8  # added to distances
SETTLED = 0.1  # of a run, before which a loss near ln K is no collapse
REMEDY = (
    "Try a lower --lr, and in objective.changes a lower teacher_temperature, freeze_last=1 or, on a small set, fewer prototypes "
    "and momentum=0.99."
)


class DINO(ContrastiveObjective):
    """The student's answer to each view has to be the teacher's answer to every other global view of the image.

    The teacher is a moving average of the student, without dropout; it is evaluated and saved. Local views, which only the
    student sees, show small parts of the image in fewer pixels: of two global and n local views 2 + 2 n pairs are compared.

    Args:
        encoder: a backbone, for local views one that takes images of other sizes.
        prototypes: K.
        hidden, bottleneck: widths of the head, D - hidden - hidden - bottleneck - K.
        local_views: number of local views.
        local_size: their side, relative to the global views'; rounded to whole cells of the encoder.
        student_temperature, teacher_temperature: divisors of the outputs.
        temperature_warmup: share of the run in which the teacher's temperature rises from 0.04.
        momentum: initial coefficient of the moving average; it increases to 1 along a cosine.
        centre_momentum: coefficient of the moving average of the teacher's outputs.
        freeze_last: share of the run in which the prototypes stay as they are, at the beginning.
        freeze_patches: as in `MoCo`.
        anchor: weight of the mean squared change of the cosines among the patches of a global view, against the encoder as it is
            given; for further training of pre-trained weights, whose dense features would be lost (DINOv3, section 4.2). The
            patches that `IBOT` hides from the student stay hidden here.
        koleo: weight of `koleo_loss`, the sum over the global views of the student's features; DINOv2 has 0.1.
        centring: "mean", or "sinkhorn" for `sinkhorn` of the teacher's outputs of a whole batch in place of the centre.

    Raises:
        ConfigError: invalid arguments, or an encoder that does not take local views.
    """

    about = (
        "A slow average of the encoder assigns each image to prototypes, and the encoder learns to give the same answer for "
        "other and smaller parts of the image (Caron et al. 2021)."
    )
    views = GLOBAL
    evaluated: ClassVar[str] = "teacher_encoder"
    can_collapse: ClassVar[bool] = True

    def __init__(
        self,
        encoder: Backbone,
        *,
        prototypes: int = 4096,
        hidden: int = 2048,
        bottleneck: int = 256,
        local_views: int = LOCAL,
        local_size: float = LOCAL_SIZE,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        temperature_warmup: float = 0.0,
        momentum: float = 0.996,
        centre_momentum: float = 0.9,
        freeze_last: float = 0.01,
        freeze_patches: bool = True,
        anchor: float = 0.0,
        koleo: float = 0.0,
        centring: str = "mean",
    ) -> None:
        super().__init__(encoder)
        given = locals()
        for name in ("anchor", "koleo"):
            _demand(is_number(given[name]) and given[name] >= 0, name, given[name], "give a weight such as 0.1, or 0")
        _demand(centring in ("mean", "sinkhorn"), "centring", centring, "give mean or sinkhorn")
        for name, least in {"prototypes": 2, "hidden": 1, "bottleneck": 1, "local_views": 0}.items():
            _demand(is_whole(given[name], least), name, given[name], f"give a whole number, from {least}")
        for name in ("student_temperature", "teacher_temperature"):
            _demand(is_number(given[name]) and given[name] > 0, name, given[name], "give a number above 0, such as 0.1")
        for name in ("temperature_warmup", "momentum", "centre_momentum", "freeze_last"):
            _demand(is_number(given[name]) and 0 <= given[name] <= 1, name, given[name], "give a number from 0 to 1")
        self.koleo, self.centring = koleo, centring
        self.compares_images = koleo > 0 or centring == "sinkhorn"
        self.views = GLOBAL + local_views
        self.local = plan_local_views(encoder, local_views, local_size) if local_views else None
        self.student_temperature, self.teacher_temperature = student_temperature, teacher_temperature
        self.temperature_warmup, self.freeze_last = temperature_warmup, freeze_last
        self.momentum, self.centre_momentum = momentum, centre_momentum
        self.head = PrototypeHead(pooled_width(encoder), hidden, bottleneck, prototypes)
        if freeze_patches:
            freeze_first_layer(encoder)
        self.anchor = anchor
        self.anchor_encoder = deepcopy(encoder).requires_grad_(False).eval() if anchor else None
        self.teacher_encoder = deepcopy(encoder).requires_grad_(False).eval()
        self.teacher_head = deepcopy(self.head).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(prototypes))
        self.register_buffer("share", torch.zeros(()))  # of the run
        self.centre: Tensor
        self.share: Tensor

    @classmethod
    def count_views(cls, changes: Mapping[str, Any]) -> float:
        count, side = changes.get("local_views", LOCAL), changes.get("local_size", LOCAL_SIZE)
        return GLOBAL + (count * side**2 if is_whole(count) and is_number(side) else 0)

    def train(self, mode: bool = True) -> DINO:
        super().train(mode)
        for frozen in (self.teacher_encoder, self.anchor_encoder):
            if frozen is not None:
                frozen.eval()
        return self

    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the student's features of all views, and with an anchor the tokens (B, N, D) of the global ones."""
        whole, local, tokens = torch.cat(inputs[:GLOBAL]), inputs[GLOBAL : self.views], ()
        if self.anchor_encoder is None:
            features = self.encoder.features(whole)
        else:
            features, map_ = self.encoder.features_and_map(whole)
            tokens = as_tokens(map_).chunk(GLOBAL)
        return *features.chunk(GLOBAL), *self._encode_local(local), *tokens

    def _encode_local(self, views: tuple[Tensor, ...]) -> Sequence[Tensor]:
        return self.encoder.features(torch.cat(views)).chunk(len(views)) if views else ()

    @torch.no_grad()
    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the teacher's features of the global views, and with an anchor their tokens at the start."""
        whole = torch.cat(inputs[:GLOBAL])
        return *self.teacher_encoder.features(whole).chunk(GLOBAL), *self._encode_start(whole)

    def _encode_start(self, images: Tensor) -> Sequence[Tensor]:
        anchor = self.anchor_encoder
        return () if anchor is None else as_tokens(anchor.features_and_map(images)[1]).chunk(GLOBAL)

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss, mean over pairs and images; and, for the teacher, the mean entropy of its answers ``row_entropy``,
        their divergence from the student's ``kl``, and the vectors of `summarise`; ``koleo`` and ``drift`` with their weights.
        """
        given, references = features[: self._given], features[self._given :]
        student = self.head(torch.cat(given[: self.views]), frozen=self._is_last_frozen())
        with torch.no_grad():
            outputs = self.teacher_head(torch.cat(references[:GLOBAL]))
        loss, measured = self._compare(student.unflatten(0, (self.views, -1)), outputs.unflatten(0, (GLOBAL, -1)))
        if self.koleo:
            _demand(len(given[0]) > 1, "the batch", len(given[0]), "KoLeo compares images: use two or more")
            koleo = torch.stack([koleo_loss(view) for view in given[:GLOBAL]]).sum()
            loss, measured = loss + self.koleo * koleo, {**measured, "koleo": koleo.detach()}
        if self.anchor:
            tokens, start = torch.cat(given[self.views :]), torch.cat(references[GLOBAL:])  # (A B, N, D) each
            with by_hand(tokens):
                drift = F.mse_loss(compare_patches(tokens), compare_patches(start))
            loss, measured = loss + self.anchor * drift, {**measured, "drift": drift.detach()}
        return loss, measured

    @property
    def _given(self) -> int:
        """Number of tensors that `DINO.features` returns."""
        return self.views + GLOBAL * bool(self.anchor)

    def _compare(self, student: Tensor, outputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and measurements of the outputs of the student (V, B, K) and of the teacher (A, B, K)."""
        with by_hand(student):
            answers = self._answer(outputs, self.centre)
            loss = dino_loss(torch.log_softmax(student / self.student_temperature, -1), answers)
            with torch.no_grad():
                entropy = torch.special.entr(answers).sum(-1).mean()
                rows, best = answers.flatten(0, 1), answers.flatten(0, 1).argmax(1)
                wins = torch.zeros_like(rows[0]).scatter_add_(0, best, torch.full_like(rows[:, 0], 1 / len(rows)))
                vectors = {"centre": outputs.mean((0, 1)), "answer": rows.mean(0), "wins": wins}
        return loss, {"row_entropy": entropy, "kl": loss.detach() - entropy, **vectors}

    def _answer(self, outputs: Tensor, centre: Tensor) -> Tensor:
        """Returns the teacher's probabilities of outputs (..., K)."""
        temperature: Tensor | float = self.teacher_temperature
        if self.temperature_warmup:
            risen = (self.share.to(outputs.dtype) / self.temperature_warmup).clamp(max=1)
            temperature = FIRST_TEMPERATURE + (self.teacher_temperature - FIRST_TEMPERATURE) * risen
        if self.centring == "sinkhorn":
            return sinkhorn(outputs / temperature)
        return torch.softmax((outputs - centre.to(outputs.dtype)) / temperature, -1)

    def _is_last_frozen(self) -> Tensor | None:
        """Returns whether the prototypes have no gradient at this moment, on the device; None if they always have one."""
        return self.share < self.freeze_last if self.freeze_last else None

    @torch.no_grad()
    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Moves the centre. Returns the scalars, the entropy ``mean_entropy`` of the teacher's mean answer, which is 0 if that
        is one prototype and ln K if all count alike, ``centre_norm``, and ``winning``, the share of the prototypes that are the
        first for some view.
        """
        scalars = {name: mean for name, mean in means.items() if not mean.ndim}
        self._move_centre(self.centre, means["centre"])
        entropy, winning = torch.special.entr(means["answer"]).sum(), (means["wins"] > 0).float().mean()
        return {**scalars, "mean_entropy": entropy, "centre_norm": self.centre.norm(), "winning": winning}

    def _move_centre(self, centre: Tensor, mean: Tensor) -> None:
        centre.lerp_(mean.to(centre), 1 - self.centre_momentum)

    def explain_collapse(self, means: Mapping[str, float], share: float) -> str | None:
        if share < SETTLED or "mean_entropy" not in means:
            return None
        loss, uniform, entropy = means["kl"] + means["row_entropy"], math.log(len(self.centre)), means["mean_entropy"]
        if entropy < ONE_PROTOTYPE:
            fact = f"the mean answer has an entropy of {entropy:.2g}, of {uniform:.4g} at most"
            return f"The objective has collapsed (one prototype): {fact}. {REMEDY}"
        if loss > (1 - UNIFORM) * uniform:
            return f"The objective has collapsed (uniform): the loss is {loss:.4g}, and ln K is {uniform:.4g}. {REMEDY}"
        return None

    @torch.no_grad()
    def after_step(self, share: float) -> None:
        """Updates the moving averages: the teacher's encoder and heads."""
        slow = {name: weight for name, weight in self.named_parameters() if name.startswith("teacher_")}
        trained = dict(self.named_parameters())
        followed = [trained[name.removeprefix("teacher_")] for name in slow]
        lerp_(list(slow.values()), followed, rate_of_average(self.momentum, share))
        self.share.fill_(share)


class IBOT(DINO):
    """DINO, and for patches hidden from the student the teacher's answer to the patch itself.

    Cells of the student's global views are hidden as in `MaskedCodes`, and an output token stands for the patches of a cell. The
    loss is the sum of both.

    Args:
        encoder: a backbone as for `Masked`.
        mask_share: fraction of the cells that is hidden in every global view.
        share_head: one head for images and patches, for which the features must be as wide as tokens.
        options: the arguments of `DINO`.

    Raises:
        ConfigError: as `DINO` and `Masked`.
    """

    about = (
        "As DINO, and for patches that are hidden from the encoder its slow average, which sees them, gives the answer (Zhou et "
        "al. 2022)."
    )
    carried_by: ClassVar = Masked.carried_by

    def __init__(self, encoder: Backbone, *, mask_share: float = 0.3, share_head: bool = True, **options: Any) -> None:
        _demand(is_number(mask_share) and 0 < mask_share <= 1, "mask_share", mask_share, "give a share such as 0.3")
        super().__init__(encoder, **options)
        check_whole(self)
        self.mask_share = mask_share
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, encoder.patch_width))
        width, *further = self.head.widths
        if share_head and width != encoder.width:
            what = f"features of width {width} and tokens of width {encoder.width} cannot have one head"
            raise ConfigError(what, "set share_head=False")
        self.patch_head = None if share_head else PrototypeHead(encoder.width, *further)
        self.teacher_patch_head = deepcopy(self.patch_head)
        if self.teacher_patch_head is not None:
            self.teacher_patch_head.requires_grad_(False)
        self.register_buffer("patch_centre", torch.zeros_like(self.centre))
        self.patch_centre: Tensor

    def draw(self, ids: NDArray[np.int64], size: Grid, seed: int) -> tuple[Tensor, ...]:
        """Draws ``hidden`` of `forward`, of each global view with the same number of cells; see `block_mask`."""
        grid = cell_grid(self.encoder, size)
        views = [ids + np.array([0, 0, view]) for view in range(GLOBAL)]
        return tuple(torch.from_numpy(block_mask(each, grid, self._count_hidden(grid), seed)) for each in views)

    def _count_hidden(self, grid: Grid) -> int:
        return max(round(self.mask_share * math.prod(grid)), 1)

    def features(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns what `DINO.features` does, then the tokens (B, n, D) of the patches that are ``hidden``, (B, M) bool for each
        global view, the last two inputs.
        """
        whole, hidden, places = self._find_hidden(inputs)
        features, tokens = self._encode(self.encoder, whole, hidden)
        held = tokens.chunk(GLOBAL) if self.anchor else ()
        local = self._encode_local(inputs[GLOBAL : self.views])
        return *features.chunk(GLOBAL), *local, *held, *gather_rows(tokens, places).chunk(GLOBAL)

    @torch.no_grad()
    def references(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns what `DINO.references` does, then the teacher's tokens (B, n, D) of the same patches."""
        whole, _, places = self._find_hidden(inputs)
        features, tokens = self._encode(self.teacher_encoder, whole)
        return *features.chunk(GLOBAL), *self._encode_start(whole), *gather_rows(tokens, places).chunk(GLOBAL)

    def _find_hidden(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the global views (A B, C, H, W), what is hidden (A B, M), and its places (A B, n)."""
        whole, hidden = torch.cat(inputs[:GLOBAL]), torch.cat(inputs[self.views :])
        count = self._count_hidden(cell_grid(self.encoder, (whole.shape[2], whole.shape[3])))
        return whole, hidden, hidden.int().argsort(dim=1, descending=True, stable=True)[:, :count]

    def compare(self, *features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the sum of the losses of the views and of the hidden patches; measurements as of `DINO`, of images alone, and
        ``patch_loss``.
        """
        start, stop = self._given, self._given + GLOBAL
        loss, measured = super().compare(*features[:start], *features[stop:-GLOBAL])
        with torch.no_grad():
            targets = (self.teacher_patch_head or self.teacher_head)(torch.cat(features[-GLOBAL:]))  # (A B, n, K)
        patches = (self.patch_head or self.head)(torch.cat(features[start:stop]), frozen=self._is_last_frozen())
        with by_hand(patches):
            answers = self._answer(targets, self.patch_centre)
            patch_loss = patch_cross_entropy(torch.log_softmax(patches / self.student_temperature, -1), answers)
        return loss + patch_loss, {**measured, "patch_loss": patch_loss.detach(), "patch_centre": targets.mean((0, 1))}

    def _encode(self, encoder: Backbone, images: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns features (B, F) and the normed tokens of all cells (B, M, D); cells that are ``hidden`` (B, M) are not seen."""
        patches = encoder.patchify(images)
        if hidden is not None:
            (r, s), grid = patches_per_cell(encoder), cell_grid(encoder, (images.shape[2], images.shape[3]))
            unseen = hidden.unflatten(1, grid).repeat_interleave(r, 1).repeat_interleave(s, 2).flatten(1)  # (B, N)
            patches = patches._replace(x=torch.where(unseen[..., None], self.mask_token.to(patches.x.dtype), patches.x))
        tokens = encoder.encode(encoder.place(patches))
        return encoder.pool(tokens), as_tokens(encoder.last_map(tokens))

    @torch.no_grad()
    def summarise(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        self._move_centre(self.patch_centre, means["patch_centre"])
        return super().summarise(means)

    @torch.no_grad()
    def show(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Returns ``masked``: the first view with the hidden patches grey."""
        images, hidden = inputs[0], inputs[self.views]
        cells = cut_patches(images, self.encoder.config.cell)  # (B, M, C, P, Q)
        seen = cells.masked_fill(hidden[..., None, None, None], 0.0)
        return {"masked": join_patches(seen, (images.shape[2], images.shape[3]))}


class PrototypeHead(nn.Module):
    """An MLP to a point on the unit sphere of Z dimensions, and its cosines to K prototypes, in fp32."""

    def __init__(self, width: int, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        self.widths = (width, hidden, bottleneck, prototypes)
        first, last = nn.Linear(width, hidden), nn.Linear(hidden, bottleneck)
        self.mlp = nn.Sequential(first, nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), last)
        self.prototypes = nn.Linear(bottleneck, prototypes, bias=False)
        self._initialise()

    @fills
    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            fill_parameter(name, parameter, 0.0)

    def forward(self, x: Tensor, frozen: Tensor | None = None) -> Tensor:
        """(..., F) to (..., K). The prototypes have no gradient where the scalar ``frozen`` is true."""
        point, weight = self.mlp(x), self.prototypes.weight
        with by_hand(point):
            kind = torch.promote_types(point.dtype, torch.float32)
            weight = F.normalize(weight.to(kind), dim=-1)
            if frozen is not None:
                weight = torch.where(frozen, weight.detach(), weight)
            return F.normalize(point.to(kind), dim=-1) @ weight.mT


def dino_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Returns the mean cross-entropy of the student's log-probabilities (V, B, K) for the teacher's probabilities (A, B, K), over
    images and over all pairs of different views; the first A views of the student are those of the teacher.
    """
    terms = -(teacher.flatten(1) @ student.flatten(1).mT) / student.shape[1]  # (A, V)
    return (terms.sum() - terms.diagonal().sum()) / (terms.numel() - len(terms))


def koleo_loss(features: Tensor) -> Tensor:
    """Returns minus the mean logarithm of the distance of each direction of features (B, F) to the nearest other one, in fp32 or
    better (Sablayrolles et al. 2019, "Spreading vectors for similarity search"; DINOv2).
    """
    with by_hand(features):
        units = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)
        nearest = (units @ units.mT).detach().fill_diagonal_(-math.inf).argmax(1)  # (B,)
        return -(F.pairwise_distance(units, units[nearest], eps=NEAREST) + NEAREST).log().mean()


def sinkhorn(logits: Tensor, iterations: int = 3) -> Tensor:
    """Returns probabilities (..., K) in which prototypes have about equal shares: exp(logits), divided in turn by the sums of its
    columns and of its rows (Caron et al. 2020, "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments").
    """
    rows = logits.flatten(0, -2)
    for _ in range(iterations):
        rows = rows.log_softmax(0).log_softmax(1)
    return rows.exp().view_as(logits)


def patch_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Returns the mean cross-entropy of log-probabilities (B, n, K) for probabilities (B, n, K), over the patches of an image and
    then over images, which have equally many.
    """
    return -(teacher * student).sum(-1).mean()


def plan_local_views(encoder: Backbone, count: int, share: float) -> LocalViews:
    """Returns ``count`` local views of ``share`` of the side of images, in whole cells.

    Raises `ConfigError` if that is no smaller, or the encoder does not take images of this size.
    """
    _demand(is_number(share) and 0 < share < 1, "local_size", share, "give a share of the side, such as 0.5")
    config, remedy = encoder.config, "set objective.changes.local_views=0, or another local_size"
    height, width = (max(round(share * side / cell), 1) * cell for side, cell in zip(config.image_size, config.cell))
    about = f"local views of {height} x {width} pixels"
    if (height, width) == tuple(config.image_size):
        raise ConfigError(f"{about} are not smaller than the images, which have one cell", remedy)
    twin = sketch(config)
    try:
        twin.features(torch.empty(1, config.in_channels, height, width, device="meta"))
    except ConfigError as error:
        raise ConfigError(f"the encoder does not take {about}: {error.what}", remedy) from error
    return LocalViews(count, (height, width))


def _demand(holds: bool, name: str, value: Any, remedy: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}", remedy)
