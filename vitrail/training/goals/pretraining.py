"""The parts that pre-training shares between encoders and tokenizers: data, inputs and report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config.schema import Run
from vitrail.data.augment.policy import Augment
from vitrail.data.sources.source import drop_annotations
from vitrail.errors import ConfigError, DataError
from vitrail.models.backbone import at_rest
from vitrail.objectives.gradient_cache import ContrastiveObjective
from vitrail.objectives.objective import Objective
from vitrail.reports.facts import Panel, PretrainingFacts
from vitrail.reports.pretraining.card import write_pretrain_card
from vitrail.reports.pretraining.page import write_pretrain_report
from vitrail.runs.folder import RunFolder
from vitrail.runtime.distributed import ALONE
from vitrail.runtime.progress import Say
from vitrail.training.data import RunData, TrainingBatches, Transform, open_run_data
from vitrail.training.inputs import Augmented, Inputs, ViewInputs
from vitrail.training.network import Kept
from vitrail.training.objective import make_objective
from vitrail.training.provenance import Outcome

TOO_SMALL_TO_BLUR = 64  # pixels; the blurs of the papers are for images of 224
SHOWN = 8  # images


def check_pretraining(run: Run) -> None:
    """Raises `ConfigError` for what learning without labels does not have."""
    for name in ("head_only", "head_first"):
        if getattr(run.model, name):
            raise ConfigError(f"model.{name} is set, and learning without labels has no head", "leave it out")


def open_unlabelled(
    run: Run, data: Any, folder: RunFolder, transform: Transform | None, *, channels: int | None
) -> RunData:
    """The images; their labels, where they have some, serve only to judge by.

    Raises `DataError` where there are too few to learn from and to evaluate.
    """
    run_data = open_run_data(run, data, folder, transform, channels=channels, labels=False)
    run_data = replace(run_data, splits=drop_annotations(run_data.splits))
    train = run_data.splits.train
    if train is None or len(train) < 4:
        count = 0 if train is None else len(train)
        raise DataError(f"the data hold {count} training images", "give more; see `vitrail data check`")
    return run_data


def pretraining_objective(run: Run, encoder: Any, kept: Kept, data: RunData, say: Say) -> tuple[Objective, Inputs]:
    """The objective that the run names, laid around ``encoder``, and its inputs."""
    objective, target_network = make_objective(run.objective, encoder, kept.preprocessing, say)
    warn_of_repeats(run, objective, len(data.train), say)
    augmented = Augmented(
        policy=drop_blur(run.augment, kept.preprocessing.size, say),
        preprocessing=kept.preprocessing,
        seed=run.seed,
        cropped=data.cropped,
    )
    return objective, ViewInputs(augmented, objective, target_network)


def warn_of_repeats(run: Run, objective: Objective, images: int, say: Say) -> None:
    """Warns where a batch in which each image is to be unlike all others holds some images more than once."""
    if isinstance(objective, ContrastiveObjective) and run.data.batch > images:
        problem = (
            f"a batch of {run.data.batch} holds each of {images} images more than once, and each is to be unlike itself"
        )
        say(f"warning  {problem}: give a smaller --batch")


def drop_blur(policy: Augment, size: tuple[int, int], say: Say) -> Augment:
    """The policy without the blur of its views where images are too small for it: SimCLR's for CIFAR has none either."""
    if not any(policy.blur_views) or min(size) >= TOO_SMALL_TO_BLUR:
        return policy
    say(f"views    no blur: images of {size[0]} x {size[1]} would lose their content")
    return replace(policy, blur_views=(0.0, 0.0))


def collect_figures(records: Sequence[dict], columns: Sequence[str]) -> dict[str, float]:
    """The last value of each of the ``columns``, the accuracy ``knn`` before training, and the last loss."""
    figures: dict[str, float] = {}
    for name in columns:
        values = [record[name] for record in records if name in record]
        if values:
            figures[name] = values[-1]
            if name == "knn":
                figures["knn_untrained"] = values[0]
    losses = [record["loss"] for record in records if "loss" in record]
    return {**figures, "loss": losses[-1]} if losses else figures


def write_documents(folder: RunFolder, facts: PretrainingFacts, figures: dict[str, float]) -> Outcome:
    """Writes the report and the card."""
    report = write_pretrain_report(folder.path, facts)
    write_pretrain_card(folder.path, facts)
    summary = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return Outcome(report, figures, summary, warning=facts.diagnosis)


def draw_panels(
    name: str, objective: Objective, inputs: Inputs, batches: TrainingBatches, kept: Kept, data: RunData
) -> tuple[Panel, ...]:
    """A few images as the objective called ``name`` sees them, and its predictions; from val, where that has enough."""
    val = data.splits.val
    source = val if val is not None and len(val) >= SHOWN else data.train
    few = replace(batches, source=source, batch=min(SHOWN, len(source)), workers=0, ranks=ALONE)
    with closing(few(0, 1)) as shown:
        tensors = inputs(next(shown).to(few.device))
    with at_rest(objective):
        predictions = objective.show(*tensors)
    views = objective.views
    names = ["images"] if views == 1 else [f"view {view + 1}" for view in range(views)]
    captions = {**CAPTIONS, **OWN_CAPTIONS.get(name, {})}
    if getattr(objective, "norm_pix", False):
        captions["reconstructed"] += ", each with the mean and the contrast of the original"
    pictures: dict[str, Tensor] = {**dict(zip(names, tensors[:views])), **predictions}
    return tuple(
        Panel(name=name, caption=captions.get(name, ""), pictures=to_numpy(kept.preprocessing.denormalise(images)))
        for name, images in pictures.items()
    )


CAPTIONS = {
    "images": "as the objective sees them, after augmentation",
    "view 1": "a random crop of the image with changed colours",
    "view 2": "another such crop; the two should have similar features",
    "masked": "what the encoder sees; grey is corrupted or hidden",
    "visible": "what the encoder sees; grey is hidden",
    "predicted": "the corrupted patches in their predicted colours",
    "reconstructed": "the image with its hidden patches as predicted",
}
OWN_CAPTIONS = {
    "beit": {
        "masked": "what the encoder sees; grey is hidden",
        "codes": "the images as decoded from the tokenizer's codes",
        "predicted": "the same, with the predicted codes of the hidden patches",
    },
    "tokenizer": {"reconstructed": "the image decoded from its codes"},
}


def to_numpy(images: Tensor) -> np.ndarray:
    """(B, C, h, w) in [0, 1] as float32."""
    return images.float().cpu().numpy()
