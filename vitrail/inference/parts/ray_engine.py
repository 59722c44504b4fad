"""The engine `ray` of `vitrail predict --parts`: Ray Data gives the parts to actors, which hold the model and write the parts.

Only numbers of parts travel. Nothing precedes the actors in the pipeline, and they take at most all processors but one: a task
before them would need a processor, too, and wait for ever when the actors have them all.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from vitrail import errors
from vitrail.errors import CheckpointError, ConfigError, DataError, VitrailError
from vitrail.inference.inputs import ImageInputs
from vitrail.inference.parts.compute import CONTINUE, Compute, Job, compute_parts, make_plan
from vitrail.inference.parts.folder import PartFolder, read_parts
from vitrail.runtime.process import end_at_once
from vitrail.tasks.task import Task

STORE = 100 * 2**20  # bytes of the object store of a cluster of our own: only names of images and numbers go through it
AT_ONCE = 8  # most parts that an actor is given together, so that reading runs ahead into the next one
COLUMNS = ("images", "error", "what", "remedy")  # of what an actor returns
TRIES = 3  # of a part whose actor died


@contextmanager
def open_actors(job: Job, images: ImageInputs, folder: PartFolder) -> Iterator[Compute]:
    """Inside, the function computes parts with actors on the cluster of ``RAY_ADDRESS``, or else on this machine.

    Raises:
        ConfigError: Ray is not installed or cannot be reached; the model is in memory; no GPU for ``--device cuda``.
        CheckpointError: an actor reads another model.
        VitrailError: as raised in an actor.
    """
    if isinstance(job.model, Task):
        what = "the actors of Ray read the model themselves, and this one is in memory"
        raise ConfigError(what, "save it first, vitrail.save(model, PATH), and give the path")
    ray = _import_ray()
    # Ray puts a handler of its own in the place of ours
    with _connect(ray), end_at_once(CONTINUE):
        work = {"job": job, "folder": folder.path.absolute(), "here": Path.cwd(), "images": ray.put(images)}
        yield partial(_compute, ray, job, work)


def _compute(ray: Any, job: Job, work: dict[str, Any], numbers: Sequence[int], on_images: Callable[[int], None]) -> int:
    resources, actors = _choose_actors([node["Resources"] for node in ray.nodes() if node["Alive"]], job)
    how = {
        "fn_constructor_kwargs": work,
        "batch_size": max(1, min(AT_ONCE, len(numbers) // (4 * actors))),
        "compute": ray.data.ActorPoolStrategy(min_size=1, max_size=actors, initial_size=actors),
    }
    parts = ray.data.from_items([{"part": number} for number in numbers], override_num_blocks=len(numbers))
    with warnings.catch_warnings():
        # by default a part that ends its actor each time is tried for ever; until 2.64 it may be limited here
        warnings.simplefilter("ignore", DeprecationWarning)
        computed = parts.map_batches(PartActor, **how, max_restarts=-1, max_task_retries=TRIES, **resources)
    total = 0
    for batch in computed.iter_batches(batch_size=None, batch_format="numpy"):
        for count, name, what, remedy in zip(*(batch[column].tolist() for column in COLUMNS)):
            if name:
                raise getattr(errors, name)(what, remedy)
            on_images(count)
            total += count
    return total


def _import_ray() -> Any:
    try:
        import_module("ray.data")
        return import_module("ray")
    except ImportError as missing:
        raise ConfigError("--engine ray needs Ray", "pip install 'vitrail[ray]', or --engine local") from missing


@contextmanager
def _connect(ray: Any) -> Iterator[None]:
    """Inside, Ray runs: that of the caller, the cluster of ``RAY_ADDRESS``, or one of this machine that is ended after it."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    for handler in (each for name in ("ray", "ray.data") for each in logging.getLogger(name).handlers):
        handler.setLevel(logging.CRITICAL)  # a signal is reported as an error of Ray's own
    own = {"address": "local", "include_dashboard": False, "object_store_memory": STORE}
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(log_to_driver=False, configure_logging=False, **({} if address else own))
    except ConnectionError as error:
        what = f"Ray cannot be reached at {address or 'this machine'}: {error}"
        raise ConfigError(what, "check RAY_ADDRESS, and the token of the cluster (RAY_AUTH_TOKEN)") from error
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
    finally:
        ray.shutdown()


def _choose_actors(machines: list[dict[str, float]], job: Job) -> tuple[dict[str, float], int]:
    """What an actor takes, and the number of actors, for machines with so many ``CPU`` and ``GPU`` each."""
    device, gpus = job.options.device, int(sum(machine.get("GPU", 0) for machine in machines))
    on_gpu = gpus > 0 if device is None else device.startswith("cuda")
    if on_gpu and not gpus:
        raise ConfigError(f"the device is {device}, and the cluster has no GPU", "leave --device out")
    machines = [machine for machine in machines if machine.get("GPU") or not on_gpu]
    processors = [int(machine.get("CPU", 0)) for machine in machines]
    each = max(1, min(1 + job.options.workers, max(processors) - 1))
    actors = max(1, (sum(processors) - 1) // each)
    return ({"num_cpus": each, "num_gpus": 1}, min(actors, gpus)) if on_gpu else ({"num_cpus": each}, actors)


class PartActor:
    """Computes parts in a process of Ray. Errors that a user can fix are returned, as Ray would wrap them in its own.

    Args:
        job: as it is in the driver.
        folder: the absolute path of the folder of parts.
        here: the working directory of the driver, to which relative paths belong.
        images: an object of Ray, the `ImageInputs`.
    """

    def __init__(self, job: Job, folder: Path, here: Path, images: Any) -> None:
        self.job, self.path, self.here, self.reference = job, folder, here, images

    @cached_property
    def loaded(self) -> tuple[Task, ImageInputs, PartFolder]:
        """The model, the images, and the folder of parts, which stays open.

        Raises `CheckpointError` if the model is not that of the plan, and `DataError` without the working directory.
        """
        try:
            os.chdir(self.here)
        except OSError as error:
            what = f"a machine of the cluster cannot open {self.here}: {error.strerror}"
            raise DataError(what, "start in a folder that all machines share") from error
        images = import_module("ray").get(self.reference)
        task, plan = self.job.load(lambda line: None), read_parts(self.path).plan
        given = make_plan(self.job, task, images.source, part_size=plan.part_size, format=plan.format)
        if lines := plan.compare(given):
            what = f"an actor of Ray reads another model at {self.job.model}"
            remedy = "give a path at which every machine of the cluster has the same files"
            raise CheckpointError(what, remedy, value="\n".join(lines))
        return task, images, PartFolder.open(self.path, plan, {})

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """From numbers of parts to one row of `COLUMNS`: how many images were done here, and the error that ended it."""
        done, name, what, remedy = 0, "", "", ""
        try:
            done = compute_parts(self.job, *self.loaded, batch["part"].tolist())
        except VitrailError as error:
            name, remedy = type(error).__name__, error.remedy
            what = "\n  ".join([error.what, *error.value.splitlines()])
        return dict(zip(COLUMNS, ([done], [name], [what], [remedy])))
