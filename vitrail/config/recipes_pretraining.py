"""The recipes for pre-training without labels; that of the ViT paper is in `recipes_paper`.

Those named for an objective are ours, for one small machine: the network follows the images' size, as in `small-data`, and
looks at every patch. Those of papers are theirs.
"""

from __future__ import annotations

from typing import Any

from vitrail.config.recipe import Recipe
from vitrail.config.schema import (
    DataSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimSettings,
    Run,
    ScheduleSettings,
    Unlabelled,
)
from vitrail.data.augment.policy import POLICIES, Augment

# a mean over patches serves nearest neighbours and fine-tuning where a class token, which no such loss reads, does not
SMALL = {"pool": "gap", "prefix": [], "gelu": "exact", "positions": "sincos2d", "patch_dropout": 0.0}
DECODER = {"decoder_width": 64, "decoder_depth": 2, "decoder_heads": 2}
HEADS = {"hidden": 1024, "out": 128}


def _small(
    objective: Unlabelled,
    augment: Augment,
    source: str,
    expect: str,
    *,
    lr: float = 1e-3,
    changes: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
) -> Recipe:
    run = Run(
        recipe=objective,
        model=ModelSettings(changes=SMALL if model is None else model),
        data=DataSettings(batch=256, validation=0.05),
        objective=ObjectiveSettings(name=objective, changes=changes or {}),
        optim=OptimSettings(name="adamw", lr=lr, betas=(0.9, 0.95), weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(epochs=100, warmup=0.05, kind="cosine"),
        augment=augment,
    )
    return Recipe(run=run, source=source, expect=expect)


def _paper(
    recipe: str,
    objective: Unlabelled,
    optim: OptimSettings,
    augment: Augment,
    *,
    epochs: float,
    warmup: float,
    batch: int = 4096,
    end: float = 0.0,
    model: ModelSettings = ModelSettings(name="vit-b16", size=(224, 224)),
) -> Run:
    return Run(
        recipe=recipe,
        model=model,
        data=DataSettings(batch=batch, validation=0.01),
        objective=ObjectiveSettings(name=objective),
        optim=optim,
        schedule=ScheduleSettings(epochs=epochs, warmup=warmup, kind="cosine", end=end),
        augment=augment,
    )


_RECIPES = (
    _small(
        "masked-patch",
        POLICIES["mae"],
        "ours, on the objective of Dosovitskiy et al. 2021, appendix B.1.2: 3-bit mean colours of half of the patches",
        "colours are soon learnt; features better than those of an untrained network, below those of the others",
    ),
    _small(
        "mae",
        POLICIES["mae"],
        "ours, on the objective of He et al. 2022; a decoder of two blocks of width 64",
        "the cheapest step of all: a quarter of the patches is encoded; worth most when fine-tuned",
        changes=DECODER,
    ),
    _small(
        "beit",
        POLICIES["mae"],
        "ours, on the objective of Bao et al. 2022; codes of a tokenizer of your own (--tokenizer)",
        "train the tokenizer first: vitrail pretrain DATA --objective tokenizer",
    ),
    _small(
        "moco",
        POLICIES["moco"],
        "ours, on the objective of Chen, Xie and He 2021 (MoCo v3); heads of 1024",
        "features that serve nearest neighbours and linear classifiers best, at four encodings an image",
        changes=HEADS,
    ),
    _small(
        "simclr",
        POLICIES["simclr"],
        "ours, on the objective of Chen et al. 2020 with Adam; heads of 1024",
        "features that serve nearest neighbours and linear classifiers best, at two encodings an image",
        changes=HEADS,
    ),
    _small(
        "tokenizer",
        POLICIES["mae"],
        "ours: finite scalar quantisation (Mentzer et al. 2024), one of 512 codes a patch",
        "what BEiT learns to predict; a few minutes suffice",
        lr=2e-3,
        model={},
    ),
    Recipe(
        source="He et al. 2022, appendix A.1: 1.5e-4 a batch of 256, on ImageNet-1k",
        expect="ViT-B/16: 83.6 % top-1 on ImageNet-1k after 1600 epochs and fine-tuning",
        run=_paper(
            "paper-mae",
            "mae",
            OptimSettings(name="adamw", lr=2.4e-3, betas=(0.9, 0.95), weight_decay=0.05, clip=None),
            POLICIES["mae"],
            epochs=800,
            warmup=40 / 800,
            model=ModelSettings(name="vit-b16", size=(224, 224), changes={"positions": "sincos2d", "gelu": "exact"}),
        ),
    ),
    Recipe(
        source="Bao et al. 2022, appendix; with a tokenizer of your own (--tokenizer) in place of DALL-E's",
        expect="BEiT-B/16: 83.2 % top-1 on ImageNet-1k after 800 epochs and fine-tuning, with DALL-E's",
        run=_paper(
            "paper-beit",
            "beit",
            OptimSettings(name="adamw", lr=1.5e-3, weight_decay=0.05, clip=3.0),
            POLICIES["mae"],
            epochs=800,
            warmup=10 / 800,
            batch=2048,
            end=1e-5,
            model=ModelSettings(
                name="beit-b16", size=(224, 224), changes={"drop_path": 0.1, "relative_bias": "shared"}
            ),
        ),
    ),
    Recipe(
        source="Chen, Xie and He 2021 (MoCo v3): 1.5e-4 a batch of 256, on ImageNet-1k",
        expect="ViT-B/16: 76.5 % top-1 on ImageNet-1k with a linear classifier after 300 epochs",
        run=_paper(
            "paper-moco",
            "moco",
            OptimSettings(name="adamw", lr=2.4e-3, weight_decay=0.1, clip=None),
            POLICIES["moco"],
            epochs=300,
            warmup=40 / 300,
            model=ModelSettings(name="vit-b16", size=(224, 224), changes={"positions": "sincos2d", "gelu": "exact"}),
        ),
    ),
)
PRETRAINING: dict[str, Recipe] = {recipe.run.recipe: recipe for recipe in _RECIPES}
