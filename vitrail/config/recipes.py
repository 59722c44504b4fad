"""The recipes: a table of complete runs, each with its source. Flags and settings override their values.

A batch is the images of one update. Where a paper states epochs of another data set, so does the recipe; ``recipe_steps`` are
the updates that these epochs take on that data set (ImageNet-1k: 1,281,167 images).
"""

from __future__ import annotations

from vitrail.config.recipe import Recipe as Recipe
from vitrail.config.recipes_dense import DENSE
from vitrail.config.recipes_paper import PAPER
from vitrail.config.recipes_pretraining import PRETRAINING
from vitrail.config.schema import DataSettings, ModelSettings, ObjectiveSettings, OptimSettings, Run, ScheduleSettings
from vitrail.data.augment.policy import POLICIES
from vitrail.errors import ConfigError, nearest

RECIPES: dict[str, Recipe] = {
    "small-data": Recipe(
        source="ours: Muon, mimetic initialisation, most patches dropped; tuned on two CPU cores (docs/decisions.md)",
        expect="a ViT from scratch on thousands of images: model, patch and width follow the images' size",
        run=Run(
            recipe="small-data",
            model=ModelSettings(changes={"pool": "gap", "prefix": [], "gelu": "exact", "initial": "mimetic"}),
            data=DataSettings(batch=128),
            optim=OptimSettings(name="muon", lr=4e-3, weight_decay=0.05, clip=1.0),
            schedule=ScheduleSettings(epochs=60, warmup=0.05, kind="cosine"),
            augment=POLICIES["small"],
        ),
    ),
    "finetune": Recipe(
        source="ours: AdamW with layer-wise decay (BEiT; MAE, appendix A.2) on the light augmentation of AugReg",
        expect="what a practitioner should use by default with --init",
        run=Run(
            recipe="finetune",
            data=DataSettings(batch=32),
            optim=OptimSettings(name="adamw", lr=3e-4, weight_decay=0.05, layer_decay=0.75, clip=1.0),
            schedule=ScheduleSettings(epochs=12, warmup=0.1, kind="cosine"),
            augment=POLICIES["finetune"],
        ),
    ),
    "t4": Recipe(
        source="the project's recipe for one 16 GB T4: width 384, 6 heads, 12 layers, MLP 1536, patch 16, image 224",
        expect="32 images a micro-step, 4 micro-steps an update, 50,000 updates; fp16, as the T4 has no bf16",
        run=Run(
            recipe="t4",
            model=ModelSettings(name="vit-s16", size=(224, 224)),
            data=DataSettings(batch=128, micro_batch=32),
            optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.1, clip=1.0),
            schedule=ScheduleSettings(steps=50_000, warmup_steps=1_000, recipe_steps=50_000, kind="cosine"),
            augment=POLICIES["inception"],
        ),
    ),
    "plain-vit": Recipe(
        source="Beyer et al. 2022, Better plain ViT baselines for ImageNet-1k",
        expect="ViT-S/16: 76.5 % top-1 on ImageNet-1k after 90 epochs",
        run=Run(
            recipe="plain-vit",
            model=ModelSettings(
                name="vit-s16",
                size=(224, 224),
                changes={"pool": "gap", "prefix": [], "positions": "sincos2d", "pre_logits": True},
            ),
            data=DataSettings(batch=1024),
            optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.1, clip=1.0),
            schedule=ScheduleSettings(epochs=90, warmup_steps=10_000, recipe_steps=112_603, kind="cosine"),
            augment=POLICIES["plain_vit"],
        ),
    ),
    "augreg": Recipe(
        source="Steiner et al. 2022, How to train your ViT, figure 4: medium2 and regularisation for B/16 on ImageNet-1k",
        expect="ViT-B/16: about 80 % top-1 on ImageNet-1k after 300 epochs",
        run=Run(
            recipe="augreg",
            model=ModelSettings(name="vit-b16", size=(224, 224), changes={"dropout": 0.1, "drop_path": 0.1}),
            data=DataSettings(batch=4096),
            objective=ObjectiveSettings(loss="softmax"),
            optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.1, clip=1.0),
            schedule=ScheduleSettings(epochs=300, warmup_steps=10_000, recipe_steps=93_835, kind="cosine"),
            augment=POLICIES["medium2"],
        ),
    ),
    "deit": Recipe(
        source="Touvron et al. 2021, table 9",
        expect="DeiT-S: 79.8 % top-1 on ImageNet-1k after 300 epochs",
        run=Run(
            recipe="deit",
            model=ModelSettings(name="vit-s16", size=(224, 224), changes={"drop_path": 0.1, "gelu": "exact"}),
            data=DataSettings(batch=1024, repeats=3),
            optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, clip=None),
            schedule=ScheduleSettings(epochs=300, warmup=5 / 300, kind="cosine", end=1e-5),
            augment=POLICIES["deit"],
        ),
    ),
    "deit3": Recipe(
        source="Touvron et al. 2022, DeiT III; with AdamW in place of LAMB (docs/decisions.md)",
        expect="ViT-S: 81.4 % top-1 on ImageNet-1k after 800 epochs with LAMB",
        run=Run(
            recipe="deit3",
            model=ModelSettings(
                name="vit-s16", size=(224, 224), changes={"drop_path": 0.05, "layer_scale": 1e-4, "gelu": "exact"}
            ),
            data=DataSettings(batch=2048, repeats=3),
            objective=ObjectiveSettings(loss="sigmoid", binarise=True),
            optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, clip=None),
            schedule=ScheduleSettings(epochs=800, warmup=5 / 800, kind="cosine"),
            augment=POLICIES["three_augment"],
        ),
    ),
    **DENSE,
    **PAPER,
    **PRETRAINING,
}


def find_recipe(name: str, *, model: str | None = None) -> Recipe:
    """Returns the recipe ``name``, or a row of it as ``name/row``; without a row that of ``model``, where the recipe has one.

    Raises `ConfigError` with the nearest names.
    """
    base, slash, row = name.partition("/")
    if base not in RECIPES:
        raise ConfigError(f"unknown recipe {base!r}", nearest(base, RECIPES))
    recipe = RECIPES[base]
    if not slash:
        return recipe.row(model) if model in recipe.rows else recipe
    if row not in recipe.rows:
        remedy = nearest(row, recipe.rows) if recipe.rows else f"it has no rows; write {base}"
        raise ConfigError(f"the recipe {base!r} has no row {row!r}", remedy)
    return recipe.row(row)


def recipe_of(run: Run) -> Recipe | None:
    """Returns the recipe that a run names; None for one of its own, or of another version."""
    try:
        return find_recipe(run.recipe)
    except ConfigError:
        return None
