"""The recipes of the ViT paper (Dosovitskiy et al. 2021): tables 3 and 4, and masked patch prediction.

A row of a table is a value of ``rows``. That of a model applies where the run names the model (``--recipe paper-jft --model
vit-l16``), and every row by its name: ``--recipe paper-finetune/pets``. Without a row the settings are those of ViT-B/16, and of
CIFAR-10.

The paper does not state, and these are taken from elsewhere:

- the final rate of the linear decay: 1e-5, as in the authors' vision_transformer repository; big_vision has 0;
- the warm-up of fine-tuning: that of AugReg (Steiner et al. 2022) for each number of steps;
- which rate of its grids was chosen for which model: 0.01, which is in each of them;
- whether biases and normalisations decayed: not here (``optim.decay_on``);
- the loss of pre-training: softmax here; big_vision's configurations have sigmoids (``--set objective.loss=sigmoid``);
- how its Polyak averages begin: as the mean of all weights, until the decay of 0.9999 is reached after 10,000 steps.

``recipe_steps`` count the 303 M images of JFT-300M, 14.2 M of ImageNet-21k and 1,281,167 of ImageNet-1k; where a row has two
lengths they are those of the shorter one, since the warm-up is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from vitrail.config.recipe import Recipe, Row
from vitrail.config.schema import DataSettings, ModelSettings, ObjectiveSettings, OptimSettings, Run, ScheduleSettings
from vitrail.data.augment.policy import POLICIES

Decay = Literal["linear", "cosine"]
BATCH, WARMUP = 4096, 10_000  # of all pre-training
JFT, IMAGENET_21K, IMAGENET = 303e6, 14.2e6, 1_281_167  # images
GAP = {"pool": "gap", "prefix": []}
RATES = "0.001, 0.003, 0.01, 0.03"


def _updates(epochs: float, images: float) -> int:
    return round(epochs * images / BATCH)


def _pretraining(name: str, dropout: float, optim: OptimSettings, epochs: float, images: float, kind: Decay) -> Run:
    return Run(
        recipe=name,
        model=ModelSettings(name="vit-b16", size=(224, 224), changes={"dropout": dropout, "pre_logits": True}),
        data=DataSettings(batch=BATCH),
        optim=optim,
        schedule=ScheduleSettings(
            epochs=epochs,
            warmup_steps=WARMUP,
            recipe_steps=_updates(epochs, images),
            kind=kind,
            end=1e-5 if kind == "linear" else 0.0,
        ),
        augment=POLICIES["inception"],
    )


def _jft(
    model: str,
    lr: float,
    epochs: float = 7,
    *,
    also: float | None = None,
    changes: Mapping[str, Any] = {},
    why: str = "",
) -> Row:
    """Returns the row of ``model``; ``also`` is the other length that the table gives."""
    steps = _updates(min(epochs, also or epochs), JFT)
    return Row(
        settings={
            "model": {"name": model, "changes": changes},
            "optim": {"lr": lr},
            "schedule": {"epochs": epochs, "recipe_steps": steps},
        },
        expect=why or (f"{epochs:g} epochs of JFT" + (f"; the table has {also:g}, too (--epochs)" if also else "")),
    )


def _imagenet_21k(model: str) -> Row:
    return Row(
        settings={"model": {"name": model}, "schedule": {"recipe_steps": _updates(30, IMAGENET_21K)}},
        expect="90 epochs of ImageNet-21k; the table has 30, too (--epochs)",
    )


def _finetuning(
    data: str, steps: int, warmup: int, held_out: float, *, rates: str = RATES, more: Mapping[str, Any] = {}
) -> Row:
    """Returns the row of a data set, with the share of its training images on which one of the ``rates`` is chosen."""
    schedule = {"steps": steps, "warmup_steps": warmup, "recipe_steps": steps}
    return Row(
        settings={"data": {"validation": held_out}, "schedule": schedule, **more},
        expect=f"{data}: choose --lr from {rates} on {100 * held_out:g} % of the training images",
    )


_RECIPES = (
    Recipe(
        source="Dosovitskiy et al. 2021, table 3, JFT rows",
        expect="JFT-300M is not public: the rates and the decay for data of this size",
        run=_pretraining(
            "paper-jft", 0.0, OptimSettings(name="adamw", lr=8e-4, weight_decay=0.1, clip=None), 7, JFT, "linear"
        ),
        rows={
            "vit-b16": _jft("vit-b16", 8e-4),
            "vit-b32": _jft("vit-b32", 8e-4),
            "vit-l32": _jft("vit-l32", 6e-4),
            "vit-l16": _jft("vit-l16", 4e-4, 14, also=7),
            "vit-h14": _jft("vit-h14", 3e-4, 14),
            "r50-vit-b32": _jft("r50-vit-b32", 8e-4),
            "r50-vit-b16": _jft("r50-vit-b16", 8e-4),
            "r50-vit-l32": _jft("r50-vit-l32", 2e-4),
            "r50-vit-l16": _jft("r50-vit-l16", 4e-4, 14, also=7),
            "bit-r50x1": _jft("bit-r50x1", 1e-3),
            "bit-r50x2": _jft("bit-r50x2", 1e-3),
            "bit-r101x1": _jft("bit-r101x1", 8e-4),
            "bit-r152x1": _jft("bit-r152x1", 6e-4),
            "bit-r152x2": _jft("bit-r152x2", 6e-4),
            # the model of figure 9 is not stated beside its rates; 8e-4 with a class token is the rate of the B models
            "vit-b16-gap": _jft(
                "vit-b16",
                3e-4,
                changes=GAP,
                why="appendix D.3: the mean of the patches needs 3e-4 to equal the class token at 8e-4",
            ),
        },
    ),
    Recipe(
        source="Dosovitskiy et al. 2021, table 3, ImageNet-21k rows",
        expect="ViT-B/16: 83.97 % top-1 on ImageNet after fine-tuning at 384 (table 5)",
        run=_pretraining(
            "paper-imagenet21k",
            0.1,
            OptimSettings(name="adamw", lr=1e-3, weight_decay=0.03, clip=None),
            90,
            IMAGENET_21K,
            "linear",
        ),
        rows={model: _imagenet_21k(model) for model in ("vit-l16", "vit-l32")},
    ),
    Recipe(
        source="Dosovitskiy et al. 2021, table 3, ImageNet row",
        expect="ViT-B/16 at 384 after fine-tuning: 77.91 % top-1 (table 5)",
        run=_pretraining(
            "paper-imagenet",
            0.1,
            OptimSettings(name="adamw", lr=3e-3, weight_decay=0.3, clip=1.0),
            300,
            IMAGENET,
            "cosine",
        ),
    ),
    Recipe(
        source="Dosovitskiy et al. 2021, table 4 and appendix B.1.1",
        expect="ViT-B/16 pre-trained on ImageNet-21k: 98.95 % on CIFAR-10 (table 5); pick --lr from 0.001 ... 0.06",
        run=Run(
            recipe="paper-finetune",
            model=ModelSettings(size=(384, 384)),
            data=DataSettings(batch=512),
            optim=OptimSettings(name="sgd", lr=0.01, momentum=0.9, weight_decay=0.0, clip=1.0),
            schedule=ScheduleSettings(steps=10_000, warmup_steps=500, recipe_steps=10_000, kind="cosine"),
            augment=POLICIES["inception"],
        ),
        rows={
            "imagenet": _finetuning("ImageNet", 20_000, 500, 0.01, rates="0.003, 0.01, 0.03, 0.06"),
            "imagenet-512": _finetuning(
                "ImageNet as in table 2, for L/16 (H/14: --size 518)",
                20_000,
                500,
                0.01,
                rates="0.003, 0.01, 0.03, 0.06",
                more={"model": {"size": [512, 512]}, "optim": {"ema": 0.9999, "ema_ramp": 2.0}},
            ),
            "cifar": _finetuning("CIFAR-10 and CIFAR-100", 10_000, 500, 0.02),
            "pets": _finetuning("Oxford-IIIT Pets", 500, 100, 0.1),
            "flowers": _finetuning("Oxford Flowers-102", 500, 100, 0.1),
            "vtab": Row(
                settings={
                    "data": {"validation": 0.2},
                    "schedule": {"steps": 2_500, "warmup_steps": 200, "recipe_steps": 2_500},
                    # the preprocessing of BiT (Kolesnikov et al. 2020): scaled to 448 x 448, then a crop of 384 x 384
                    "augment": {"crop": "squash", "crop_area": [(384 / 448) ** 2, (384 / 448) ** 2]},
                },
                expect="a task of VTAB-1k: --lr 0.01 for all of them; `vitrail transfer --vtab` trains all of them",
            ),
        },
    ),
    Recipe(
        source="Dosovitskiy et al. 2021, appendix B.1.2; weight decay and clipping, not stated there, as in table 3 for JFT",
        expect="ViT-B/16: 79.9 % top-1 on ImageNet after fine-tuning; little is gained after --steps 100000",
        run=Run(
            recipe="paper-masked-patch",
            model=ModelSettings(name="vit-b16", size=(224, 224)),
            data=DataSettings(batch=BATCH, validation=0.01),
            objective=ObjectiveSettings(name="masked-patch"),
            optim=OptimSettings(name="adamw", lr=2e-4, weight_decay=0.1, clip=None),
            schedule=ScheduleSettings(steps=1_000_000, warmup_steps=WARMUP, recipe_steps=1_000_000, kind="cosine"),
            augment=POLICIES["inception"],
        ),
    ),
)
PAPER: dict[str, Recipe] = {recipe.run.recipe: recipe for recipe in _RECIPES}
