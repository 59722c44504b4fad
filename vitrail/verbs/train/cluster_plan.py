"""`vitrail train --dry-run --devices 64xH100`: what a training would take on a cluster, without data and without the cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrail.config.reconcile import changes_for
from vitrail.config.schema import Run
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError
from vitrail.hub import REMOTE
from vitrail.models import configure
from vitrail.runtime.progress import LogFunction
from vitrail.training.cluster_plan import Cluster, Workload, compare, describe
from vitrail.training.data import limit_training

CLASSES = 1000


def plan_cluster(
    run: Run, data: str | None, devices: str, network: str | None, log: LogFunction
) -> list[dict[str, Any]]:
    """Calls ``log`` with each line of the plan, and returns its rows.

    Args:
        data: a path or built-in name; where it exists, its images are counted for the length of the run.
        devices, network: as `Cluster.parse` takes them.

    Raises `ConfigError`, also where no network is named.
    """
    cluster = Cluster.parse(devices, network)
    if run.model.name is None:
        raise ConfigError("no network is named", "give one with --model, e.g. --model vit-b16")
    base = configure(run.model.name)
    size = {} if run.model.size is None else {"image_size": run.model.size}
    network_config = configure(base, **{"classes": CLASSES, **changes_for(run, base, log), **size})
    train = None
    if data is not None and (data == "digits" or data.startswith(REMOTE) or Path(data).exists()):
        splits = open_data(data, seed=run.seed, validation=run.data.validation, labelled=False)
        train = limit_training(splits, run.data, run.seed).train
    work = Workload.of(run, network_config, None if train is None else len(train))
    for line in describe(work, cluster, devices):
        log(line)
    return list(map(asdict, compare(work, cluster)))
