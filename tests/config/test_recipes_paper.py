"""The recipes of the ViT paper against its tables 3 and 4, typed again from the paper; and how a row is chosen."""

from __future__ import annotations

import pytest

from tests.each_row import each_row
from vitrail.config.compose import compose_run
from vitrail.config.recipes import RECIPES, find_recipe, recipe_of
from vitrail.config.reconcile import continue_run
from vitrail.config.schema import Run
from vitrail.errors import ConfigError

# table 3: epochs, rate, decay of the rate, weight decay, dropout
PRETRAINING = {
    "paper-jft/vit-b16": (7, 8e-4, "linear", 0.1, 0.0),
    "paper-jft/vit-b32": (7, 8e-4, "linear", 0.1, 0.0),
    "paper-jft/vit-l32": (7, 6e-4, "linear", 0.1, 0.0),
    "paper-jft/vit-l16": (14, 4e-4, "linear", 0.1, 0.0),
    "paper-jft/vit-h14": (14, 3e-4, "linear", 0.1, 0.0),
    "paper-jft/bit-r50x1": (7, 1e-3, "linear", 0.1, 0.0),
    "paper-jft/bit-r50x2": (7, 1e-3, "linear", 0.1, 0.0),
    "paper-jft/bit-r101x1": (7, 8e-4, "linear", 0.1, 0.0),
    "paper-jft/bit-r152x1": (7, 6e-4, "linear", 0.1, 0.0),
    "paper-jft/bit-r152x2": (7, 6e-4, "linear", 0.1, 0.0),
    "paper-jft/r50-vit-b16": (7, 8e-4, "linear", 0.1, 0.0),
    "paper-jft/r50-vit-b32": (7, 8e-4, "linear", 0.1, 0.0),
    "paper-jft/r50-vit-l16": (14, 4e-4, "linear", 0.1, 0.0),
    "paper-jft/r50-vit-l32": (7, 2e-4, "linear", 0.1, 0.0),
    "paper-jft/vit-b16-gap": (7, 3e-4, "linear", 0.1, 0.0),  # appendix D.3
    "paper-imagenet21k": (90, 1e-3, "linear", 0.03, 0.1),
    "paper-imagenet21k/vit-l16": (90, 1e-3, "linear", 0.03, 0.1),
    "paper-imagenet21k/vit-l32": (90, 1e-3, "linear", 0.03, 0.1),
    "paper-imagenet": (300, 3e-3, "cosine", 0.3, 0.1),
}
# table 4 and appendix B.1.1: steps, share of the development split
FINETUNING = {
    "imagenet": (20_000, 0.01),
    "imagenet-512": (20_000, 0.01),
    "cifar": (10_000, 0.02),
    "pets": (500, 0.1),
    "flowers": (500, 0.1),
    "vtab": (2_500, 0.2),
}


@each_row("name", PRETRAINING)
def test_pre_training_has_the_figures_of_table_3(name: str) -> None:
    run = find_recipe(name).run
    figures = (run.schedule.epochs, run.optim.lr, run.schedule.kind, run.optim.weight_decay)
    assert (*figures, run.model.changes["dropout"]) == PRETRAINING[name]
    assert (run.optim.name, run.optim.betas, run.data.batch) == ("adamw", (0.9, 0.999), 4096)
    assert (run.schedule.warmup_steps, run.model.size) == (10_000, (224, 224))
    assert run.optim.clip == (1.0 if name == "paper-imagenet" else None)
    assert ("prefix" in run.model.changes) == name.endswith("gap")


@each_row("row", FINETUNING)
def test_fine_tuning_has_the_figures_of_table_4(row: str) -> None:
    run = find_recipe(f"paper-finetune/{row}").run
    assert (run.schedule.steps, run.data.validation) == FINETUNING[row]
    assert (run.schedule.kind, run.data.batch, run.optim.clip) == ("cosine", 512, 1.0)
    assert (run.optim.name, run.optim.momentum, run.optim.weight_decay, run.optim.lr) == ("sgd", 0.9, 0.0, 0.01)
    assert run.model.size == ((512, 512) if row == "imagenet-512" else (384, 384))
    assert run.optim.ema == (0.9999 if row == "imagenet-512" else None)


def test_no_row_is_left_out_and_masked_patch_prediction_counts_in_steps() -> None:
    rows = {f"{name}/{row}" for name in ("paper-jft", "paper-imagenet21k") for row in RECIPES[name].rows}
    assert rows | {"paper-imagenet21k", "paper-imagenet"} == PRETRAINING.keys()
    assert RECIPES["paper-finetune"].rows.keys() == FINETUNING.keys()
    run = RECIPES["paper-masked-patch"].run
    assert (run.schedule.steps, run.schedule.warmup_steps, run.optim.lr) == (1_000_000, 10_000, 2e-4)


def asked(recipe: str, model: str | None = None) -> Run:
    flags = {"data": {"source": "photos"}, "model": {"name": model}, "schedule": {"steps": 100}}
    return compose_run(recipe=recipe, flags=flags)[0]


def test_a_row_is_chosen_by_the_model_or_by_name() -> None:
    by_model, by_name = asked("paper-jft", "vit-h14"), asked("paper-jft/vit-h14")
    assert by_model == by_name
    assert (by_model.recipe, by_model.model.name, by_model.optim.lr) == ("paper-jft/vit-h14", "vit-h14", 3e-4)
    assert (by_model.schedule.epochs, by_model.schedule.steps) == (None, 100)
    without = asked("paper-jft", "vit-s16")
    assert (without.recipe, without.model.name, without.optim.lr) == ("paper-jft", "vit-s16", 8e-4)
    assert asked("paper-jft/vit-b16-gap").model.changes["pool"] == "gap"
    found = recipe_of(by_model)
    assert found is not None
    assert found.run.optim.lr == 3e-4
    assert continue_run(by_model, by_name, "run") == (by_name, False)


@each_row(
    "name, words",
    [
        ("paper-finetune/pet", "has no row 'pet'\n  hint: did you mean 'pets'"),
        ("t4/pets", "has no row 'pets'\n  hint: it has no rows; write t4"),
        ("paper-finetun/pets", "unknown recipe 'paper-finetun'\n  hint: did you mean 'paper-finetune'"),
    ],
)
def test_an_unknown_row_is_refused_with_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_recipe(name)
    assert words in str(caught.value)
