"""Public weights for a training that names none (``--init auto``), as fine-tuning them is the better start for photographs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vitrail.config.parse import read_yaml
from vitrail.config.schema import Run
from vitrail.data.sources.open import FoundData, open_data
from vitrail.data.sources.source import Source
from vitrail.errors import VitrailError
from vitrail.runtime.device import find_device
from vitrail.runtime.progress import LogFunction
from vitrail.training.network import sample_sizes
from vitrail.weights.public import find_public
from vitrail.weights.resolve import resolve_model

MODELS = {"cpu": "vit-ti16"}  # by device; a step of it takes a CPU a quarter of the time of a ViT-S
OTHERWISE = "vit-s16"
MIN_SIDE = 64  # pixels; smaller pictures are not what the weights were trained on
SCRATCH = "training from scratch: on 245 photographs of ants and bees 68 % top-1, where these weights give 96 %"


def open_found(found: FoundData, run: Run) -> FoundData:
    """Returns the data opened as `open_run_data` does, so that the training does not search and open them again."""
    splits = open_data(
        found,
        seed=run.seed,
        validation=run.data.share_held_out,
        channels=run.data.channels,
        task=run.task,
        max_bad=run.data.max_bad if run.data.on_bad == "skip" else 0.0,
    )
    return replace(found, opened=splits)


def choose_weights(run: Run, found: FoundData, folder: Path | None, *, required: bool, log: LogFunction) -> str | None:
    """Returns the name of public weights that suit the data, or None for a training from scratch; ``log`` says why.

    A run that began in ``folder`` keeps its start.

    Args:
        run: the run from scratch.
        found: opened data.
        required: whether weights were asked for, so that not to get them is an error.

    Raises:
        CheckpointError: weights are ``required``, and neither in the cache nor can be downloaded.
    """
    if folder is not None and (folder / "config.yaml").exists():
        return read_yaml(folder / "config.yaml").get("model", {}).get("init")
    assert found.opened is not None
    train = found.opened.train
    if not required and (train is None or run.data.channels not in (None, 3) or not has_photographs(train)):
        return None
    model = MODELS.get(find_device(run.compute.device).type, OTHERWISE)
    weights = find_public(model)
    try:
        resolved = resolve_model(model)
    except VitrailError as error:
        if required:
            raise
        how = f"vitrail weights get {model} --out {model}.safetensors"
        log(f"warning  {error.what}")
        log(f"warning  {SCRATCH}; on a machine with a network: {how}, then here --init {model}.safetensors")
        return None
    log(f"init     {model}, {weights.licence}: {weights.source}; --init none trains from scratch")
    return resolved.origin


def has_photographs(train: Source) -> bool:
    """Returns whether the images are files of at least 64 pixels a side, by the median of the headers of a few."""
    sides = [min(size) for size in sample_sizes(train)] if train.kind == "files" else []
    return bool(sides) and float(np.median(sides)) >= MIN_SIDE
