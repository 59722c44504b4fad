"""What learning without labels is worth: one small ViT, every objective for the same training FLOPs, evaluated three ways.

Of 20,000 images each objective makes an encoder; nearest neighbours and a linear classifier on its frozen features are tested on
the test images, beside those of a random network. Then it is fine-tuned on a few labels, beside the same network trained on them
from scratch for as many FLOPs as pre-training and fine-tuning took together. BEiT pays for its tokenizer, MoCo, DINO and iBOT
for their slow encoders. Every cell is kept under --out: the same command goes on where it stopped, and ends with the table of
all cells there.

    python benchmarks/pretraining.py CIFAR10 --out runs/pretraining [--seeds 0 1 2] [--objectives mae simclr]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from torch import Tensor

import vitrail
from vitrail.config.recipes import RECIPES
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import DataError
from vitrail.evaluation.intervals import two_way_interval
from vitrail.models import configure, sketch
from vitrail.models.cost import count_operations, step_operations
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives import OBJECTIVES
from vitrail.objectives.objective import Objective, configure_objective
from vitrail.objectives.supervised import Supervised

NAMES = ("masked-patch", "mae", "beit", "moco", "simclr", "dino", "ibot")
IMAGES, WATCHED, LABELS = 20_000, 1_000, (1_000, 5_000)
BUDGET, FINETUNING = 1.6e13, 4e12  # floating-point operations of pre-training, and of fine-tuning
TOKENIZING = 0.1  # of BEiT's budget, for its tokenizer
BATCH, COUNTED = 128, 64  # images of an update, and of the batch whose operations are counted
ENCODER = {"patch_size": [4, 4], "width": 96, "depth": 4, "heads": 2, "mlp_width": 384}
SMALL = {"pool": "gap", "prefix": [], "gelu": "exact", "positions": "sincos2d", "patch_dropout": 0.0}
CODES = {"patch_size": [4, 4], "width": 64, "depth": 1}
HOW = ["compute.precision=bf16-weights", "compute.threads=1", "compute.compile=false", "data.micro_batch=128"]
# from labels: the same for both, but that pre-trained layers move the less the lower they are
TUNED = ["optim.lr=1e-3", "optim.weight_decay=0.05", "augment.crop=pad", "augment.pad_mode=zero", "save.evaluations=1"]


def network(**changes: Any) -> Any:
    return configure("vit-ti16", image_size=32, **ENCODER, **SMALL, **changes)


def flops(make: Callable[[], tuple[Objective, list[Tensor]]]) -> float:
    """Operations of a training step, for each image; on the meta device, where nothing is computed."""
    with torch.device("meta"):
        objective, inputs = make()
    return step_operations(objective, inputs) / COUNTED


def meta_images() -> Tensor:
    return torch.empty(COUNTED, 3, 32, 32, device="meta")


def of_objective(name: str) -> float:
    """Operations for each image of an objective's step."""
    ids = np.zeros((COUNTED, 3), np.int64)
    changes, preprocessing = RECIPES[name].run.objective.changes, Preprocessing.paper(32)
    kind = OBJECTIVES[name]
    extra = {"masked-patch": {"preprocessing": preprocessing}, "beit": {"vocabulary": 512}}.get(name, {})

    def make() -> tuple[Objective, list[Tensor]]:
        objective = configure_objective(kind, sketch(network(classes=0)), changes, **extra)
        drawn = [each.to("meta") for each in objective.draw(ids, (32, 32), 0)]
        codes = [torch.empty(COUNTED, 64, dtype=torch.int64)] if name == "beit" else []
        local = objective.local
        whole = [meta_images() for _ in range(objective.views - (local.count if local else 0))]
        small = [torch.empty(COUNTED, 3, *local.size, device="meta") for _ in range(local.count)] if local else []
        return objective, [*whole, *small, *drawn, *codes]

    return flops(make) + (tokenizer_flops(training=False) if name == "beit" else 0)


def tokenizer_flops(*, training: bool) -> float:
    kind = OBJECTIVES["tokenizer"]
    if training:
        return flops(lambda: (kind(Tokenizer(TokenizerConfig.from_dict(CODES)), std=(0.5,) * 3), [meta_images()]))
    with torch.device("meta"):
        tokenizer = Tokenizer(TokenizerConfig.from_dict(CODES))
    with torch.no_grad():
        return count_operations(lambda: tokenizer.encode(meta_images())) / COUNTED


def supervised_flops() -> float:
    classes, preprocessing = tuple(map(str, range(10))), Preprocessing.paper(32)

    def make() -> tuple[Objective, list[Tensor]]:
        task = vitrail.create_model(network(classes=10), classes=classes, preprocessing=preprocessing)
        return Supervised(task), [meta_images(), torch.zeros(COUNTED, len(classes))]

    return flops(make)


class Study:
    """The cells of the table, each computed once and kept as a file."""

    def __init__(self, data: str, out: Path) -> None:
        splits = open_data(data, validation=0)
        if splits.train is None or splits.test is None:
            raise DataError("the study needs training and test images", "give CIFAR-10 as Parquet or class folders")
        self.train = self._decoded(splits.train, range(IMAGES))
        self.watched = self._decoded(splits.train, range(IMAGES, IMAGES + WATCHED))
        self.test = self._decoded(splits.test, range(len(splits.test)))
        self.out = out
        (out / "cells").mkdir(parents=True, exist_ok=True)

    @staticmethod
    def _decoded(source: Source, rows: range) -> Source:
        return keep_decoded(source.subset(np.array(rows)), channels=3, bad=_stop)

    def splits(self, labels: int | None = None) -> Splits:
        train = self.train if labels is None else self.train.subset(np.arange(labels))
        return Splits(train=train, val=self.watched, classes=train.classes)

    def cell(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Which test images are right (M,), computed unless it is there."""
        path = self.out / "cells" / f"{name}.npy"
        if not path.exists():
            right = compute()
            np.save(path, right)
            print(f"{name}: {100 * right.mean():.2f} %", flush=True)
        return np.load(path)

    def encoder(self, objective: str, seed: int) -> Any:
        """The run of an objective, or a network as it is initialised."""
        if objective == "random":
            torch.manual_seed(seed)
            return vitrail.create_model(network(classes=0), classes=(), preprocessing=Preprocessing.paper(32))
        how: dict[str, Any] = {}
        budget, changes = BUDGET, {**ENCODER, **SMALL}
        if objective == "beit":
            budget *= 1 - TOKENIZING
            how["tokenizer"] = self.encoder("tokenizer", seed)
        if objective == "tokenizer":
            budget, changes = budget * TOKENIZING, CODES
        cost = tokenizer_flops(training=True) if objective == "tokenizer" else of_objective(objective)
        return vitrail.pretrain(
            self.splits(),
            objective=objective,
            model=None if objective == "tokenizer" else "vit-ti16",
            steps=round(budget / cost / BATCH),
            batch=BATCH,
            seed=seed,
            out=self.out / f"{objective}-{seed}",
            settings=[*HOW, f"model.changes={changes}", "save.evaluations=6"],
            quiet=True,
            **how,
        ).folder

    def probed(self, objective: str, protocol: str, seed: int) -> np.ndarray:
        """By its frozen features."""
        model = self.encoder(objective, seed)
        data = Splits(train=self.train, test=self.test, classes=self.train.classes)
        return vitrail.probe(model, data, protocol, batch=250, cache=False, quiet=True, log=_silent).right[0]

    def tuned(self, objective: str, labels: int, seed: int) -> np.ndarray:
        """Fine-tuned from an encoder, or trained from scratch for the FLOPs of both."""
        scratch = objective == "scratch"
        operations = FINETUNING + (BUDGET if scratch else 0)
        start = {"model": "vit-ti16"} if scratch else {"init": self.encoder(objective, seed)}
        changes = [f"model.changes={ {**ENCODER, **SMALL} }", "optim.layer_decay=1"] if scratch else []
        steps = round(operations / supervised_flops() / BATCH)
        return self.fine_tune(objective, labels, seed, steps=steps, batch=BATCH, settings=[*HOW, *changes], **start)

    def fine_tune(
        self, name: str, labels: int, seed: int, *, steps: int, batch: int, settings: list[str], **start: Any
    ) -> np.ndarray:
        """Which test images are right after a training on ``labels`` images (M,)."""
        run = vitrail.train(
            self.splits(labels),
            recipe="finetune",
            steps=steps,
            batch=batch,
            seed=seed,
            out=self.out / f"{name}-{seed}-{labels}",
            settings=[*settings, *TUNED],
            quiet=True,
            **start,
        )
        data = Splits(test=self.test, classes=self.test.classes)
        return vitrail.evaluate(run.folder, data, batch=250, quiet=True, log=_silent).metric.right

    def run(self, seeds: list[int], objectives: list[str], labels: tuple[int, ...]) -> None:
        """All cells of these seeds and objectives."""
        for seed in seeds:
            for name in ("random", *objectives):
                for protocol in ("knn", "linear"):
                    self.cell(f"{name}-{seed}-{protocol}", partial(self.probed, name, protocol, seed))
            for count in labels:
                for name in (*objectives, "scratch"):
                    self.cell(f"{name}-{seed}-{count}", partial(self.tuned, name, count, seed))

    def right(self, name: str, column: str) -> dict[int, np.ndarray]:
        """By seed, which test images are right (M,): of all cells that there are."""
        found = (self.out / "cells").glob(f"{name}-[0-9]*-{column}.npy")
        return {int(path.stem.split("-")[-2]): np.load(path) for path in found}


def interval(values: np.ndarray) -> list[float]:
    """The mean of (S, M) in points and the ends of its 95 % interval, over seeds and images."""
    return [round(100 * each, 2) for each in (float(values.mean()), *two_way_interval(values))]


def table(study: Study) -> list[dict[str, Any]]:
    """A row for each network: the means of the columns, and the differences from random or from scratch of the same seeds."""
    rows = []
    for name in ("random", "scratch", *NAMES):
        row: dict[str, Any] = {"objective": name}
        for column in ("knn", "linear", *map(str, LABELS)):
            right = study.right(name, column)
            others = study.right("random" if column in ("knn", "linear") else "scratch", column)
            if right:
                row[column] = interval(np.stack(list(right.values())))
            if name not in ("random", "scratch") and (seeds := sorted(right.keys() & others.keys())):
                row[f"{column} seeds"] = seeds
                row[f"{column} difference"] = interval(
                    np.stack([right[seed].astype(np.float64) - others[seed] for seed in seeds])
                )
        rows.append(row)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    columns = ["knn", "linear", *map(str, LABELS)]
    lines = ["| objective | " + " | ".join(columns) + " |", "|-" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [_told(row.get(column), row.get(f"{column} difference")) for column in columns]
        lines.append(f"| {row['objective']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _told(cell: list[float] | None, difference: list[float] | None) -> str:
    if cell is None:
        return ""
    return f"{cell[0]:.1f}" + ("" if difference is None else " ({:+.1f} [{:+.1f}, {:+.1f}])".format(*difference))


def _silent(line: str) -> None:
    pass


def _stop(key: str, reason: str) -> None:
    raise DataError(f"the image {key} is bad: {reason}", "mend it")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--objectives", nargs="+", default=list(NAMES), choices=NAMES)
    words.add_argument("--labels", type=int, nargs="*", default=list(LABELS), choices=LABELS)
    asked = words.parse_args()
    study = Study(asked.data, asked.out)
    study.run(asked.seeds, asked.objectives, tuple(asked.labels))
    rows = table(study)
    print(markdown(rows))
    costs = {name: of_objective(name) for name in NAMES}
    facts = {
        "rows": rows,
        "operations": {"pre-training": BUDGET, "fine-tuning": FINETUNING},
        "operations_an_image": {**costs, "tokenizer": tokenizer_flops(training=True), "supervised": supervised_flops()},
    }
    print(harness.write("pretraining", facts, device="cpu"))


if __name__ == "__main__":
    main()
