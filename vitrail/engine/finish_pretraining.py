"""The end of learning without labels: the encoder, or the tokenizer, for use; the report and the card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
from torch import Tensor

from vitrail.config.parse import plain
from vitrail.engine.finish import model_name, provenance, run_facts
from vitrail.engine.objectives import OBJECTIVES
from vitrail.engine.prepare import training_batches
from vitrail.engine.pretrain import Pretraining
from vitrail.engine.reporting.pretrained import Panel, PretrainFacts, write_pretrain_report
from vitrail.engine.reporting.pretrained_card import write_pretrain_card
from vitrail.engine.training import averaged
from vitrail.evaluation.feature_health import Health, diagnose
from vitrail.models import cost_of
from vitrail.models.backbone import at_rest
from vitrail.models.tokenizer import Tokenizer
from vitrail.runs.history import joined_records
from vitrail.runtime import fault_injection
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import duration
from vitrail.weights.native import save_model
from vitrail.weights.tokenizers import save_tokenizer

SHOWN = 8  # images
WATCHED = ("knn", "chance", "effective_rank", "spread", "psnr_held_out", "psnr_mean_colour", "codes_in_use")


def finish_pretraining(
    pretraining: Pretraining, *, command: str, seconds: float, quiet: bool, say: Callable[[str], None]
) -> tuple[Path, dict[str, float]]:
    """Writes ``model/``, ``report.html`` and ``card.md``; returns the report's path and the final figures."""
    training, kept = pretraining.training, pretraining.kept
    folder = training.folder
    records = joined_records(folder)
    figures = final_figures(records)
    fault_injection.hit("run.before_model")
    with averaged(training):
        told = provenance(training, pretraining.splits)
        if isinstance(kept, Tokenizer):
            save_tokenizer(folder.model, kept, pretraining.preprocessing, told)
        else:
            save_model(folder.model, kept, metrics=figures, provenance=told)
        fault_injection.hit("run.after_model")
        shown = panels(pretraining)
    facts = pretrain_facts(pretraining, shown, command, seconds)
    report = write_pretrain_report(folder.path, facts)
    write_pretrain_card(folder.path, facts)
    fault_injection.hit("run.before_finished")
    folder.write_status("finished", steps=training.steps, seconds=round(seconds, 1), figures=figures)
    if facts.diagnosis:
        say(f"warning  {facts.diagnosis}")
    words = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    say(f"done     {words} after {duration(seconds)}")
    return report, figures


def final_figures(records: list[dict]) -> dict[str, float]:
    """What was watched last, with what it was before training, and the last loss."""
    figures: dict[str, float] = {}
    for name in WATCHED:
        values = [record[name] for record in records if name in record]
        if values:
            figures[name] = values[-1]
            if name == "knn":
                figures["knn_untrained"] = values[0]
    losses = [record["loss"] for record in records if "loss" in record]
    return {**figures, "loss": losses[-1]} if losses else figures


def panels(pretraining: Pretraining) -> tuple[Panel, ...]:
    """A few images as the objective sees them, and its answers; of the validation part, where there is one."""
    training, preprocessing = pretraining.training, pretraining.preprocessing
    run, splits, bad = training.run, pretraining.splits, pretraining.bad
    part = splits.val if splits.val is not None and len(splits.val) >= SHOWN else splits.train
    assert part is not None, "there are no images"
    few = replace(run, data=replace(run.data, batch=min(SHOWN, len(part)), micro_batch=None, workers=0))
    views = training.objective.views
    batches = training_batches(few, part, preprocessing, training.device, bad, pretraining.transform, views=views)
    inputs = training.feed(next(batches(0, 1)).to(training.device))
    with at_rest(training.objective):
        answers = training.objective.show(*inputs)
    names = ["images"] if views == 1 else [f"view {view + 1}" for view in range(views)]
    captions = {**CAPTIONS, **OWN_CAPTIONS.get(run.objective.name, {})}
    if getattr(training.objective, "norm_pix", False):
        captions["reconstructed"] += "; the mean and the contrast of each hidden patch are the image's own"
    pictures: dict[str, Tensor] = {**dict(zip(names, inputs[:views])), **answers}
    return tuple(
        Panel(name=name, caption=captions.get(name, ""), pictures=shown(preprocessing.restored(images)))
        for name, images in pictures.items()
    )


CAPTIONS = {
    "images": "as the objective was given them, cropped and flipped",
    "view 1": "one random crop of the image, its colours changed",
    "view 2": "another one; the two are to have like features",
    "masked": "what the encoder sees; grey is corrupted or hidden",
    "visible": "what the encoder sees; grey is hidden",
    "predicted": "the corrupted patches in the colours that were predicted",
    "reconstructed": "what was rebuilt",
}
OWN_CAPTIONS = {
    "beit": {
        "masked": "what the encoder sees; grey is hidden",
        "codes": "what the tokenizer's codes tell of the images",
        "predicted": "the same, where the codes of hidden patches are the predicted ones",
    }
}


def shown(images: Tensor) -> np.ndarray:
    """(B, C, h, w) in [0, 1] as plain numbers."""
    return images.float().cpu().numpy()


def pretrain_facts(pretraining: Pretraining, shown: tuple[Panel, ...], command: str, seconds: float) -> PretrainFacts:
    """All that the report and the card say, gathered."""
    training, kept = pretraining.training, pretraining.kept
    run, told = training.run, run_facts(training, pretraining.splits, pretraining.bad, command, seconds)
    tokenizes = isinstance(kept, Tokenizer)
    cost = None if tokenizes else cost_of(kept.config)
    before, after = (None if tokenizes else health_of(told["records"], kept.width, last=last) for last in (False, True))
    return PretrainFacts(
        **told,
        objective=run.objective.name,
        about_objective=OBJECTIVES[run.objective.name].about,
        panels=shown,
        before=before,
        after=after,
        diagnosis=diagnose(after, before) if after is not None else None,
        model=f"tokenizer of {kept.config.vocabulary:,} codes" if isinstance(kept, Tokenizer) else model_name(training),
        parameters=cost.parameters if cost else sum(each.numel() for each in kept.parameters()),
        multiply_adds=cost.multiply_adds if cost else None,
        image_size=pretraining.preprocessing.size,
        preprocessing=pretraining.preprocessing.to_dict(),
        recipe_settings=plain(run.optim) | plain(run.schedule),
        base=run.model.init or "",
        provenance=versions() | {"seed": run.seed, "steps": training.steps, "date": date.today().isoformat()},
        location=str(training.folder.path),
    )


def health_of(records: list[dict], width: int, *, last: bool) -> Health | None:
    """The health of the features before training, or at the end of it, as it was recorded."""
    found = [each for each in records if "effective_rank" in each]
    if not found or (not last and found[0]["step"] != 0):
        return None
    record = found[-1 if last else 0]
    return Health(rank=record["effective_rank"], spread=record["spread"], width=width)
