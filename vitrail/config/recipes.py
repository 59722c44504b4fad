"""The recipes: a table of complete runs, each with its source. Flags and settings override their values.

A batch is the images of one update. Where a paper states epochs of another data set, so does the recipe; ``recipe_steps`` are
the updates that these epochs take on that data set (303 M images of JFT-300M, 14.2 M of ImageNet-21k, 1,281,167 of ImageNet-1k).

Recipes with the name of an objective are ours, for pre-training without labels on one small machine: the network follows the
images' size, as in `small-data`, and looks at every patch.

The ViT paper (Dosovitskiy et al. 2021) has settings for several models and data sets, in its tables 3 and 4: a row of a table
is a value of ``rows``. That of a model applies where the run names the model (``--recipe paper-jft --model vit-l16``), and every
row by its name: ``--recipe paper-finetune/pets``. Without a row the settings are those of ViT-B/16, and of CIFAR-10. Where a row
has two lengths ``recipe_steps`` are those of the shorter one, since the warm-up is the same for both.

The paper does not state, and these are taken from elsewhere:

- the final rate of the linear decay: 1e-5, as in the authors' vision_transformer repository; big_vision has 0;
- the warm-up of fine-tuning: that of AugReg (Steiner et al. 2022) for each number of steps;
- which rate of its grids was chosen for which model: 0.01, which is in each of them;
- whether biases and normalisations decayed: not here (``optim.decay_on``);
- the loss of pre-training: softmax here; big_vision's configurations have sigmoids (``--set objective.loss=sigmoid``);
- how its Polyak averages begin: as the mean of all weights, until the decay of 0.9999 is reached after 10,000 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitrail.config.parse import build, overlay, plain
from vitrail.config.schema import (
    AdapterSettings,
    DataSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimSettings,
    Run,
    SaveSettings,
    ScheduleSettings,
)
from vitrail.data.augment.policy import POLICIES, Augment
from vitrail.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a paper's table of settings: those in which it differs from the recipe, and what else to know of it."""

    settings: Mapping[str, Any]
    expect: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run and where its figures come from.

    ``rows`` are the rows of the table, by model or by data set, where the paper has settings for several.
    """

    run: Run
    source: str
    expect: str
    rows: Mapping[str, Row]

    def row(self, name: str) -> Recipe:
        """Returns the recipe of one row, with the name ``recipe/row``."""
        row = self.rows[name]
        tree = overlay(plain(self.run), {**row.settings, "recipe": f"{self.run.recipe}/{name}"})
        return replace(self, run=build(Run, tree), expect=row.expect, rows={})


# the default recipe of a task; that of another depends on whether there are weights to start from
OF_TASK = {"segmentation": "segment", "detection": "detect", "instances": "instances", "panoptic": "panoptic"}

# data with boxes or masks are small, and few updates leave a new head unfinished, hence the average: see docs/decisions.md
DENSE = {
    "model": ModelSettings(name="vit-ti16", changes={"drop_path": 0.1}),
    "data": DataSettings(batch=4),
    "optim": OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, layer_decay=None, clip=1.0, ema=0.999),
}
DETECT = {
    **DENSE,
    "schedule": ScheduleSettings(epochs=18, warmup=0.05, kind="cosine"),
    "augment": Augment(crop="jitter", crop_scale=(0.5, 1.5), jitter=(0.2, 0.2, 0.2)),
}

# of the ViT paper
BATCH, WARMUP = 4096, 10_000  # of all pre-training
JFT, IMAGENET_21K, IMAGENET = 303e6, 14.2e6, 1_281_167  # images
RATES, IMAGENET_RATES = "0.001, 0.003, 0.01, 0.03", "0.003, 0.01, 0.03, 0.06"

# of pre-training without labels
# a mean over patches serves nearest neighbours and fine-tuning where a class token, which no such loss reads, does not
SMALL = {"pool": "gap", "prefix": [], "gelu": "exact", "positions": "sincos2d", "patch_dropout": 0.0}
DECODER = {"decoder_width": 64, "decoder_depth": 2, "decoder_heads": 2}
HEADS = {"hidden": 1024, "out": 128}
# of short runs on small sets, those with a higher temperature, a faster teacher or trained prototypes collapsed
PROTOTYPES = {"hidden": 1024, "bottleneck": 128, "teacher_temperature": 0.02, "freeze_last": 1.0}


def _recipe(name: str, *, source: str, expect: str, rows: Mapping[str, Row] = {}, **settings: Any) -> Recipe:
    """Returns a recipe whose run has these groups of ``settings``."""
    return Recipe(run=Run(recipe=name, **settings), source=source, expect=expect, rows=rows)


def _updates(epochs: float, images: float) -> int:
    return round(epochs * images / BATCH)


def _jft_row(model: str, lr: float, epochs: float = 7, *, also: float | None = None) -> Row:
    """Returns the row of ``model``; ``also`` is the other length that the table gives."""
    schedule = {"epochs": epochs, "recipe_steps": _updates(min(epochs, also or epochs), JFT)}
    return Row(
        settings={"model": {"name": model}, "optim": {"lr": lr}, "schedule": schedule},
        expect=f"{epochs:g} epochs of JFT" + (f"; the table has {also:g}, too (--epochs)" if also else ""),
    )


def _finetuning_row(
    data: str, steps: int, warmup: int, held_out: float, *, rates: str = RATES, more: Mapping[str, Any] = {}
) -> Row:
    """Returns the row of a data set, with the share of its training images on which one of the ``rates`` is chosen."""
    schedule = {"steps": steps, "warmup_steps": warmup, "recipe_steps": steps}
    return Row(
        settings={"data": {"validation": held_out}, "schedule": schedule, **more},
        expect=f"{data}: choose --lr from {rates} on {100 * held_out:g} % of the training images",
    )


def _pretrain_small(
    objective: str,
    augment: Augment,
    source: str,
    expect: str,
    *,
    lr: float = 1e-3,
    changes: Mapping[str, Any] = {},
    model: Mapping[str, Any] = SMALL,
) -> Recipe:
    return _recipe(
        objective,
        source=source,
        expect=expect,
        model=ModelSettings(changes=dict(model)),
        data=DataSettings(batch=256, validation=0.05),
        objective=ObjectiveSettings(name=objective, changes=dict(changes)),
        optim=OptimSettings(name="adamw", lr=lr, betas=(0.9, 0.95), weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(epochs=100, warmup=0.05, kind="cosine"),
        augment=augment,
    )


_RECIPES = (
    _recipe(
        "small-data",
        source="ours: Muon, mimetic initialisation, most patches dropped; tuned on two CPU cores (docs/decisions.md)",
        expect="a small ViT from scratch on thousands of images; patch and width follow the size of the images",
        model=ModelSettings(changes={"pool": "gap", "prefix": [], "gelu": "exact", "initial": "mimetic"}),
        data=DataSettings(batch=128),
        optim=OptimSettings(name="muon", lr=4e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(epochs=60, warmup=0.05, kind="cosine"),
        augment=POLICIES["small"],
    ),
    _recipe(
        "finetune",
        source="ours: AdamW with layer-wise decay (BEiT; MAE, appendix A.2) on the light augmentation of AugReg",
        expect="fine-tuning of pre-trained weights on hundreds of images or more",
        data=DataSettings(batch=32),
        optim=OptimSettings(name="adamw", lr=3e-4, weight_decay=0.05, layer_decay=None, clip=1.0),
        schedule=ScheduleSettings(epochs=12, warmup=0.1, kind="cosine"),
        augment=POLICIES["finetune"],
    ),
    _recipe(
        "lora",
        source="ours: low-rank adapters in every dense layer (Hu et al. 2022), at ten times the rate of fine-tuning",
        expect="a strong backbone on few images: checkpoints and optimiser a tenth as large, the time of fine-tuning",
        model=ModelSettings(adapters=AdapterSettings(rank=8)),
        data=DataSettings(batch=32),
        optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(epochs=12, warmup=0.1, kind="cosine"),
        augment=POLICIES["finetune"],
    ),
    _recipe(
        "head-only",
        source="ours: a linear classifier on frozen features, as pre-trained models are evaluated (DINOv2, section 7.1)",
        expect="the head alone, on features that are computed once: minutes become seconds on a small machine",
        model=ModelSettings(head_only=True),
        data=DataSettings(batch=128),
        optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, clip=None),
        schedule=ScheduleSettings(epochs=30, warmup=0.05, kind="cosine"),
        augment=POLICIES["none"],
    ),
    _recipe(
        "t4",
        source="the project's recipe for one 16 GB T4: width 384, 6 heads, 12 layers, MLP 1536, patch 16, image 224",
        expect="32 images a micro-step, 4 micro-steps an update, 50,000 updates; fp16, as the T4 has no bf16",
        model=ModelSettings(name="vit-s16", size=(224, 224)),
        data=DataSettings(batch=128, micro_batch=32),
        optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.1, clip=1.0),
        schedule=ScheduleSettings(steps=50_000, warmup_steps=1_000, recipe_steps=50_000, kind="cosine"),
        augment=POLICIES["inception"],
    ),
    _recipe(
        "plain-vit",
        source="Beyer et al. 2022, Better plain ViT baselines for ImageNet-1k",
        expect="ViT-S/16: 76.5 % top-1 on ImageNet-1k after 90 epochs",
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
    _recipe(
        "augreg",
        source="Steiner et al. 2022, How to train your ViT, figure 4: medium2 and regularisation for B/16 on ImageNet-1k",
        expect="ViT-B/16: about 80 % top-1 on ImageNet-1k after 300 epochs",
        model=ModelSettings(name="vit-b16", size=(224, 224), changes={"dropout": 0.1, "drop_path": 0.1}),
        data=DataSettings(batch=4096),
        objective=ObjectiveSettings(loss="softmax"),
        optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.1, clip=1.0),
        schedule=ScheduleSettings(epochs=300, warmup_steps=10_000, recipe_steps=93_835, kind="cosine"),
        augment=POLICIES["medium2"],
    ),
    _recipe(
        "deit",
        source="Touvron et al. 2021, table 9",
        expect="DeiT-S: 79.8 % top-1 on ImageNet-1k after 300 epochs",
        model=ModelSettings(name="vit-s16", size=(224, 224), changes={"drop_path": 0.1, "gelu": "exact"}),
        data=DataSettings(batch=1024, repeats=3),
        optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, clip=None),
        schedule=ScheduleSettings(epochs=300, warmup=5 / 300, kind="cosine", end=1e-5),
        augment=POLICIES["deit"],
    ),
    _recipe(
        "deit3",
        source="Touvron et al. 2022, DeiT III; with AdamW in place of LAMB (docs/decisions.md)",
        expect="ViT-S: 81.4 % top-1 on ImageNet-1k after 800 epochs with LAMB",
        model=ModelSettings(
            name="vit-s16", size=(224, 224), changes={"drop_path": 0.05, "layer_scale": 1e-4, "gelu": "exact"}
        ),
        data=DataSettings(batch=2048, repeats=3),
        objective=ObjectiveSettings(loss="sigmoid", binarise=True),
        optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, clip=None),
        schedule=ScheduleSettings(epochs=800, warmup=5 / 800, kind="cosine"),
        augment=POLICIES["three_augment"],
    ),
    _recipe(
        "segment",
        source="ours: layer-wise decay (BEiT; MAE, appendix A.2), SegFormer's head, large-scale jitter (Ghiasi et al. 2021)",
        expect="a class for every pixel, from pre-trained weights of any backbone",
        task="segmentation",
        **DENSE,
        schedule=ScheduleSettings(epochs=20, warmup=0.05, kind="cosine"),
        augment=Augment(crop="jitter", crop_scale=(0.75, 2.0), crop_major=0.75, jitter=(0.3, 0.3, 0.3), hue=0.05),
    ),
    _recipe(
        "detect",
        source="ours: layer-wise decay, task-aligned assignment (Feng et al. 2021), large-scale jitter (Ghiasi et al. 2021)",
        expect="boxes, from pre-trained weights of any backbone",
        task="detection",
        **DETECT,
    ),
    _recipe(
        "instances",
        source="ours: the recipe detect with prototypes of masks (YOLACT, Bolya et al. 2019)",
        expect="a mask, a box and a class for every object, from pre-trained weights of any backbone",
        task="instances",
        **DETECT,
    ),
    _recipe(
        "panoptic",
        source="ours: the recipe detect with queries (EoMT, Kerssies et al. 2025)",
        expect="a segment of a thing or of stuff for every pixel, from pre-trained weights of a ViT",
        task="panoptic",
        **DETECT,
    ),
    _recipe(
        "paper-jft",
        source="Dosovitskiy et al. 2021, table 3, JFT rows",
        expect="JFT-300M is not public: the rates and the decay for data of this size",
        model=ModelSettings(name="vit-b16", size=(224, 224), changes={"dropout": 0.0, "pre_logits": True}),
        data=DataSettings(batch=BATCH),
        optim=OptimSettings(name="adamw", lr=8e-4, weight_decay=0.1, clip=None),
        schedule=ScheduleSettings(
            epochs=7, warmup_steps=WARMUP, recipe_steps=_updates(7, JFT), kind="linear", end=1e-5
        ),
        augment=POLICIES["inception"],
        rows={
            "vit-b16": _jft_row("vit-b16", 8e-4),
            "vit-b32": _jft_row("vit-b32", 8e-4),
            "vit-l32": _jft_row("vit-l32", 6e-4),
            "vit-l16": _jft_row("vit-l16", 4e-4, 14, also=7),
            "vit-h14": _jft_row("vit-h14", 3e-4, 14),
            "r50-vit-b32": _jft_row("r50-vit-b32", 8e-4),
            "r50-vit-b16": _jft_row("r50-vit-b16", 8e-4),
            "r50-vit-l32": _jft_row("r50-vit-l32", 2e-4),
            "r50-vit-l16": _jft_row("r50-vit-l16", 4e-4, 14, also=7),
            "bit-r50x1": _jft_row("bit-r50x1", 1e-3),
            "bit-r50x2": _jft_row("bit-r50x2", 1e-3),
            "bit-r101x1": _jft_row("bit-r101x1", 8e-4),
            "bit-r152x1": _jft_row("bit-r152x1", 6e-4),
            "bit-r152x2": _jft_row("bit-r152x2", 6e-4),
            # the model of figure 9 is not stated beside its rates; 8e-4 with a class token is the rate of the B models
            "vit-b16-gap": Row(
                settings={"model": {"changes": {"pool": "gap", "prefix": []}}, "optim": {"lr": 3e-4}},
                expect="appendix D.3: the mean of the patches needs 3e-4 to equal the class token at 8e-4",
            ),
        },
    ),
    _recipe(
        "paper-imagenet21k",
        source="Dosovitskiy et al. 2021, table 3, ImageNet-21k rows",
        expect="ViT-B/16: 83.97 % top-1 on ImageNet after fine-tuning at 384 (table 5)",
        model=ModelSettings(name="vit-b16", size=(224, 224), changes={"dropout": 0.1, "pre_logits": True}),
        data=DataSettings(batch=BATCH),
        optim=OptimSettings(name="adamw", lr=1e-3, weight_decay=0.03, clip=None),
        schedule=ScheduleSettings(
            epochs=90, warmup_steps=WARMUP, recipe_steps=_updates(90, IMAGENET_21K), kind="linear", end=1e-5
        ),
        augment=POLICIES["inception"],
        rows={
            model: Row(
                settings={"model": {"name": model}, "schedule": {"recipe_steps": _updates(30, IMAGENET_21K)}},
                expect="90 epochs of ImageNet-21k; the table has 30, too (--epochs)",
            )
            for model in ("vit-l16", "vit-l32")
        },
    ),
    _recipe(
        "paper-imagenet",
        source="Dosovitskiy et al. 2021, table 3, ImageNet row",
        expect="ViT-B/16 at 384 after fine-tuning: 77.91 % top-1 (table 5)",
        model=ModelSettings(name="vit-b16", size=(224, 224), changes={"dropout": 0.1, "pre_logits": True}),
        data=DataSettings(batch=BATCH),
        optim=OptimSettings(name="adamw", lr=3e-3, weight_decay=0.3, clip=1.0),
        schedule=ScheduleSettings(epochs=300, warmup_steps=WARMUP, recipe_steps=_updates(300, IMAGENET), kind="cosine"),
        augment=POLICIES["inception"],
    ),
    _recipe(
        "paper-finetune",
        source="Dosovitskiy et al. 2021, table 4 and appendix B.1.1",
        expect="ViT-B/16 pre-trained on ImageNet-21k: 98.95 % on CIFAR-10 (table 5); pick --lr from 0.001 ... 0.06",
        model=ModelSettings(size=(384, 384)),
        data=DataSettings(batch=512),
        optim=OptimSettings(name="sgd", lr=0.01, momentum=0.9, weight_decay=0.0, clip=1.0),
        schedule=ScheduleSettings(steps=10_000, warmup_steps=500, recipe_steps=10_000, kind="cosine"),
        augment=POLICIES["inception"],
        rows={
            "imagenet": _finetuning_row("ImageNet", 20_000, 500, 0.01, rates=IMAGENET_RATES),
            "imagenet-512": _finetuning_row(
                "ImageNet as in table 2, for L/16 (H/14: --size 518)",
                20_000,
                500,
                0.01,
                rates=IMAGENET_RATES,
                more={"model": {"size": [512, 512]}, "optim": {"ema": 0.9999, "ema_ramp": 2.0}},
            ),
            "cifar": _finetuning_row("CIFAR-10 and CIFAR-100", 10_000, 500, 0.02),
            "pets": _finetuning_row("Oxford-IIIT Pets", 500, 100, 0.1),
            "flowers": _finetuning_row("Oxford Flowers-102", 500, 100, 0.1),
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
    _recipe(
        "paper-masked-patch",
        source="Dosovitskiy et al. 2021, appendix B.1.2; weight decay and clipping, not stated there, as in table 3 for JFT",
        expect="ViT-B/16: 79.9 % top-1 on ImageNet after fine-tuning; little is gained after --steps 100000",
        model=ModelSettings(name="vit-b16", size=(224, 224)),
        data=DataSettings(batch=BATCH, validation=0.01),
        objective=ObjectiveSettings(name="masked-patch"),
        optim=OptimSettings(name="adamw", lr=2e-4, weight_decay=0.1, clip=None),
        schedule=ScheduleSettings(steps=1_000_000, warmup_steps=WARMUP, recipe_steps=1_000_000, kind="cosine"),
        augment=POLICIES["inception"],
    ),
    _recipe(
        "continue",
        source="ours, experimental: DINO's heads, then adapters (ExPLoRA, Khanna et al. 2024), held by a Gram anchor (DINOv3)",
        expect="pre-trained weights (--init) for another kind of images, 100,000 or more; figures are in docs/pretraining.md",
        model=ModelSettings(head_first=0.1, adapters=AdapterSettings(rank=8)),
        data=DataSettings(batch=64, validation=0.05),
        objective=ObjectiveSettings(name="dino", changes={"prototypes": 1024, "momentum": 0.999, "anchor": 1.0}),
        optim=OptimSettings(name="adamw", lr=1e-4, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(epochs=10, warmup=0.1, kind="cosine"),
        augment=POLICIES["dino"],
        save=SaveSettings(stop_below=0.02),
    ),
    _pretrain_small(
        "masked-patch",
        POLICIES["mae"],
        "ours, on the objective of Dosovitskiy et al. 2021, appendix B.1.2: 3-bit mean colours of half of the patches",
        "colours are soon learnt; features better than those of an untrained network, below those of the others",
    ),
    _pretrain_small(
        "mae",
        POLICIES["mae"],
        "ours, on the objective of He et al. 2022; a decoder of two blocks of width 64",
        "the cheapest step of all: a quarter of the patches is encoded; worth most when fine-tuned",
        changes=DECODER,
    ),
    _pretrain_small(
        "beit",
        POLICIES["mae"],
        "ours, on the objective of Bao et al. 2022; codes of a tokenizer of your own (--tokenizer)",
        "train the tokenizer first: vitrail pretrain DATA --objective tokenizer",
    ),
    _pretrain_small(
        "moco",
        POLICIES["moco"],
        "ours, on the objective of Chen, Xie and He 2021 (MoCo v3); heads of 1024",
        "features that serve nearest neighbours and linear classifiers best, at four encodings an image",
        changes=HEADS,
    ),
    _pretrain_small(
        "simclr",
        POLICIES["simclr"],
        "ours, on the objective of Chen et al. 2020 with Adam; heads of 1024",
        "features that serve nearest neighbours and linear classifiers best, at two encodings an image",
        changes=HEADS,
    ),
    _pretrain_small(
        "dino",
        POLICIES["dino"],
        "ours, on the objective of Caron et al. 2021; 4,096 prototypes, four local views of half the side",
        "features for nearest neighbours without comparing images, at the cost of five encodings an image",
        lr=5e-4,
        changes=PROTOTYPES,
    ),
    _pretrain_small(
        "ibot",
        POLICIES["dino"],
        "ours, on the objective of Zhou et al. 2022: dino, and the patches of a mask of 30 %",
        "as dino, with patches that are useful for dense tasks",
        lr=5e-4,
        changes=PROTOTYPES,
    ),
    _pretrain_small(
        "distil",
        POLICIES["finetune"],
        "ours, on the similarities of images (Fang et al. 2021, SEED) and of patches that a teacher finds (--teacher)",
        "what a pre-trained model knows, in a small one without labels; it needs thousands of images",
    ),
    _pretrain_small(
        "tokenizer",
        POLICIES["mae"],
        "ours: finite scalar quantisation (Mentzer et al. 2024), one of 512 codes a patch",
        "what BEiT learns to predict; a few minutes suffice",
        lr=2e-3,
        model={},
    ),
    _recipe(
        "paper-mae",
        source="He et al. 2022, appendix A.1: 1.5e-4 a batch of 256, on ImageNet-1k",
        expect="ViT-B/16: 83.6 % top-1 on ImageNet-1k after 1600 epochs and fine-tuning",
        model=ModelSettings(name="vit-b16", size=(224, 224), changes={"positions": "sincos2d", "gelu": "exact"}),
        data=DataSettings(batch=4096, validation=0.01),
        objective=ObjectiveSettings(name="mae"),
        optim=OptimSettings(name="adamw", lr=2.4e-3, betas=(0.9, 0.95), weight_decay=0.05, clip=None),
        schedule=ScheduleSettings(epochs=800, warmup=40 / 800, kind="cosine"),
        augment=POLICIES["mae"],
    ),
    _recipe(
        "paper-beit",
        source="Bao et al. 2022, appendix; with a tokenizer of your own (--tokenizer) in place of DALL-E's",
        expect="BEiT-B/16: 83.2 % top-1 on ImageNet-1k after 800 epochs and fine-tuning, with DALL-E's",
        model=ModelSettings(name="beit-b16", size=(224, 224), changes={"drop_path": 0.1, "relative_bias": "shared"}),
        data=DataSettings(batch=2048, validation=0.01),
        objective=ObjectiveSettings(name="beit"),
        optim=OptimSettings(name="adamw", lr=1.5e-3, weight_decay=0.05, clip=3.0),
        schedule=ScheduleSettings(epochs=800, warmup=10 / 800, end=1e-5, kind="cosine"),
        augment=POLICIES["mae"],
    ),
    _recipe(
        "paper-moco",
        source="Chen, Xie and He 2021 (MoCo v3): 1.5e-4 a batch of 256, on ImageNet-1k",
        expect="ViT-B/16: 76.5 % top-1 on ImageNet-1k with a linear classifier after 300 epochs",
        model=ModelSettings(name="vit-b16", size=(224, 224), changes={"positions": "sincos2d", "gelu": "exact"}),
        data=DataSettings(batch=4096, validation=0.01),
        objective=ObjectiveSettings(name="moco"),
        optim=OptimSettings(name="adamw", lr=2.4e-3, weight_decay=0.1, clip=None),
        schedule=ScheduleSettings(epochs=300, warmup=40 / 300, kind="cosine"),
        augment=POLICIES["moco"],
    ),
    _recipe(
        "paper-dino",
        source="Caron et al. 2021 (DINO): 5e-4 a batch of 256, on ImageNet-1k; weight decay stays where theirs begins",
        expect="ViT-S/16: 74.5 % top-1 on ImageNet-1k with nearest neighbours after 800 epochs",
        model=ModelSettings(name="vit-s16", size=(224, 224), changes={"drop_path": 0.1, "gelu": "exact"}),
        data=DataSettings(batch=1024, validation=0.01),
        objective=ObjectiveSettings(
            name="dino",
            changes={
                "prototypes": 65_536,
                "local_views": 8,
                "local_size": 96 / 224,
                "teacher_temperature": 0.07,
                "temperature_warmup": 0.3,
                "freeze_patches": False,
            },
        ),
        optim=OptimSettings(name="adamw", lr=2e-3, weight_decay=0.04, clip=3.0),
        schedule=ScheduleSettings(epochs=100, warmup=0.1, kind="cosine", end=1e-6),
        augment=replace(POLICIES["dino"], crop_area=(0.4, 1.0), local_crop_area=(0.05, 0.4)),
    ),
)
RECIPES: dict[str, Recipe] = {recipe.run.recipe: recipe for recipe in _RECIPES}


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
