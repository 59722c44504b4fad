"""Recipes for boxes and for maps of classes."""

from __future__ import annotations

from dataclasses import replace

from vitrail.config.recipe import Recipe
from vitrail.config.schema import DataSettings, ModelSettings, OptimSettings, Run, ScheduleSettings
from vitrail.data.augment.policy import Augment

OPTIM = OptimSettings(name="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75, clip=1.0)
# data with boxes or masks are small, and few updates leave a new head unfinished: see docs/decisions.md
BATCH, EMA = 4, 0.999

DENSE: dict[str, Recipe] = {
    "segment": Recipe(
        source="ours: layer-wise decay (BEiT; MAE, appendix A.2), SegFormer's head, large-scale jitter (Ghiasi et al. 2021)",
        expect="a class for every pixel, from --init of any backbone",
        run=Run(
            recipe="segment",
            task="segmentation",
            model=ModelSettings(name="vit-ti16", changes={"drop_path": 0.1}),
            data=DataSettings(batch=BATCH),
            optim=replace(OPTIM, ema=EMA),
            schedule=ScheduleSettings(epochs=20, warmup=0.05, kind="cosine"),
            augment=Augment(crop="jitter", crop_scale=(0.75, 2.0), crop_major=0.75, jitter=(0.3, 0.3, 0.3), hue=0.05),
        ),
    ),
    "detect": Recipe(
        source="ours: layer-wise decay, task-aligned assignment (Feng et al. 2021), large-scale jitter (Ghiasi et al. 2021)",
        expect="boxes, from --init of any backbone",
        run=Run(
            recipe="detect",
            task="detection",
            model=ModelSettings(name="vit-ti16", changes={"drop_path": 0.1}),
            data=DataSettings(batch=BATCH),
            optim=replace(OPTIM, ema=EMA),
            schedule=ScheduleSettings(epochs=18, warmup=0.05, kind="cosine"),
            augment=Augment(crop="jitter", crop_scale=(0.5, 1.5), jitter=(0.2, 0.2, 0.2)),
        ),
    ),
}
